# Training on several caches, on a sample, and what the result says.
set -e
kvcodec train-dict data/kv.h5 data/part-2.h5 --atoms 48 --sparsity 4 --epochs 1 --batch 200 --validation 0.1 --json -o both.h5 |
  grep -E '"(atoms|width|signals|steps)"'
kvcodec train-dict data/whole.h5 --max-tokens 300 --atoms 48 --sparsity 4 --epochs 2 --batch 200 --layer-group 2 --json -o sample.h5 |
  grep -E '"(atoms|width|signals|steps)"'
kvcodec train-dict data/whole.h5 --signal head --layers 2,3 --documents b --atoms 48 --sparsity 4 --epochs 1 --batch 200 --json -o heads.h5 |
  grep -E '"(atoms|width|signals|steps)"'
kvcodec encode data/whole.h5 --codec sparse --book heads.h5 --layers 2-3 -o codes.h5 >/dev/null
kvcodec decode codes.h5 --book heads.h5 --json -o recon.h5 | tr -d ' \n' | sed 's/,"seconds.*//'
echo
kvcodec train-dict data/kv.h5 --atoms 48 --sparsity 4 --batch 200 --steps 2 --validation 0.2 --json -o held.h5 | grep -c '"loss_held_out": [0-9]'
kvcodec train-dict data/kv.h5 --atoms 48 --sparsity 4 --seconds 1e-9 --json -o time.h5 | grep '"ended_by"'
kvcodec train-dict data/kv.h5 --atoms 4096 --sparsity 4 --optimizer online --memory 64M -o products.h5 || echo "exit $?"
kvcodec train-dict data/wide.h5 --documents a --layers 0 --atoms 61 --sparsity 4 --epochs 1 -o little.h5 | grep -c "^key"
