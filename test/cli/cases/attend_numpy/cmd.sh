# Outputs and errors are those that NumPy computes from the same files: for a codec that multiplies symbols, for layers coded
# together, and for codes of a part of each document.
set -e
python=$(for p in python3 /usr/bin/python3; do $p -c "import h5py, numpy" 2>/dev/null && echo $p && break; done) || true
if [ -z "$python" ]; then
  echo "there is no Python with h5py and NumPy"
  exit 77
fi
check() { # CODES
  kvcodec decode $1 --dtype f32 --overwrite -o recon.h5 >/dev/null
  kvcodec attend $1 --queries data/demo.h5 --json --overwrite -o out.h5 >report.json
  $python src/test/cli/cases/attend_numpy/compare.py data/demo.h5 recon.h5 out.h5 report.json
}
kvcodec encode data/demo.h5 --codec kvcomp --preset paper --block 16 --window 20 --key-rel 0.05 --quiet -o kvcomp.h5 >/dev/null
check kvcomp.h5
kvcodec train-dict data/demo.h5 --atoms 64 --layer-group 4 --sparsity 8 --epochs 1 --quiet -o dict.h5 >/dev/null
kvcodec encode data/demo.h5 --codec sparse --preset paper --no-pack --book dict.h5 --sparsity 8 --embed-book -o sparse.h5 >/dev/null
check sparse.h5
kvcodec decode kvcomp.h5 --tokens 10:40 -o part.h5 >/dev/null
kvcodec encode part.h5 --codec kvcomp --preset paper --block 7 --window 5 --quiet -o part-codes.h5 >/dev/null
check part-codes.h5
