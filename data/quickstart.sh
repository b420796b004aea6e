#!/bin/sh
# From a fresh checkout to a compressed cache of a real model: installs what is missing, builds, and runs the whole chain on the
# demo model. Keys and values of the manual pages train the dictionary; README.md, which it has not seen, is what is compressed.
# Everything is written to build/ and out/quickstart/ of the checkout. Run it again and it starts over where that is needed.
set -eu
cd "$(dirname "$0")/.."

sh data/install-deps.sh build
[ -f build/build.ninja ] || cmake --preset release -DBUILD_TESTING=OFF -DKVCODEC_BENCH=OFF >/dev/null
cmake --build build --target kvcodec
PATH=$PWD/build:$PATH
export PATH

out=out/quickstart
mkdir -p $out

# Shows a command, then runs it.
run() {
  printf '\n$ %s\n' "$*"
  "$@"
}

echo
echo "== keys and values of the demo model =="
run kvcodec dump-kv --model data/demo-model --text man --chunk 512 -o $out/train.h5 --overwrite
run kvcodec dump-kv --model data/demo-model --text README.md --chunk 512 -o $out/kv.h5 --overwrite

echo
echo "== a dictionary for the sparse codec =="
run kvcodec train-dict $out/train.h5 --atoms 1024 --sparsity 16 -o $out/dict.h5 --overwrite

echo
echo "== encode and decode =="
for s in 8 16; do
  run kvcodec encode $out/kv.h5 --codec sparse --book $out/dict.h5 --sparsity $s -o $out/sparse-$s.codes.h5 --overwrite
  run kvcodec pack-indices $out/sparse-$s.codes.h5 -o $out/sparse-$s.h5 --overwrite
  run kvcodec decode $out/sparse-$s.h5 --book $out/dict.h5 -o $out/sparse-$s.recon.h5 --overwrite
done
for bits in 4 2; do
  run kvcodec encode $out/kv.h5 --codec kivi --bits $bits -o $out/kivi-$bits.h5 --overwrite
  run kvcodec decode $out/kivi-$bits.h5 -o $out/kivi-$bits.recon.h5 --overwrite
done
run kvcodec encode $out/kv.h5 --codec none -o $out/none.h5 --overwrite
run kvcodec decode $out/none.h5 -o $out/none.recon.h5 --overwrite

echo
echo "== what was lost and what it cost =="
run kvcodec eval-recon $out/kv.h5 $out/sparse-16.recon.h5 $out/sparse-8.recon.h5 $out/kivi-4.recon.h5 $out/kivi-2.recon.h5 \
  $out/none.recon.h5 --rate $out/sparse-16.h5 --rate $out/sparse-8.h5 --rate $out/kivi-4.h5 --rate $out/kivi-2.h5 \
  --rate $out/none.h5
