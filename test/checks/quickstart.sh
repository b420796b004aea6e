#!/usr/bin/env bash
# Runs the quickstart's chain (data/quickstart-chain.sh) and holds the tables it ends in against those that README.md shows, the blocks
# marked "text quickstart", figures within 5% (figures.awk).
# usage: quickstart.sh ROOT PROGRAM_FOLDER WORK_FOLDER
set -euo pipefail
checks=$(cd "$(dirname "$0")" && pwd)
root=$1 programs=$2 work=$3
rm -rf "$work"
mkdir -p "$work"
awk -v mark="text quickstart" -f "$checks/blocks.awk" "$root/README.md" >"$work/shown" || { echo "README.md: no complete block marked 'text quickstart'"; exit 1; }
if ! PATH=$programs:$PATH sh "$root/data/quickstart-chain.sh" "$work/run" >"$work/output" 2>"$work/messages"; then
  echo "the chain failed; its last lines:"
  tail -n 5 "$work/output" "$work/messages"
  exit 1
fi
awk -v page=README.md -v tolerance=0.05 -f "$checks/figures.awk" "$work/shown" "$work/output"
