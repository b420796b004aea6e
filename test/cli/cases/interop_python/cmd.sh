# The module kvcodec.py reads files like kvcodec, and decodes codes like kvcodec.
set -e
python=$(for p in python3 /usr/bin/python3; do $p -c "import h5py, numpy" 2>/dev/null && echo $p && break; done) || true
if [ -z "$python" ]; then
  echo "there is no Python with h5py and NumPy"
  exit 77
fi
PYTHONPATH=src/formats/python
PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH PYTHONDONTWRITEBYTECODE
for dtype in bf16 f16; do
  make_kv --layers 2 --heads 2 --dim 16 --document a:0:150 --document none:0:0 --document b:0:70 --dtype $dtype -o $dtype.h5
  kvcodec encode $dtype.h5 --codec none -o $dtype-none.h5 --quiet >/dev/null
  kvcodec encode $dtype.h5 --codec lossless -o $dtype-lossless.h5 --quiet >/dev/null
  kvcodec encode $dtype.h5 --codec fp8 -o $dtype-fp8.h5 --quiet >/dev/null
  kvcodec encode $dtype.h5 --codec q4 --bits 4 -o $dtype-q4.h5 --quiet >/dev/null
  kvcodec encode $dtype.h5 --codec q4 --bits 3 --rotate hadamard --sink 4 --window 8 -o $dtype-turned.h5 --quiet >/dev/null
  kvcodec encode $dtype.h5 --codec kivi --bits 2 --window 16 -o $dtype-kivi.h5 --quiet >/dev/null
  kvcodec encode $dtype.h5 --codec kivi --bits 3 --window 16 --sink 5 -o $dtype-sink.h5 --quiet >/dev/null
  kvcodec encode $dtype.h5 --codec kvcomp -o $dtype-kvcomp.h5 --quiet >/dev/null
done
make_kv --layers 2 --heads 2 --dim 16 --document c:0:40 --dtype f16 -o more.h5
kvcodec encode data/kv.h5 --codec sparse --book data/dict.h5 -o sparse.h5 --quiet >/dev/null
KVCODEC=$(command -v kvcodec)
export KVCODEC
$python src/test/cli/cases/interop_python/compare.py "$SOURCE"
# Its output is a regular kv file.
for name in one batch windows shapes; do
  kvcodec info $name.h5 | grep -E '^(shape |layers |elements|tokens)' | tr -s ' '
  kvcodec encode $name.h5 --codec lossless -o codes.h5 --overwrite --quiet >/dev/null
done
kvcodec info --json windows.h5 | jq -c .held_tokens
