# A cache of transformers is exported, coded and imported again, and the model continues with the same tokens; needs transformers.
set -e
python=$(for p in python3 /usr/bin/python3; do $p -c "import h5py, numpy, torch, transformers, safetensors" 2>/dev/null && echo $p && break; done) || true
if [ -z "$python" ]; then
  echo "there is no Python with transformers, torch, safetensors and h5py"
  exit 77
fi
PYTHONPATH=src/formats/python PYTHONDONTWRITEBYTECODE=1 KVCODEC=$(command -v kvcodec)
export PYTHONPATH PYTHONDONTWRITEBYTECODE KVCODEC
exec $python src/test/cli/cases/interop_transformers/round_trip.py 2>round_trip.err
