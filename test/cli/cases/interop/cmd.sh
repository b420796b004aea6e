# Caches of other programs: imported, through codes, and exported unchanged; and a cache's content through every format.
set -e
golden=src/test/golden/interop
same() { # WHAT A B: the values of two kv files
  echo "$1: $(kvcodec eval-recon $2 $3 --json | tr -d ' \n' | grep -o '"max_error":[^,}]*' | sort -u)"
}
# Files of llama.cpp, whose bytes must be reproduced, directly and from lossless codes.
for name in f16 bf16 q8_0 q4_0 iq4_nl transposed gap extension packed; do
  kvcodec import $golden/llama-$name.bin --heads 1 -o a.h5 --overwrite >/dev/null
  kvcodec export a.h5 --to llama -o a.bin --overwrite >/dev/null
  cmp $golden/llama-$name.bin a.bin
  kvcodec encode a.h5 --codec lossless -o a.codes.h5 --overwrite >/dev/null
  kvcodec export a.codes.h5 --to llama -o a.bin --overwrite >/dev/null
  cmp $golden/llama-$name.bin a.bin
done
# Those of mlx-lm likewise, whose groups lossless keeps; other tests hold the tensors of an export to those of the file.
for name in quantized2 quantized4 quantized8 half; do
  kvcodec import $golden/mlx0.31-$name.safetensors -o a.h5 --overwrite >/dev/null
  kvcodec export a.h5 --to mlx -o a.mlx --overwrite >/dev/null
  kvcodec encode a.h5 --codec lossless --quiet -o a.codes.h5 --overwrite >/dev/null
  kvcodec info a.codes.h5 --json | jq -c '.parameters | [."key-blocks", ."value-blocks"]'
  kvcodec export a.codes.h5 --to mlx -o a.codes.mlx --overwrite >/dev/null
  cmp a.mlx a.codes.mlx
done
# A user's metadata of 70 kB, more than the header of an object in a file holds, comes back.
size=$(od -An -tu8 -N8 a.mlx | tr -d ' ')
tail -c +9 a.mlx | head -c "$size" | sed "s/\"__metadata__\":{/&\"1.note\":\"$(printf %070000d 0)\",/" >header
long=$(wc -c <header)
for byte in 0 8 16 24 32 40 48 56; do printf "\\$(printf %03o $((long >> byte & 255)))"; done >noted.mlx
{ cat header; tail -c +$((size + 9)) a.mlx; } >>noted.mlx
kvcodec import noted.mlx -o noted.h5 >/dev/null
kvcodec check noted.h5
kvcodec export noted.h5 --to mlx -o again.mlx >/dev/null
grep -aoc "\"1.note\":\"0\{32000\}0\{32000\}0\{6000\}\"" again.mlx
# Blocks are kept as such only where all values of a side come from them.
for name in q8_0 f32; do kvcodec import $golden/llama-$name.bin --heads 1 --rotated 0,0 -o $name.h5 >/dev/null; done
kvcodec cat q8_0.h5 f32.h5 -o mixed.h5 >/dev/null
for name in q8_0 mixed; do
  kvcodec encode $name.h5 --codec lossless --quiet -o blocks.h5 --overwrite >/dev/null
  kvcodec info blocks.h5 --json | jq -c '[.storage, .parameters]'
  kvcodec decode blocks.h5 --quiet -o back.h5 --overwrite >/dev/null
  same $name $name.h5 back.h5
  kvcodec eval-recon $name.h5 back.h5 --rate blocks.h5 --json --quiet | jq -c '.reconstructions[0].rate | [.key, .value | .exempt_values / .values]'
done
make_kv --layers 2 --heads 2 --dim 32 --documents 0 --dtype f32 -o none.h5
make_kv --layers 2 --heads 2 --dim 32 --document a:0:9 --dtype f32 -o some.h5
kvcodec encode none.h5 --codec lossless --quiet -o blocks.h5 --overwrite >/dev/null
kvcodec encode some.h5 --append blocks.h5 --quiet >/dev/null
kvcodec decode blocks.h5 --quiet -o back.h5 --overwrite >/dev/null
same "later ones" some.h5 back.h5
kvcodec import $golden/llama-gemma3.bin --heads 1 --window-layers 0-4 -o gemma3.h5 >/dev/null
kvcodec export gemma3.h5 --to llama -o gemma3.bin >/dev/null
cmp $golden/llama-gemma3.bin gemma3.bin
# Live in f16, saved as q4_0, and turned; the first is the file that the program would have made.
kvcodec import $golden/llama-f16.bin --heads 1 -o f16.h5 >/dev/null
kvcodec export f16.h5 --to llama --type q4_0 -o q4.bin >/dev/null
kvcodec import q4.bin --heads 1 -o q4.h5 >/dev/null
kvcodec info q4.h5 | grep '^elements'
mkdir turned
kvcodec export f16.h5 --to llama --type q8_0 --rotated 32,32 -o turned/llama-f16.bin >/dev/null
kvcodec import turned/llama-f16.bin --heads 1 --rotated 32,32 -o turned.h5 >/dev/null
kvcodec eval-recon f16.h5 turned.h5 --json | grep -c '"max_error"' >/dev/null
# A batch with padding becomes documents, and documents a batch.
kvcodec import $golden/transformers-padded.safetensors -o batch.h5 >/dev/null
kvcodec info batch.h5 | grep -A 3 '^document'
kvcodec encode batch.h5 --codec lossless -o batch.codes.h5 >/dev/null
kvcodec export batch.codes.h5 --to transformers -o batch.safetensors --json | grep -E '"(format|documents|tokens)"'
kvcodec import batch.safetensors -o again.h5 >/dev/null
same batch batch.h5 again.h5
# Sliding windows: forgotten tokens of a layer are zeros, and are not exported.
kvcodec import $golden/transformers-gemma3.safetensors -o windows.h5 >/dev/null
kvcodec encode windows.h5 --codec lossless -o windows.codes.h5 >/dev/null
kvcodec export windows.codes.h5 --to transformers -o windows.safetensors >/dev/null
kvcodec import windows.safetensors -o again.h5 --overwrite >/dev/null
same windows windows.h5 again.h5
kvcodec export windows.codes.h5 --to mlx -o transformers-gemma3.mlx >/dev/null
kvcodec import transformers-gemma3.mlx -o again.h5 --overwrite >/dev/null
same mlx windows.h5 again.h5
# Every format can hold one document with one shape; a book is given for codes that need one.
for format in transformers mlx llama lmcache vllm vllm-blocks sglang numpy; do
  [ $format = llama ] && pairs="--key-pairs halves" || pairs=
  kvcodec export data/sparse.h5 --book data/dict.h5 --documents a --to $format $pairs -o out-$format | sed 's/  *[0-9.]* s$//; s/  *time$//'
done
kvcodec export data/sparse.h5 --book data/dict.h5 --documents a --to transformers -o a.safetensors >/dev/null
kvcodec import a.safetensors -o again.h5 --overwrite >/dev/null
kvcodec decode data/sparse.h5 --book data/dict.h5 --documents a -o sparse.h5 >/dev/null
same book sparse.h5 again.h5
# The pipe: no file between.
kvcodec export f16.h5 --to llama -o - | cmp - $golden/llama-f16.bin && echo "the same through a pipe"
