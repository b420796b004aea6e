#!/bin/sh
# Installs missing packages, builds, and runs tests; ends with ctest's summary. --help explains the words.
set -eu
cd "$(dirname "$0")/.."

usage() {
  cat <<'TEXT'
usage: sh test/run.sh [--fast|--program|--slow] [ctest options...]

Installs what building and testing need and is not there, builds, and runs tests; ends with ctest's summary.

  (none of them)   builds everything in build/ and runs every test but the slow ones
  --slow           adds the tests that take minutes and gigabytes
  --program        leaves out the tests of lib/ and formats/ that .ci/run runs under sanitizers: builds the program, and runs the tests of
                   cli/, the program's cases, goldens, campaigns, and device code over its emulation but for cases named "(large)"
  --fast           for the work between two commits: builds the unit tests in build-dev/ (preset dev: no CUDA,
                   warnings as errors, through ccache if it is installed) and runs them but for those whose names end in "(long)"
                   and the corpora of fuzzing, the check of the format and that of the includes; nothing is installed
  --help           this text

What else is given goes to ctest, for instance:  sh test/run.sh --fast -R kvcomp
CI=true in the environment makes warnings errors; KVCODEC_CUDA=OFF leaves device parts out.
TEXT
}

mode=all
case "${1:-}" in
  --fast) mode=fast ;;
  --slow) mode=slow ;;
  --program) mode=program ;;
  --help | -h)
    usage
    exit 0
    ;;
esac
[ $mode = all ] || shift

# Tests run side by side: a waiting thread must not occupy the processor of another one.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"

if [ $mode = fast ]; then
  cmake --preset dev >/dev/null
  cmake --build build-dev --target fast_tests
  # The emulation of a device, tests that run the program, and those of many seconds have labels of their own. Some tests wait for others
  # to end, and leave a processor to the next.
  exec ctest --test-dir build-dev --output-on-failure -j$((2 * $(nproc))) -L unit -LE program "$@"
fi

sh data/install-deps.sh test
# Warnings are errors where the compiler is known (CI); a newer compiler's new warning must not stop a user.
preset=release
[ "${CI:-}" = true ] && preset=ci
# Set again, because data/quickstart.sh may have left out device parts.
cmake --preset $preset -DBUILD_TESTING=ON -DKVCODEC_CUDA="${KVCODEC_CUDA:-AUTO}" >/dev/null
case $mode in
  program)
    cmake --build build --target program_tests
    labels="-L cli|golden|emulation|program -LE slow -E \(large\)" ;;
  slow)
    cmake --build build
    labels= ;;
  *)
    cmake --build build
    labels="-LE slow" ;;
esac
ctest --test-dir build --output-on-failure -j"$(nproc)" $labels "$@"
