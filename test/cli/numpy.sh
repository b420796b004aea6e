# For a case to source: $python, a Python with NumPy, and the package kvfiles for it. Without one the case is skipped.
python=$(for p in python3 /usr/bin/python3; do $p -c "import numpy" 2>/dev/null && echo $p && break; done) || true
if [ -z "$python" ]; then
  echo "there is no Python with NumPy"
  exit 77
fi
PYTHONPATH=src/formats/python PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH PYTHONDONTWRITEBYTECODE
