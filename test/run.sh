#!/bin/sh
# Installs what is missing, builds, and runs every test; ends with ctest's summary.
# usage: sh test/run.sh [--slow] [ctest options…]      --slow adds the tests that take minutes and gigabytes
set -eu
cd "$(dirname "$0")/.."

exclude="-LE slow"
if [ "${1:-}" = --slow ]; then
  exclude=
  shift
fi

sh data/install-deps.sh test
# Warnings are errors where the compiler is known (CI); a newer compiler's new warning must not stop a user.
preset=release
[ "${CI:-}" = true ] && preset=ci
cmake --preset $preset -DBUILD_TESTING=ON -DKVCODEC_BENCH=ON >/dev/null
cmake --build build
# Tests run side by side: a thread that waits must not hold the processor of another one.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
ctest --test-dir build --output-on-failure -j"$(nproc)" $exclude "$@"
