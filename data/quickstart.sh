#!/bin/sh
# From a fresh checkout to a compressed cache of a real model: installs what is missing, builds, and runs the whole chain on the
# demo model. Keys and values of the manual pages train the dictionary; README.md, which it has not seen, is what is compressed.
# Everything is written to build/ and out/quickstart/ of the checkout. Run it again and what is built stays, the chain starts over.
set -eu
cd "$(dirname "$0")/.."

sh data/install-deps.sh build
# A build folder that came here with a copied checkout would build the original.
grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$(pwd -P)" build/CMakeCache.txt 2>/dev/null || rm -rf build
[ -f build/build.ninja ] || cmake --preset release -DBUILD_TESTING=OFF -DKVCODEC_BENCH=OFF >/dev/null
cmake --build build --target kvcodec
PATH=$(pwd -P)/build:$PATH
export PATH

mkdir -p out/quickstart
cd out/quickstart
rm -f ./*.h5

# Shows a command, then runs it.
run() {
  printf '\n$ %s\n' "$*"
  "$@"
}

step() { printf '\n== %s ==\n' "$*"; }

step "keys and values of the demo model, reading the manual pages (to learn from) and README.md (to compress)"
run kvcodec dump-kv --model ../../data/demo-model --text ../../man --chunk 1024 -o train.h5
run kvcodec dump-kv --model ../../data/demo-model --text ../../README.md --chunk 1024 -o kv.h5

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
cat <<'EOF'

SNR: higher is closer to the original. bits/value: everything in the file counts. The files are in out/quickstart; where the bytes
of one of them went: build/kvcodec info out/quickstart/sparse-32.codes.h5. README.md has a tour.
EOF
