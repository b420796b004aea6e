# import and export with options: each format accepts its own and refuses the others, and no command loses its inputs.
. src/test/cli/refused.sh
golden=src/test/golden/interop
# The options that each format accepts.
takes() { # COMMAND ARGUMENTS…: names of the options of the list that are not refused as those of other formats
  for option in $list; do
    kvcodec "$@" "--${option%%=*}" "${option#*=}" --overwrite --quiet >taken.out 2>taken.err </dev/null
    grep -q 'is for other formats' taken.err || printf ' %s' "${option%%=*}"
  done
  echo
}
list="type=f32 value-type=f16 kind=1 version=2 transposed=no rotated=16,16 window-layers=0 bits=4 group=16 page=16 layout=slthd key-pairs=halves"
for format in transformers mlx llama lmcache vllm vllm-blocks sglang numpy; do
  printf 'export %s:' $format
  takes export data/kv.h5 --documents a --to $format -o taken-$format
done
list="heads=1 head-dim=32 layer-count=2 layout=slhtd type=f16 page=8 rotated=0,0 window-layers=0 key-pairs=halves"
for format in transformers mlx llama lmcache vllm vllm-blocks sglang numpy; do
  printf 'import %s:' $format
  takes import $golden/llama-f16.bin --from $format -o taken.h5
done
refused export data/kv.h5 --documents a --to transformers --bits 4 --kind session -o x
refused import $golden/transformers-llama.safetensors --heads 3 -o x
refused import $golden/llama-f16.bin --heads 1 --layout slthd -o x
refused export data/kv.h5 --documents a --to numpy --layout slbtd -o x.npy
refused export data/kv.h5 --documents a --to sglang --layout lbhtd -o x
refused export data/kv.h5 --documents a --to llama --key-pairs halves --window-layers 99 -o x
refused export data/kv.h5 --documents a --to llama --key-pairs halves --window-layers 0-3 -o x
refused export data/kv.h5 --documents a --to mlx --group 16 -o x
ls x x.npy 2>/dev/null || echo "nothing was written"

# A command replaces its inputs only with --force.
cp data/kv.h5 kv.h5
cp data/sparse.h5 data/dict.h5 .
cp $golden/transformers-llama.safetensors cache.safetensors
echo "1 2 3 4 5 6 7 8 9" >ids.txt
refused export kv.h5 --documents a --to transformers -o kv.h5 --overwrite
refused export sparse.h5 --book dict.h5 --documents a --to transformers -o dict.h5 --overwrite
refused import cache.safetensors -o cache.safetensors --overwrite
refused import cache.safetensors --ids ids.txt -o ids.txt --overwrite
cmp kv.h5 data/kv.h5 && cmp dict.h5 data/dict.h5 && cmp cache.safetensors $golden/transformers-llama.safetensors
kvcodec import cache.safetensors -o whole.h5 >/dev/null
kvcodec import cache.safetensors -o cache.safetensors --force >/dev/null
kvcodec eval-recon whole.h5 cache.safetensors --json | jq -c '.reconstructions[0] | [.key.max_error, .value.max_error]'
kvcodec export kv.h5 --documents a --to transformers -o whole.safetensors >/dev/null
kvcodec export kv.h5 --documents a --to transformers -o kv.h5 --force >/dev/null
cmp kv.h5 whole.safetensors && echo "the same with --force"

# Folders: files of an earlier export are removed, inputs and other files stay.
kvcodec export data/kv.h5 --documents a --to lmcache --page 64 -o chunks --quiet >/dev/null
echo mine >chunks/notes
refused export data/kv.h5 --documents b --to lmcache --page 128 -o chunks
kvcodec export data/kv.h5 --documents b --to lmcache --page 128 -o chunks --overwrite --quiet --json | jq -c .files
ls chunks
kvcodec import chunks/*.data --heads 2 -o chunks.h5 --json | jq -c '[.tokens, .notes]'
cp data/kv.h5 chunks/000001.data
refused export chunks/000001.data --documents c --to lmcache -o chunks --overwrite
cmp chunks/000001.data data/kv.h5 && ls chunks
kvcodec export chunks/000001.data --documents c --to lmcache -o chunks --force --quiet --json | jq -c .files
kvcodec export data/kv.h5 --documents c --to lmcache -o wanted --quiet >/dev/null
cmp wanted/000000.data chunks/000000.data && ls chunks
# --force writes into an existing folder, like --overwrite.
kvcodec export data/kv.h5 --documents a --to vllm -o wanted --force --quiet >/dev/null && ls wanted | wc -l

# A turned cache is exported in its original form, and to another type unturned.
mkdir plain
cp $golden/llama-q8_0.bin turned.bin
kvcodec import turned.bin --heads 1 --rotated 32,32 -o turned.h5 >/dev/null
kvcodec export turned.h5 --to llama -o same.bin >/dev/null && cmp same.bin turned.bin && echo "as it was"
for options in "--type f32" "--type f32 --rotated 0,0" "--rotated 0,0"; do
  kvcodec export turned.h5 --to llama $options -o plain/turned.bin --overwrite >/dev/null
  kvcodec import plain/turned.bin --heads 1 --rotated 0,0 -o plain.h5 --overwrite >/dev/null
  kvcodec eval-recon turned.h5 plain.h5 --json | jq -c '.reconstructions[0] | [.key.snr_db, .value.snr_db] | map(. == null or . > 30)'
done
# For a part of a document the list of tokens ends with it.
kvcodec import $golden/llama-gap.bin --heads 1 -o gap.h5 >/dev/null
kvcodec encode gap.h5 --codec lossless -o gap-codes.h5 >/dev/null
kvcodec decode gap-codes.h5 --tokens 0:4 -o part.h5 --quiet >/dev/null
kvcodec export part.h5 --to llama -o part.bin --quiet >/dev/null
od -An -t d4 -j 8 -N 32 part.bin
# Documents of equal names: the same tokens once; other tokens are refused, or those of the later file stay.
make_kv --layers 4 --heads 2 --dim 16 --document a:0:50 -o shorter.h5
kvcodec export data/kv.h5 --documents a --to transformers --quiet -o a-1.safetensors >/dev/null
kvcodec export shorter.h5 --to transformers --quiet -o a-2.safetensors >/dev/null
kvcodec import a-1.safetensors a-1.safetensors --quiet --json -o once.h5 | jq -c '[.documents, .tokens, .stored_before]'
refused import a-1.safetensors a-2.safetensors -o x.h5
kvcodec import a-1.safetensors a-2.safetensors --replace --quiet --json -o later.h5 | jq -c '[.documents, .tokens, .replaced]'
