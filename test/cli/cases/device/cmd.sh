# With a device (here its emulation on the CPU) every command that can use one gives the same files as without. It names the work that
# it leaves to the CPU, once and only if the device was requested. Commands that cannot use a device refuse it.
. src/test/cli/refused.sh
set -e
# same ARGUMENTS…: runs kvcodec_emulated on the CPU and on the device; the products must be the same bytes.
same() {
  for device in cpu cuda; do
    kvcodec_emulated "$@" --device $device -o out.h5 >/dev/null 2>$device.txt
    mv out.h5 $device.h5
  done
  cmp cpu.h5 cuda.h5 && echo "$*: the same"
  cat cpu.txt
  sed 's/^/  /' cuda.txt
}
# same_with_auto ARGUMENTS…: also with auto, which does not name the work left to the CPU. The emulation is slow: one command is enough.
same_with_auto() {
  same "$@"
  kvcodec_emulated "$@" --device auto -o out.h5 >/dev/null 2>auto.txt
  mv out.h5 auto.h5
  cat auto.txt
  cmp cpu.h5 auto.h5 && echo "  with auto too"
}

# The training data are larger than the coded data: two documents, more tokens than two blocks or the exact ones at their ends.
make_kv --layers 4 --heads 2 --dim 16 --document a:0:90 --document b:0:30 -o small.h5
train="--entries-value 16 --entries-low 16 --entries-high 32 --codebooks-value 4 --refits 0 --epochs 1 --quiet"
kvcodec train-rvq data/kv.h5 $train -o books.h5 >/dev/null
kvcodec train-dict data/kv.h5 --atoms 32 --sparsity 4 --epochs 1 --atom-type f32 --quiet -o dict.h5 >/dev/null
make_kv --layers 4 --heads 2 --dim 16 --document a:0:1200 --document b:0:1200 -o many.h5
kvcodec train-transform many.h5 --quiet -o transform.h5 >/dev/null
for codec in "transform --book transform.h5 --bits 2 --block 16" "rvq --book books.h5 --beam 1 --window 30" "rvq --book books.h5 --beam 3 --window 40" "kvcomp --no-unit-heads --block 16" \
  "kvcomp --block 33" "selfindex --exact-tokens 8" "sparse --book dict.h5" \
  "sparse --book data/dict.h5" "fp8"; do
  case $codec in  # one codec that the device codes, and below one that it does not
    "kvcomp --no-unit-heads --block 16") same_with_auto encode small.h5 --codec $codec ;;
    *) same encode small.h5 --codec $codec ;;
  esac
  mv cuda.h5 codes.h5
  book=$(echo "$codec" | sed -n 's/.*\(--book [a-z0-9./]*\).*/\1/p')
  same decode codes.h5 $book
done
same_with_auto encode small.h5 --codec kvcomp --no-unit-heads --sink 0 --block 16 --entropy rans
mv cuda.h5 codes.h5
same_with_auto decode codes.h5
kvcodec_emulated encode data/part-1.h5 --codec kvcomp --preset paper --block 16 --window 20 --device cuda -o part.h5 >/dev/null
same encode data/part-2.h5 --append part.h5 --continue

# Training: signals, codes and atoms stay on the device.
training="--atoms 32 --sparsity 3 --steps 4 --batch 50 --replace-every 2"
same train-dict data/kv.h5 $training --optimizer adam
same train-dict data/kv.h5 $training --optimizer gradient --atom-type f32
same_with_auto train-dict data/kv.h5 $training --start kaiming
mv cuda.h5 trained.h5
same train-dict data/kv.h5 --resume trained.h5 --steps 6
same encode small.h5 --codec sparse --preset paper --no-pack --book dict.h5 --error-target 0.5 --coefficients i8

# Sums of attention run in another order; the difference is rounding.
kvcodec dump-kv --model src/data/demo-model --text src/LICENSE --chunk 64 --max-tokens 128 --queries last:4 --quiet -o few.h5 >/dev/null
kvcodec encode few.h5 --codec selfindex --preset paper --exact-tokens 4 -o index-codes.h5 >/dev/null
same_with_auto select index-codes.h5 --queries few.h5 --budget 8
mv cuda.h5 selection.h5
same_with_auto index few.h5 --clusters 4 --sink 8
kvcodec encode few.h5 --codec kvcomp --preset paper --block 16 --window 20 --quiet -o products.h5 >/dev/null
attended() {
  for device in cpu cuda; do
    kvcodec_emulated attend "$@" --queries few.h5 --device $device --json -o $device-out.h5 2>$device.txt |
      awk -F'[:,]' '/"relative_error"/ { printf "%.5f\n", $2 }' >$device.errors
  done
  cmp cpu.errors cuda.errors && echo "attend $*: the same errors"
  cat cpu.txt
  sed 's/^/  /' cuda.txt
  kvcodec info cuda-out.h5 | sed -n 's/.*kvcodec attend .* \(--device cuda\)$/  history ends in \1/p'
  rm cpu-out.h5 cuda-out.h5
}
attended products.h5
kvcodec train-dict few.h5 --atoms 40 --sparsity 4 --epochs 1 --atom-type f32 --quiet -o few-dict.h5 >/dev/null
kvcodec encode few.h5 --codec sparse --preset paper --no-pack --book few-dict.h5 -o sparse-codes.h5 >/dev/null
attended sparse-codes.h5 --book few-dict.h5
attended index-codes.h5
attended index-codes.h5 --select selection.h5

# A model's floats on a device are those of the CPU but for rounding.
for device in cpu cuda; do
  kvcodec_emulated dump-kv --model src/data/demo-model --text src/LICENSE --chunk 40 --max-tokens 40 --dtype f32 \
    --device $device -o $device-kv.h5 >/dev/null 2>$device.txt
  cat $device.txt
done
kvcodec eval-recon cpu-kv.h5 cuda-kv.h5 --json |
  awk -F'[:,]' '/"nmse"/ { ++n; if ($2 > 1e-11) print "far off:" $2 } END { print (n > 0 ? "dump-kv: the same but for rounding" : "nothing") }'
kvcodec info cuda-kv.h5 | sed -n 's/.*kvcodec dump-kv .* \(--device cuda\)$/  history ends in \1/p'

# Measures of a model on a device equal those of the CPU except for rounding, also its continuations after caches that the device decodes.
# Values that go through a codec are rounded to at most 8 bits: now and then one falls on the other side, which changes the third digit.
# measured TOLERANCE TOKENS ARGUMENTS…: the first measure is that of the model without a codec.
measured() {
  local tolerance=$1 tokens=$2
  shift 2
  for device in cpu cuda; do
    kvcodec_emulated eval-model --model src/data/demo-model --text src/LICENSE --chunk $tokens --threads 2 "$@" \
      --device $device --json 2>$device.txt >$device.json
    sed -n 's/^ *\("device": ".*"\),/  \1/p' $device.json
    tr -d ' \n' <$device.json | grep -o '"nll":{"mean":[0-9.]*' | sed 's/.*://' >$device.nll
  done
  paste cpu.nll cuda.nll | awk -v what="$*" -v most=$tolerance '{ if ($1 - $2 > most || $2 - $1 > most) print "far off: " $0 }
    NR == 1 && ($1 - $2 > 1e-5 || $2 - $1 > 1e-5) { print "far off: " $0 } END { print "eval-model " what ": " NR " the same but for rounding" }'
  cat cpu.txt
  sed 's/^/  /' cuda.txt
}
measured 5e-3 40 --max-documents 1 --codec kvcomp:preset=paper,block=16,window=3 --codec fp8
# A device makes choices by clusters from 32 at a time on, of a key/value head of a document.
# Quantization plays no part in them, so that another choice of a few tokens shows.
measured 1e-5 120 --max-documents 1 --prefix 80 --codec none:select=clusters,budget=20

# Codes say whether a device can work with them.
for codec in sparse kvcomp selfindex kivi; do
  kvcodec info data/$codec.h5 | sed -n "s/^device */$codec: /p"
  kvcodec info data/$codec.h5 --json | grep '"device_twin"'
done

for command in "pack-indices data/sparse.h5 -o x.h5" "info data/kv.h5" "report x.json -o x.html" "eval-recon data/kv.h5 data/kv.h5"; do
  kvcodec_emulated $command --device cuda && echo "not refused: $command" || echo "  status $?"
done 2>&1
