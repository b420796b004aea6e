# The package kvfiles reads files like kvcodec, decodes codes like kvcodec, and checks what it is given. Damage is done by h5py, where it is.
set -e
python=$(for p in python3 /usr/bin/python3; do $p -c "import h5py, numpy" 2>/dev/null && echo $p && break; done) ||
  python=$(for p in python3 /usr/bin/python3; do $p -c "import numpy" 2>/dev/null && echo $p && break; done) || true
if [ -z "$python" ]; then
  echo "there is no Python with NumPy"
  exit 77
fi
cases=src/test/cli/cases/interop_python
PYTHONPATH=src/formats/python PYTHONDONTWRITEBYTECODE=1
KVCODEC_LIBRARY=$(dirname "$(command -v kvcodec)")/libkvcodec.so
export PYTHONPATH PYTHONDONTWRITEBYTECODE KVCODEC_LIBRARY
encode() { kvcodec encode "$@" --quiet >/dev/null; }

for dtype in bf16 f16; do
  make_kv --layers 2 --heads 2 --dim 16 --document a:0:150 --document none:0:0 --document b:9:70 --dtype $dtype -o $dtype.h5
  encode $dtype.h5 --codec none -o $dtype-none.h5
  encode $dtype.h5 --codec lossless -o $dtype-lossless.h5
  encode $dtype.h5 --codec fp8 -o $dtype-fp8.h5
  encode $dtype.h5 --codec q4 --bits 4 -o $dtype-q4.h5
  encode $dtype.h5 --codec q4 --bits 3 --rotate hadamard --sink 4 --window 8 -o $dtype-turned.h5
  encode $dtype.h5 --codec kivi --bits 2 --window 16 --sink 5 -o $dtype-kivi.h5
  encode $dtype.h5 --codec kvcomp -o $dtype-kvcomp.h5
done
encode bf16.h5 --codec selfindex -o bf16-selfindex.h5
encode bf16.h5 --codec kvcomp+q4 -o bf16-pair.h5
encode data/kv.h5 --codec sparse --book data/dict.h5 -o sparse.h5
encode data/kv.h5 --codec sparse --book data/dict-2.h5 -o sparse-2.h5
kvcodec train-rvq data/kv.h5 --entries-value 16 --entries-low 16 --entries-high 32 --codebooks-value 4 --refits 0 --epochs 1 --quiet -o rvq-book.h5 >/dev/null
encode data/kv.h5 --codec rvq --book rvq-book.h5 -o rvq.h5
make_kv --layers 4 --heads 2 --dim 16 --document t:0:2100 -o train.h5
for sides in joint apart; do
  kvcodec train-transform train.h5 --sides $sides --layer-group 1 --quiet -o $sides-book.h5 >/dev/null
  encode data/kv.h5 --codec transform --book $sides-book.h5 --bits 2 -o $sides.h5
done
make_kv --layers 2 --heads 2 --dim 16 --document c:0:90 --document d:0:12 --window 20 --window 0 -o windows-kv.h5
encode windows-kv.h5 --codec lossless -o windows-lossless.h5
encode windows-kv.h5 --codec kvcomp -o windows-kvcomp.h5
make_kv --layers 3 --heads 4 --shape 2:16:8 --shape 4:8:8 --shape 1:16:16 --document e:0:80 -o shapes-kv.h5
encode shapes-kv.h5 --codec q4 -o shapes-q4.h5
$python $cases/compare.py bf16.h5 f16.h5 windows-kv.h5 shapes-kv.h5 data/f32.h5 bf16-*.h5 f16-*.h5 sparse.h5=data/dict.h5 sparse-2.h5=data/dict-2.h5 \
  rvq.h5=rvq-book.h5 joint.h5=joint-book.h5 apart.h5=apart-book.h5 windows-lossless.h5 windows-kvcomp.h5 shapes-q4.h5

make_kv --layers 2 --heads 1 --dim 24 --shape 1:24:in:16 --shape of:0 --q-heads 2 --document f:0:30 -o latent.h5
make_kv --layers 2 --heads 2 --dim 16 --document c:0:40 --dtype f16 -o more.h5
make_kv --layers 2 --heads 2 --dim 16 --document a:0:30 --document a:0:40 -o twins.h5
$python $cases/read.py
(
  numpy_python=$python
  . src/test/cli/far_server.sh
  cp f16-q4.h5 served/
  $numpy_python $cases/far.py $url/files/f16-q4.h5 f16-q4.h5
)
$python $cases/given.py
# Its output is a regular kv file.
for name in one batch windows shapes; do
  kvcodec check $name.h5 --quiet >/dev/null
  kvcodec info $name.h5 | grep -E '^(shape |layers |elements|tokens)' | tr -s ' '
  encode $name.h5 --codec lossless -o codes.h5 --overwrite
done
kvcodec info --json windows.h5 | jq -c .held_tokens
# Threads wait without spinning, and the environment stays as it was; where NumPy brings OpenMP itself, what it chose stays.
waits() { env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT OMP_DISPLAY_ENV=verbose $python -c "$1" 2>&1 | grep -o "GOMP_SPINCOUNT = '[0-9]*'"; }
if waits "import numpy" >/dev/null; then
  echo "GOMP_SPINCOUNT = '0'"
else
  waits "import kvfiles, os; kvfiles.release(); assert 'OMP_WAIT_POLICY' not in os.environ"
fi
$python $cases/damaged.py
