#!/usr/bin/env bash
# Makes a wheel of a build, installs it into a fresh environment of Python without a network, and uses what is there.
# usage: wheel.sh SOURCE BUILD WORK        77 where the program is not built, or Python lacks what that needs
set -euo pipefail
source=$(realpath "$1") build=$(realpath "$2") work=$3
[[ -x $build/kvcodec ]] || { echo "kvcodec is not built"; exit 77; }
python=
for candidate in python3 /usr/bin/python3; do
  "$candidate" -c 'import ensurepip, h5py, numpy, venv, wheel' 2>/dev/null && python=$candidate && break
done
[[ $python ]] || { echo "there is no Python with venv, ensurepip, wheel, h5py and NumPy"; exit 77; }
rm -rf "$work"
mkdir -p "$work"
work=$(realpath "$work")
cmake --build "$build" --target wheel >"$work/wheel.log" 2>&1 || { cat "$work/wheel.log"; exit 1; }
# Only a program that contains its libraries may be marked as portable to other machines.
kind=manylinux_
libraries=$(ldd "$build/kvcodec")
[[ $libraries != *libhdf5* && $libraries != *libstdc* ]] || kind=linux_
[[ $(basename "$build"/dist/kvcodec-*.whl) == kvcodec-*-py3-none-${kind}* ]] || { echo "$(ls "$build"/dist/*.whl) is not for $kind"; exit 1; }

# h5py and NumPy are those of the system; nothing of kvcodec is.
"$python" -m venv --system-site-packages "$work/venv"
env -u PYTHONPATH "$work/venv/bin/python" -m pip install --quiet --no-deps --no-index --no-cache-dir --disable-pip-version-check \
  "$build"/dist/kvcodec-*.whl
cd "$work"
[[ $(venv/bin/kvcodec --version) == "$("$build/kvcodec" --version)" ]] || { echo "the wheel has another version of the program"; exit 1; }
for file in venv/share/man/man1/kvcodec-encode.1 venv/share/man/man7/kvcodec-interop.7 venv/share/bash-completion/completions/kvcodec; do
  [[ -s $file ]] || { echo "the wheel has no ${file#venv/}"; exit 1; }
done
[[ $(find venv/lib -path '*dist-info*' -name LICENSE) ]] || { echo "the wheel has no licence"; exit 1; }

# The module finds the program of its wheel, though none is on the PATH: it cannot decode these codes itself.
env -u PYTHONPATH -u KVCODEC PATH=/nowhere "$work/venv/bin/python" - <<'PYTHON'
import os, subprocess, sys
import numpy as np
import kvcodec
program = os.path.join(sys.prefix, "bin", "kvcodec")
said = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.split()
assert kvcodec.__version__ in said, f"the module is of version {kvcodec.__version__}, the program says {said}"
rows = np.random.default_rng(1).standard_normal((2, 2, 1, 2, 96, 32)).astype(np.float16)
kvcodec.from_cache(rows, None, "kv.h5")
subprocess.run([program, "encode", "kv.h5", "--codec", "kvcomp", "-o", "codes.h5", "--quiet"], check=True, stdout=subprocess.DEVNULL)
with kvcodec.open("codes.h5") as file:
    key = file[0].key(1)
wanted = rows[1, 0, 0].transpose(1, 0, 2).astype(np.float32)
error = np.square(key - wanted).sum() / np.square(wanted).sum()
assert 0 < error < 0.1, error
PYTHON
venv/bin/python -m pip uninstall --quiet --yes kvcodec
[[ ! -e venv/bin/kvcodec ]] || { echo "pip leaves the program behind"; exit 1; }
