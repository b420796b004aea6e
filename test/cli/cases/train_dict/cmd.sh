# Training on several caches and on a sample, and the content of the result.
. src/test/cli/refused.sh
set -e
kvcodec train-dict data/kv.h5 data/part-2.h5 --atoms 48 --sparsity 4 --epochs 1 --batch 200 --validation 0.1 --json -o both.h5 |
  grep -E '"(atoms|width|signals|steps)"'
kvcodec train-dict data/whole.h5 --max-tokens 300 --atoms 48 --sparsity 4 --epochs 2 --batch 200 --layer-group 2 --json -o sample.h5 |
  grep -E '"(atoms|width|signals|steps)"'
kvcodec train-dict data/whole.h5 --signal head --layers 2,3 --documents b --atoms 48 --sparsity 4 --epochs 1 --batch 200 --json -o heads.h5 |
  grep -E '"(atoms|width|signals|steps)"'
kvcodec encode data/whole.h5 --codec sparse --preset paper --no-pack --book heads.h5 --layers 2-3 -o codes.h5 >/dev/null
kvcodec decode codes.h5 --book heads.h5 --json -o recon.h5 | tr -d ' \n' | sed 's/,"seconds.*//'
echo
kvcodec train-dict data/kv.h5 --atoms 48 --sparsity 4 --batch 200 --steps 2 --validation 0.2 --json -o held.h5 | grep -c '"loss_held_out": [0-9]'
kvcodec train-dict data/kv.h5 --atoms 48 --sparsity 4 --seconds 1e-9 --json -o time.h5 | grep '"ended_by"'
kvcodec train-dict data/kv.h5 --atoms 262144 --sparsity 4 --memory 64M -o large.h5 || echo "exit $?"
kvcodec train-dict data/wide.h5 --documents a --layers 0 --atoms 61 --sparsity 4 --epochs 1 -o little.h5 | grep -c "^key"

# Dictionaries of groups of layers, in one file: better at the same number of atoms, larger, and resumed like one.
kvcodec train-dict data/whole.h5 --dict-scope group --layer-group 2 --atoms 48 --sparsity 4 --batch 200 --epochs 2 --json -o groups.h5 |
  grep -E '"(key|value|0|2|steps|book_bytes)"'
kvcodec train-dict data/whole.h5 --layer-group 2 --atoms 48 --sparsity 4 --batch 200 --epochs 2 --json -o one.h5 | grep -E '"book_bytes"'
kvcodec info groups.h5 | grep -o 'dict-scope [a-z]*'
for dict in groups one; do
  kvcodec encode data/whole.h5 --codec sparse --preset paper --no-pack --book $dict.h5 --embed-book -o $dict-codes.h5 >/dev/null
  kvcodec decode $dict-codes.h5 -o $dict-kv.h5 >/dev/null
  kvcodec eval-recon data/whole.h5 $dict-kv.h5 --rate $dict-codes.h5 --json | grep '"nmse"' | head -n 1 | grep -o '[0-9.e-]*' | tail -n 1 >$dict.nmse
done
[ "$(cat groups.nmse | awk '{ printf "%.6f", $1 }')" != "$(awk '{ printf "%.6f", $1 }' one.nmse)" ]
awk 'NR == 1 { groups = $1 } NR == 2 { print (groups < $1 ? "groups leave less" : "groups leave more") }' groups.nmse one.nmse
kvcodec train-dict data/whole.h5 --dict-scope group --layer-group 2 --atoms 48 --sparsity 4 --batch 200 --epochs 1 -o half.h5 >/dev/null
kvcodec train-dict data/whole.h5 --resume half.h5 --epochs 2 -o resumed.h5 >/dev/null
for dict in groups resumed; do kvcodec info $dict.h5 --json | grep '"digest"'; done | uniq | wc -l
kvcodec train-dict data/whole.h5 --dict-scope layer --layers 1,3 --atoms 48 --sparsity 4 --batch 200 --epochs 1 -o some.h5 | cut -d ' ' -f 1,2 | grep '[0-9]$'
kvcodec encode data/whole.h5 --codec sparse --preset paper --no-pack --book some.h5 --layers 1,3 -o some-codes.h5 >/dev/null
kvcodec encode data/whole.h5 --codec sparse --preset paper --no-pack --book some.h5 -o x.h5 || echo "exit $?"
kvcodec train-dict data/whole.h5 --dict-scope layer --layer-group 2 --atoms 48 --sparsity 4 -o x.h5 || echo "exit $?"

# The paper's training, and an option that overrides it; it is for trainings that begin.
options='.start, .optimizer, ."learning-rate", .normalize, .center, ."replace-every", ."atom-type", .sparsity, .batch, .epochs'
for center in "" "--center channel"; do
  kvcodec train-dict data/kv.h5 --preset paper $center --atoms 48 --sparsity 4 --batch 200 --overwrite -o paper.h5 >/dev/null
  kvcodec info paper.h5 --json | jq -c ".parameters | [$options]"
done
set +e
refused train-dict data/kv.h5 --preset paper --resume half.h5 -o x.h5
refused train-dict data/kv.h5 --preset papers -o x.h5
