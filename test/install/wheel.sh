#!/usr/bin/env bash
# Makes a wheel of a build, installs it into a fresh environment of Python without a network, and uses its program and its package.
# usage: wheel.sh SOURCE BUILD WORK        77 where the program is not built, or Python lacks what that needs
set -euo pipefail
source=$(realpath "$1") build=$(realpath "$2") work=$3
[[ -x $build/kvcodec && -e $build/libkvcodec.so ]] || { echo "kvcodec and libkvcodec.so are not built"; exit 77; }
python=
for candidate in python3 /usr/bin/python3; do
  "$candidate" -c 'import ensurepip, numpy, venv, wheel' 2>/dev/null && python=$candidate && break
done
[[ $python ]] || { echo "there is no Python with venv, ensurepip, wheel and NumPy"; exit 77; }
rm -rf "$work"
mkdir -p "$work"
work=$(realpath "$work")
cmake --build "$build" --target wheel >"$work/wheel.log" 2>&1 || { cat "$work/wheel.log"; exit 1; }
# Only a program that contains its libraries, and a library that brings them along, may be marked as portable to other machines.
kind=manylinux_
[[ $(ldd "$build/kvcodec") != *libhdf5* ]] || kind=linux_
[[ $(basename "$build"/dist/kvfiles-*.whl) == kvfiles-*-py3-none-${kind}* ]] || { echo "$(ls "$build"/dist/*.whl) is not for $kind"; exit 1; }

# NumPy is that of the system; nothing of kvcodec is.
"$python" -m venv --system-site-packages "$work/venv"
env -u PYTHONPATH "$work/venv/bin/python" -m pip install --quiet --no-deps --no-index --no-cache-dir --disable-pip-version-check \
  "$build"/dist/kvfiles-*.whl
# PyPI's kvcodec is a package of other people.
packages=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir "$packages/kvcodec"
echo 'OTHER = "a package of other people"' >"$packages/kvcodec/__init__.py"
cd "$work"
[[ $(venv/bin/kvcodec --version) == "$("$build/kvcodec" --version)" ]] || { echo "the wheel has another version of the program"; exit 1; }
for file in venv/share/man/man1/kvcodec-encode.1 venv/share/man/man7/kvcodec-interop.7 venv/share/bash-completion/completions/kvcodec; do
  [[ -s $file ]] || { echo "the wheel has no ${file#venv/}"; exit 1; }
done
[[ $(find venv/lib -path '*dist-info*' -name LICENSE) ]] || { echo "the wheel has no licence"; exit 1; }
if [[ $kind == manylinux_ ]]; then
  outside=$(env -u LD_LIBRARY_PATH ldd "$packages/kvfiles/libkvcodec.so" | grep -v -e "$packages/kvfiles/libs/" -e linux-vdso -e /ld-linux |
    grep -Ev '^\s*lib(c|m|dl|pthread|rt|resolv)\.so') && { echo "the library needs others than its own: $outside"; exit 1; }
fi
[[ $(find venv -name 'libkvcodec*') == */kvfiles/libkvcodec.so ]] || { echo "the library lies elsewhere than in the package"; exit 1; }

env -u PYTHONPATH -u KVCODEC_LIBRARY -u LD_LIBRARY_PATH PATH=/nowhere "$work/venv/bin/python" - <<'PYTHON'
import os, subprocess, sys
import numpy as np
import kvcodec, kvfiles
assert kvcodec.OTHER, "the package of other people is not imported"
said = subprocess.run([os.path.join(sys.prefix, "bin", "kvcodec"), "--version"], check=True, capture_output=True, text=True).stdout.split()
assert kvfiles.__version__ in said, f"the package is of version {kvfiles.__version__}, the program says {said}"
assert kvfiles.__version__ == kvfiles.release(), f"the package is of version {kvfiles.__version__}, its library of {kvfiles.release()}"
rows = np.random.default_rng(1).standard_normal((2, 2, 1, 2, 96, 32)).astype(np.float16)
kvfiles.from_cache(rows, None, "kv.h5")
kvfiles.run("encode", "kv.h5", "--codec", "kvcomp", "-o", "codes.h5", "--quiet")
with kvfiles.open("codes.h5") as file:
    key = file[0].key(1)
wanted = rows[1, 0, 0].transpose(1, 0, 2).astype(np.float32)
error = np.square(key - wanted).sum() / np.square(wanted).sum()
assert 0 < error < 0.1, error
PYTHON
venv/bin/python -m pip uninstall --quiet --yes kvfiles
[[ ! -e venv/bin/kvcodec && ! -e $packages/kvfiles/libkvcodec.so ]] || { echo "pip leaves the program or the library behind"; exit 1; }
[[ -e $packages/kvcodec/__init__.py ]] || { echo "pip removes a package of other people"; exit 1; }
