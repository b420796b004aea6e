# eval-recon agrees with NumPy on the same files, and h5py reads every dataset, including bf16.
set -e
python=$(for p in python3 /usr/bin/python3; do $p -c "import h5py, numpy" 2>/dev/null && echo $p && break; done) || true
if [ -z "$python" ]; then
  echo "there is no Python with h5py and NumPy"
  exit 77
fi
kvcodec encode data/demo.h5 --codec kivi --preset paper --bits 3 --window 16 --key-group 16 --quiet -o kivi-codes.h5 >/dev/null
kvcodec decode kivi-codes.h5 -o kivi.h5 >/dev/null
kvcodec decode data/none.h5 -o none.h5 >/dev/null
kvcodec decode data/sparse.h5 --book data/dict.h5 -o sparse.h5 >/dev/null
kvcodec pack-indices data/sparse.h5 -o packed.h5 >/dev/null
compare=src/test/cli/cases/numpy_agrees/compare.py
kvcodec eval-recon data/demo.h5 kivi.h5 --json >eval.json
$python $compare data/demo.h5 kivi.h5 eval.json data/demo.h5 kivi-codes.h5 kivi.h5
kvcodec eval-recon data/kv.h5 sparse.h5 --json >eval.json
$python $compare data/kv.h5 sparse.h5 eval.json data/kv.h5 data/dict.h5 data/sparse.h5 packed.h5 sparse.h5
kvcodec eval-recon data/kv.h5 none.h5 --json >eval.json
$python $compare data/kv.h5 none.h5 eval.json data/none.h5 data/f16.h5 data/f32.h5
