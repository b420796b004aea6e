# A model goes on from codes that stay codes, and that grow by what it reads.
set -e
. src/test/cli/refused.sh
model=src/data/demo-model
head -c 900 src/LICENSE >a.txt
prompt=' and the'
generate() { kvcodec generate "$@" --model $model --prompt "$prompt" --tokens 24 --no-stop --json; }
said() { jq -c '.tokens[:23]'; }
kvcodec dump-kv --model $model --text a.txt --dtype f32 --quiet -o a.h5 >/dev/null
head -c 900 src/LICENSE | tail -c 400 >b.txt
kvcodec dump-kv --model $model --text a.txt --text b.txt --quiet -o ab.h5 >/dev/null
kvcodec dump-kv --model $model --text src/data/text/moby-dick.txt --chunk 256 --max-tokens 2560 --quiet -o book-kv.h5 >/dev/null
kvcodec train-transform book-kv.h5 --quiet -o transform.h5 >/dev/null
generate a.h5 >from-cache
said <from-cache >wanted

# Every codec, without a decoded copy of its codes; those without loss give the same words.
for codec in none lossless fp8 q4 kivi selfindex kvcomp kvcomp:huffman; do
  kvcodec encode a.h5 --codec ${codec%:*} $(test ${codec%:*} = $codec || echo --entropy huffman) --quiet --overwrite -o $codec.h5 >/dev/null
  generate $codec.h5 --cache coded -o grown-$codec.h5 >coded
  echo "$codec $(jq -c '[.cache, .context_tokens - .cached_tokens, .bits_per_value > 0]' coded)"
  kvcodec check grown-$codec.h5 --quiet >/dev/null
  test $codec != none -a $codec != lossless || said <coded | cmp - wanted
done

# What was read is in the codes: the model goes on from them as if it had read the whole text. The last token was written, and not read.
next() { kvcodec generate "$@" --tokens 12 --json --model $model | jq -c .tokens; }
next grown-none.h5 --prompt ' He' >next
next grown-none.h5 --prompt ' He' --cache coded | cmp - next
text=$(kvcodec generate a.h5 --model $model --prompt "$prompt" --tokens 23 --no-stop --json | jq -r .text)
next --prompt "$(cat a.txt)$prompt$text He" | cmp - next

# A codec that codes layers together grows as well; its cache is decoded.
kvcodec encode a.h5 --codec transform --book transform.h5 --bits 2 --quiet -o t.h5 >/dev/null
generate t.h5 --book transform.h5 -o grown-t.h5 | jq -c '[.cache, .context_tokens]'
kvcodec check grown-t.h5 transform.h5 --quiet >/dev/null

# Without room for a decoded copy codes stay codes if their codec multiplies. This model ends its texts early.
mkdir short && cp $model/config.json $model/model.safetensors $model/tokenizer.json short
jq -c '{eos_token_id: .tokens}' from-cache >short/generation_config.json
generate_long() { kvcodec generate "$@" --quiet --model short --prompt "$prompt" --tokens 20000; }
generate_long kvcomp.h5 --json | jq -r .cache
generate_long kvcomp.h5 --memory 64M --json | jq -r .cache

set +e
refused generate q4.h5 --model short --prompt "$prompt" --tokens 20000 --memory 64M --quiet
refused generate t.h5 --book transform.h5 --model $model --prompt x --cache coded
refused generate a.h5 --model $model --prompt x --cache coded
refused generate ab.h5 --model $model --prompt x -o out.h5
refused generate kvcomp.h5 --model $model --prompt x --cache coded --select oracle
refused generate kvcomp.h5 --model $model --prompt x -o kvcomp.h5
refused generate kvcomp.h5 --model $model --prompt x -o -
refused generate --model $model --prompt x -o out.h5
