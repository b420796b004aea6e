# Models are distinguished by their weights, whatever their folders' names.
set -e
cp -r src/data/demo-model renamed
mkdir -p hub/models--org--name/snapshots/0123
cp src/data/demo-model/* hub/models--org--name/snapshots/0123
cp -r src/data/demo-model other
printf '\1' | dd of=other/model.safetensors bs=1 seek=4000000 conv=notrunc 2>/dev/null # one weight
export HF_HUB_CACHE=hub
printf 'Call me Ishmael. Some years ago, never mind how long precisely.\n' >a.txt
printf 'It is a truth universally acknowledged, that a single man must be in want of a wife.\n' >b.txt
kvcodec dump-kv --model src/data/demo-model --text a.txt --quiet -o demo.h5 >/dev/null
kvcodec dump-kv --model renamed --text b.txt --quiet -o renamed.h5 >/dev/null
kvcodec dump-kv --model org/name --text b.txt --quiet -o hub.h5 >/dev/null
kvcodec dump-kv --model other --text b.txt --quiet -o other.h5 >/dev/null
for file in demo renamed hub other; do kvcodec info $file.h5 --json | grep '"model": "'; done

# the same weights: joined, added to, coded with one book
kvcodec train-dict demo.h5 renamed.h5 --atoms 32 --sparsity 2 --epochs 1 --quiet -o dict.h5 >/dev/null
for cache in renamed hub; do
  kvcodec cat demo.h5 $cache.h5 -o joined.h5 --overwrite >/dev/null
  kvcodec encode demo.h5 --codec sparse --sparsity 2 --book dict.h5 --quiet -o codes.h5 --overwrite >/dev/null
  kvcodec encode $cache.h5 --append codes.h5 --book dict.h5 --quiet -o codes.h5 --overwrite >/dev/null
  kvcodec ls codes.h5 | wc -l
done

# others: refused
set +e # refusals fail, and say so themselves
. src/test/cli/refused.sh
mkdir lora
echo '{"base_model_name_or_path": "org/name", "peft_type": "LORA"}' >lora/adapter_config.json
refused cat demo.h5 other.h5 -o x.h5
refused encode other.h5 --append codes.h5 --book dict.h5 -o x.h5
refused encode other.h5 --codec sparse --sparsity 2 --book dict.h5 -o x.h5
refused train-dict demo.h5 other.h5 --atoms 32 --sparsity 2 -o x.h5
refused eval-model --model other --text b.txt --chunk 16 --codec sparse:sparsity=2,book=dict.h5
kvcodec encode demo.h5 --codec sparse --sparsity 2 --book dict.h5 --embed-book --quiet -o embedded.h5 >/dev/null
refused eval-model --model other --text b.txt --chunk 16 --codec embedded.h5
kvcodec sensitivity --model other --text src/LICENSE --chunk 64 --max-documents 1 --quiet -o other-costs.h5 >/dev/null
refused encode demo.h5 --codec kvcomp --max-error 0.3 --weights other-costs.h5 -o x.h5
refused encode demo.h5 --codec q4 --total-bits 8 --weights other-costs.h5 -o x.h5
refused train-dict demo.h5 --weights other-costs.h5 --atoms 32 --sparsity 2 -o x.h5
refused train-transform demo.h5 --weights other-costs.h5 -o x.h5
refused eval-model --model src/data/demo-model --text b.txt --chunk 16 --codec kvcomp:max-error=0.3,weights=other-costs.h5
refused choose demo.h5 --total-bits 8 --weights other-costs.h5 --quiet
refused choose other.h5 --total-bits 8 --codecs sparse --book dict.h5 --quiet
refused choose demo.h5 --total-bits 8 --codecs kvcomp --model other --text src/LICENSE --quiet
refused encode demo.h5 --codec kvcomp --max-nll 0.1 --model other --text src/LICENSE -o x.h5
refused dump-kv --model org/else --text a.txt -o x.h5
refused dump-kv --model lora --text a.txt -o x.h5
ls x.h5 2>/dev/null || true
