# Interrupted training continues as if it had not been interrupted; other data or other options are refused.
. src/test/cli/refused.sh
set -e
train="--atoms 48 --sparsity 4 --batch 128 --tolerance 0 --quiet"
kvcodec train-dict data/kv.h5 $train --epochs 4 -o once.h5 >/dev/null
kvcodec train-dict data/kv.h5 $train --epochs 4 --steps 17 -o half.h5 >/dev/null
kvcodec train-dict data/kv.h5 --resume half.h5 --steps 0 --quiet -o resumed.h5 >/dev/null
kvcodec info once.h5 | grep ^digest >once.txt
kvcodec info resumed.h5 | grep ^digest | cmp - once.txt && echo "same dictionary"
kvcodec info resumed.h5 | sed -n '/^history/,$p'
set +e
refused train-dict data/whole.h5 --resume half.h5 -o x.h5
refused train-dict data/kv.h5 --resume half.h5 --layers 0 -o x.h5
refused train-dict data/kv.h5 --resume half.h5 --atoms 64 -o x.h5
refused train-dict data/kv.h5 --resume data/kv.h5 -o x.h5
refused train-dict data/kv.h5 data/wide.h5 --atoms 64 --sparsity 4 -o x.h5
