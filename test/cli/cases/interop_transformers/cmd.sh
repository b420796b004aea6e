# Caches of transformers are stored, coded and restored, and the model continues with the same tokens; needs transformers.
set -e
python=$(for p in "$KVCODEC_TEST_PYTHON" python3 /usr/bin/python3; do [ "$p" ] && $p -c "import numpy, torch, transformers, safetensors" 2>/dev/null && echo $p && break; done) || true
if [ -z "$python" ]; then
  echo "there is no Python with transformers, torch and safetensors"
  exit 77
fi
PYTHONPATH=src/formats/python PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
KVCODEC_LIBRARY=$(dirname "$(command -v kvcodec)")/libkvcodec.so
export PYTHONPATH PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS KVCODEC_LIBRARY
cases=src/test/cli/cases/interop_transformers
$python $cases/round_trip.py 2>round_trip.err || { cat round_trip.err; exit 1; }
$python $cases/families.py 2>families.err || { cat families.err; exit 1; }
