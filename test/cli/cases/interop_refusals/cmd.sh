# Refusals of import and export: files that are damaged or incomplete, and caches that a format cannot hold.
. src/test/cli/refused.sh
golden=src/test/golden/interop
refused import src/LICENSE -o x.h5
refused import nowhere.bin -o x.h5
refused import $golden/llama-f16.bin -o x.h5
refused import $golden/llama-f16.bin --heads 5 -o x.h5
refused import $golden/llama-f16.bin --from mlx -o x.h5
refused import $golden/llama-f16.bin --from gguf -o x.h5
refused import $golden/llama-gemma3.bin --heads 1 -o x.h5
refused import $golden/llama-f16.bin --heads 1 --rotated 64 -o x.h5
refused import $golden/llama-f16.bin --heads 1 --rotated 64,64 -o x.h5
refused import $golden/llama-f16.bin --heads 1 --model src/data/demo-model -o x.h5
refused import $golden/llama-f16.bin --heads 1 --layers 0 -o x.h5
head -c 1500 $golden/llama-f16.bin >cut.bin && refused import cut.bin --heads 1 -o x.h5
{ cat $golden/llama-f16.bin && echo; } >long.bin && refused import long.bin --heads 1 -o x.h5
{ printf 'qsgg\011\0\0\0' && tail -c +9 $golden/llama-f16.bin; } >new.bin && refused import new.bin --heads 1 -o x.h5
head -c 900 $golden/mlx0.31-plain.safetensors >cut.safetensors && refused import cut.safetensors --from mlx -o x.h5
sed 's/KVCache/XXCache/g' $golden/mlx0.31-plain.safetensors >other.safetensors && refused import other.safetensors -o x.h5
refused import $golden/lmcache1-0.data -o x.h5
refused import $golden/lmcache1-0.data --heads 2 --layer-count 3 -o x.h5
refused import $golden/llama-f16.bin --heads 1 --window-layers 0 -o x.h5
refused import $golden/sglang-page-first-0.bin --from sglang -o x.h5
refused import $golden/sglang-page-first-0.bin --from sglang --heads 2 --head-dim 7 --layer-count 2 -o x.h5
refused import $golden/sglang-page-first-0.bin --from sglang --layout slthdx --heads 2 --head-dim 8 --layer-count 2 -o x.h5
refused import $golden/numpy-cache.npy --layout lthd -o x.h5
refused import $golden/numpy-cache.npy --layout lbhtd -o x.h5 # no place for one of the sides
refused import $golden/numpy-stacked.npz --layout shtd -o x.h5
refused import $golden/sglang-page-first-0.bin --from sglang --layout lhtd --heads 2 --head-dim 8 --layer-count 2 -o x.h5
refused import $golden/sglang-page-first-0.bin --from sglang --layout shtd --heads 2 --head-dim 8 --layer-count 2 -o x.h5
echo "1 2 3" >ids.txt && refused import $golden/vllm-model.layers.*.safetensors --heads 2 --ids ids.txt -o x.h5
make_kv --layers 2 --heads 1 --dim 16 --document abcdefg:0:4 -o named.h5
kvcodec export named.h5 --to transformers -o named.safetensors >/dev/null
sed 's/abcdefg/\\\\u0000/' named.safetensors >zero.safetensors && refused import zero.safetensors -o x.h5
refused export data/kv.h5 --to llama --documents a -o x
refused export data/kv.h5 --to llama --key-pairs halves --kind sequence -o x
refused export data/kv.h5 -o x
refused export data/kv.h5 --to nothing -o x
refused export data/kv.h5 --to mlx --documents a --bits 7 -o x
refused export data/kv.h5 --to mlx --documents a --layers 0 -o x
refused export data/kv.h5 --to llama --key-pairs halves --documents a --type e4m3 -o x
refused export data/kv.h5 --to llama --key-pairs halves --documents a --type q4_0 --transposed yes -o x
refused export data/kv.h5 --to llama --key-pairs halves --documents a --version 7 -o x
refused export data/kv.h5 --to lmcache --documents a -o -
refused export data/dict.h5 --to numpy -o x
refused export data/sparse.h5 --to numpy --documents a -o x
refused export data/kv.h5 --to numpy --documents a --book data/dict.h5 -o x
# Positions that a format does not keep.
make_kv --layers 2 --heads 2 --dim 16 --document a:0:58 -o whole.h5
kvcodec encode whole.h5 --codec none --quiet -o codes.h5 >/dev/null
kvcodec decode codes.h5 --select 0,3-57 --quiet -o gap.h5 >/dev/null
kvcodec decode codes.h5 --tokens 7:27 --quiet -o later.h5 >/dev/null
for format in mlx lmcache vllm vllm-blocks sglang numpy; do refused export gap.h5 --to $format -o x; done
refused export later.h5 --to numpy -o x.npy
kvcodec export later.h5 --to mlx -o a.safetensors >/dev/null # has a number for them
kvcodec import a.safetensors -o a.h5 >/dev/null
kvcodec eval-recon whole.h5 a.h5 --json | jq -c '.reconstructions[0] | [.tokens, .key.max_error, .value.max_error]'
# Keys from before a rotary embedding that the file does not describe.
damage whole.h5 attribute / key_state pre-rope
refused export whole.h5 --to transformers -o x
ls x x.h5 x.npy 2>/dev/null || echo "nothing was written"
# A folder of files is replaced when the new one is complete: a failed export leaves the earlier one unchanged, and no files of its own.
kvcodec export data/kv.h5 --to lmcache --documents a --page 150 -o chunks >/dev/null
touch chunks/mine && cp -r chunks before
refused export data/kv.h5 --to lmcache --documents a --page 75 -o chunks
for output in chunks other; do  # no file may be larger than 512 bytes
  (ulimit -f 1 && kvcodec export data/kv.h5 --to lmcache --documents a --page 100 --overwrite -o $output 2>error.txt)
  sed 's/export\.[A-Za-z0-9]*/export.NAME/' error.txt
done
diff -r before chunks && [ ! -e other ] && echo "as before"
mkdir chunks/.kvcodec-export.gone && touch chunks/.kvcodec-export.gone/000000.data
kvcodec export data/kv.h5 --to lmcache --documents a --page 300 --overwrite -o chunks >/dev/null
ls -A chunks
