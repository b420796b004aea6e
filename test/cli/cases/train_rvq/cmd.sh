# Codebooks: training and resuming it, codes that grow equal those encoded at once, ids packed or not, books that do not fit.
. src/test/cli/refused.sh
set -e
train="--entries-value 16 --entries-low 16 --entries-high 32 --codebooks-value 4 --refits 0 --quiet"
kvcodec train-rvq data/kv.h5 $train --epochs 4 --json -o once.h5 >once.json
grep -E '"(codebooks|dimensions|entries|epochs|vectors)"' once.json
kvcodec train-rvq data/kv.h5 $train --epochs 2 -o first.h5 >/dev/null
kvcodec train-rvq data/kv.h5 --resume first.h5 --epochs 4 --quiet --json -o resumed.h5 | grep '"digest"' >resumed.txt
grep '"digest"' once.json | cmp - resumed.txt
for options in "--beam 1 --sink 4 --window 50" "--beam 4 --sink 9 --window 0"; do
  kvcodec encode data/part-1.h5 --codec rvq --book once.h5 $options -o part.h5 --overwrite --quiet >/dev/null
  kvcodec encode data/part-2.h5 --append part.h5 --continue --book once.h5 -o grown.h5 --overwrite --quiet >/dev/null
  kvcodec encode data/whole.h5 --codec rvq --book once.h5 $options -o whole.h5 --overwrite --quiet >/dev/null
  kvcodec decode grown.h5 --book once.h5 -o grown-kv.h5 --overwrite >/dev/null
  kvcodec decode whole.h5 --book once.h5 -o whole-kv.h5 --overwrite >/dev/null
  kvcodec eval-recon whole-kv.h5 grown-kv.h5 | sed -n 's/^all/grown:/p'
  kvcodec pack-indices grown.h5 -o packed.h5 --overwrite >/dev/null
  kvcodec decode packed.h5 --book once.h5 --tokens 100: -o packed-kv.h5 --overwrite >/dev/null
  kvcodec eval-recon whole-kv.h5 packed-kv.h5 | sed -n 's/^all/packed:/p'
done
kvcodec eval-recon data/whole.h5 whole-kv.h5 --rate whole.h5 | grep 'VQKV'
for split in rope none; do
  kvcodec train-rvq data/kv.h5 $train --epochs 1 --split $split -o $split.h5 | grep -E "^(high dimensions|bits per value)"
done
kvcodec info once.h5 | grep -E "^(value|key)[/_a-z]* "
kvcodec train-rvq data/kv.h5 $train --epochs 1 --method simvq --batch 500 -o simvq.h5 | grep -c "^key_low"
# The papers' training, and options that override it.
for options in "" "--refits 1 --batch 500"; do
  kvcodec train-rvq data/kv.h5 --preset paper-3b --entries-value 16 --entries-low 16 --entries-high 16 --epochs 2 $options --quiet --overwrite \
    -o paper.h5 >/dev/null
  kvcodec info paper.h5 --json |
    jq -c '.parameters | [.method, .bias, .refits, ."entry-type", ."codebooks-value", ."codebooks-low", ."codebooks-high", .batch]'
done
# Codebooks do not depend on the processor and its kernels of OpenBLAS.
simvq="train-rvq data/kv.h5 --method simvq --entry-type f32 --epochs 2 --quiet --json --overwrite -o kernels.h5"
kvcodec $simvq | grep '"digest"' >kernels.txt
OPENBLAS_CORETYPE=Nehalem kvcodec $simvq | grep '"digest"' | cmp - kernels.txt

set +e
head -c 4000 once.h5 >truncated.h5
refused encode data/kv.h5 --codec rvq --book truncated.h5 -o x.h5 | sed 's/: eof = .*//'
refused decode whole.h5 --book rope.h5 -o x.h5 | sed 's/[0-9a-f]\{32\}/DIGEST/g'
refused decode whole.h5 -o x.h5 | sed 's/[0-9a-f]\{32\}/DIGEST/g'
refused encode data/kv.h5 --codec rvq --book data/dict.h5 -o x.h5
refused encode data/wide.h5 --codec rvq --book once.h5 -o x.h5
refused train-rvq data/wide.h5 --resume first.h5 -o x.h5
refused train-rvq data/kv.h5 --resume first.h5 --entries-low 8 -o x.h5
refused train-rvq data/kv.h5 --resume first.h5 --preset small -o x.h5
refused train-rvq data/kv.h5 --high-dims 3 -o x.h5
refused train-rvq data/kv.h5 --high-dims 16 -o x.h5
refused train-rvq data/kv.h5 --preset large -o x.h5
