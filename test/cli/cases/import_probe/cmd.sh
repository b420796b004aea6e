# import with a model computes the first keys and values again: a cache that is not the model's is refused, with what is wrong if known.
. src/test/cli/refused.sh
model=src/data/demo-model
seq -s ' ' 5 2 163 >ids.txt
seq -s ' ' 6 2 164 >others.txt
kvcodec dump-kv --model $model --tokens ids.txt -o kv.h5 --quiet >/dev/null
taken() { kvcodec import "$@" -o taken.h5 --overwrite --quiet --json | jq -c '[.format, .zero_keys, .notes]'; }
exported() { kvcodec export kv.h5 --quiet --to "$@" >/dev/null; }
exported transformers -o a.safetensors
exported llama -o a.bin
exported llama --type q4_0 -o q4.bin
exported llama --type q8_0 --rotated 64,64 -o turned.bin
exported mlx --bits 2 --group 16 -o a.mlx
exported vllm-blocks --layout v2-hnd -o blocks
for file in a.safetensors a.bin q4.bin; do taken $file --model $model; done
taken turned.bin --rotated 64,64 --model $model
taken a.mlx --ids ids.txt --model $model
taken blocks/*.bin --from vllm-blocks --layout v2-hnd --ids ids.txt --model $model
# A note says why nothing can be compared.
taken a.mlx --model $model
mkdir config && cp $model/config.json config && taken a.safetensors --model config
# The fault is named, if it is known.
refused import turned.bin --model $model -o x.h5
refused import a.bin --key-pairs halves --model $model -o x.h5
refused import a.safetensors --ids others.txt --model $model -o x.h5
refused import blocks/*.bin --from vllm-blocks --layout v2-nhd --ids ids.txt --model $model -o x.h5
kvcodec import blocks/*.bin --from vllm-blocks --layout v2-nhd --ids ids.txt --model $model --no-probe -o x.h5 | sed 's/  *[0-9.]* s$//; s/  *time$//'
# A part of a file that was never written.
cp a.bin hole.bin
dd if=/dev/zero of=hole.bin bs=1 seek=30000 count=9000 conv=notrunc 2>/dev/null
taken hole.bin --model $model
kvcodec dump-kv --model $model --tokens ids.txt -o /dev/null --overwrite --quiet --json | jq .file_bytes
