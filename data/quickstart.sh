#!/bin/sh
# From a fresh checkout to a compressed cache of a real model: installs what is missing, builds, and runs the whole chain
# (data/quickstart-chain.sh) on the demo model. A transform is learned from the cache of one novel; the cache of
# another is compressed.
# Everything is written to build/ and out/quickstart/ of the checkout. Run it again and what is built stays, the chain starts over.
set -eu
cd "$(dirname "$0")/.."

sh data/install-deps.sh build
# A build folder that came here with a copied checkout would build the original.
grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$(pwd -P)" build/CMakeCache.txt 2>/dev/null || rm -rf build
# Device parts are built where there is a device that could run them; test/run.sh builds them wherever there is a compiler for them.
cuda=OFF
[ ! -e /dev/nvidiactl ] || cuda=AUTO
[ -f build/build.ninja ] || cmake --preset release -DBUILD_TESTING=OFF -DKVCODEC_CUDA=$cuda >/dev/null
cmake --build build --target kvcodec
PATH=$(pwd -P)/build:$PATH
export PATH

sh data/quickstart-chain.sh out/quickstart
cat <<'EOF'

bits/value: everything in the file counts. SNR: higher is closer to the original. NLL rise and KL: what the model loses, in nats per token.
The answer above came from 0.04 MB of codes; without a cache the model does not know the number.
The files are in out/quickstart; where the bytes of one of them went: build/kvcodec info out/quickstart/one-bit.codes.h5. A tour: man man/kvcodec-tutorial.7
EOF
