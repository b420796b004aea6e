#!/bin/sh
# The chain of data/quickstart.sh: caches, a dictionary, codes, restored caches, and what was lost. Of two novels that come with the
# project (data/text), the demo model reads one to learn a dictionary from and one to compress.
# usage: sh data/quickstart-chain.sh OUT_FOLDER     with kvcodec on PATH; caches and codes of an earlier run in that folder are replaced
set -eu
data=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cd "$1"
rm -f train.h5 kv.h5 dict.h5 sparse-*.h5 kivi-*.h5 none*.h5
# Commands are shown as they can be typed: with paths from here.
data=$(realpath --relative-to=. "$data")

# Shows a command, then runs it.
run() {
  printf '\n$ %s\n' "$*"
  "$@"
}

step() { printf '\n== %s ==\n' "$*"; }

step "keys and values of the demo model, reading Pride and Prejudice (to learn from) and Moby-Dick (to compress)"
run kvcodec dump-kv --model "$data/demo-model" --text "$data/text/pride-and-prejudice.txt" --chunk 1024 --max-tokens 40960 -o train.h5
run kvcodec dump-kv --model "$data/demo-model" --text "$data/text/moby-dick.txt" --chunk 1024 --max-tokens 10240 -o kv.h5

step "a dictionary for the codec sparse: one code for all four layers of the model"
run kvcodec train-dict train.h5 --atoms 1024 --layer-group 4 --sparsity 32 -o dict.h5

step "encode and decode"
for s in 64 32; do
  run kvcodec encode kv.h5 --codec sparse --book dict.h5 --sparsity $s -o sparse-$s.plain.h5
  run kvcodec pack-indices sparse-$s.plain.h5 -o sparse-$s.codes.h5
  run kvcodec decode sparse-$s.codes.h5 --book dict.h5 -o sparse-$s.h5
done
for bits in 4 2; do
  run kvcodec encode kv.h5 --codec kivi --bits $bits --window 0 -o kivi-$bits.codes.h5
  run kvcodec decode kivi-$bits.codes.h5 -o kivi-$bits.h5
done
run kvcodec encode kv.h5 --codec none -o none.codes.h5
run kvcodec decode none.codes.h5 -o none.h5

step "what was lost and what it cost"
set -- sparse-64 sparse-32 kivi-4 kivi-2 none
reconstructions= rates=
for name; do
  reconstructions="$reconstructions $name.h5"
  rates="$rates --rate $name.codes.h5"
done
# shellcheck disable=SC2086  # names without blanks
run kvcodec eval-recon kv.h5 $reconstructions $rates
