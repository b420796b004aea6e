# GGUF files in place of model directories: the same cache as from the checkpoint, and refusals.
. src/test/cli/refused.sh
golden=src/test/golden
echo "1 2 3 4 5 6 7 8 9 10 11 12" >ids.txt
for model in $golden/gguf/qwen2-1.gguf $golden/model/qwen2-1; do
  kvcodec dump-kv --model $model --tokens ids.txt --dtype f32 --quiet -o $(basename $model).h5 >/dev/null
done
kvcodec eval-recon qwen2-1.h5 qwen2-1.gguf.h5 --json | tr -d ' \n' | grep -o '"max_error":[^,}]*' | sort -u
kvcodec info qwen2-1.gguf.h5 | grep -o 'qwen2-1.gguf' | head -n 1
run() {
  refused dump-kv --model m.gguf --text src/LICENSE --chunk 64 --max-tokens 64 -o x.h5
}
run
cp src/LICENSE m.gguf && run
head -c 20000 $golden/gguf/qwen2-1.gguf >m.gguf && run
sed 's/qwen2/phi33/g' $golden/gguf/qwen2-1.gguf >m.gguf && run | sed 's/supported are .*/supported are …/'
cp $golden/gguf/qwen2-1.gguf m.gguf && run
mkdir d && cp $golden/model/qwen2-1/config.json d && cp m.gguf d
refused dump-kv --model d --tokens ids.txt -o x.h5
