# Invalid model directories.
. src/test/cli/refused.sh
model=src/data/demo-model
run() {
  refused dump-kv --model m --text src/LICENSE --chunk 64 --max-tokens 64 -o x.h5
}
fresh() {
  rm -rf m
  mkdir m
  cp "$model"/* m
}
run
fresh && rm m/config.json && run
fresh && echo '{"architectures": ["BertForMaskedLM"], "model_type": "bert"}' >m/config.json && run | sed 's/ types are .*/ types are …/'
fresh && sed -i 's/"hidden_size": 256/"hidden_size": 128/' m/config.json && run
fresh && echo '{' >m/config.json && run
fresh && rm m/model.safetensors && run
fresh && head -c 1000000 "$model/model.safetensors" >m/model.safetensors && run
fresh && rm m/tokenizer.json && run
fresh && echo '{"model": {"type": "WordPiece"}}' >m/tokenizer.json && run
ls
