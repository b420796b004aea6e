#!/usr/bin/env bash
# Builds lib and cuda on a bare machine with a device, and checks and measures the device twins there. Each step has
# its own time limit and log; a step that fails or takes too long does not keep the next ones from running.
# usage: run_device.sh LOGS [STEP…]     steps: build test sanitize bench (all, in this order)
#   KVCODEC_PREFIX   folder with the development packages unpacked into it (dpkg -x), where they are not installed
#   KVCODEC_BUILD_DIR  default: build-device
#   KVCODEC_ARCHITECTURES  default: native
#   KVCODEC_BENCH_ARGS  passed to the benchmark
# Of each step a line "STEP: status S, T seconds" ends in LOGS/summary; the exit status is 0 if all were 0.
set -uo pipefail
logs=${1:?usage: run_device.sh LOGS [build|test|sanitize|bench]...}
shift
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${KVCODEC_BUILD_DIR:-$root/build-device}
mkdir -p "$logs"
logs=$(cd "$logs" && pwd)
steps=("$@")
((${#steps[@]})) || steps=(build test sanitize bench)
jobs=$(nproc)

prefix=${KVCODEC_PREFIX:-}
if [[ -n $prefix ]]; then
  prefix=$(cd "$prefix" && pwd)
  multi=$prefix/usr/lib/x86_64-linux-gnu
  # What the packages say of their own places must be read relative to the folder.
  export PKG_CONFIG_SYSROOT_DIR=$prefix PKG_CONFIG_PATH=$multi/pkgconfig:$prefix/usr/share/pkgconfig
  export CMAKE_PREFIX_PATH=$prefix/usr:$multi CPATH=$prefix/usr/include
  export CMAKE_INCLUDE_PATH=$prefix/usr/include:$prefix/usr/include/x86_64-linux-gnu:$prefix/usr/include/x86_64-linux-gnu/openblas-openmp
  export CMAKE_LIBRARY_PATH=$multi:$multi/openblas-openmp
  export LIBRARY_PATH=$multi:$multi/openblas-openmp LD_LIBRARY_PATH=$multi:$multi/openblas-openmp:${LD_LIBRARY_PATH:-}
fi
command -v nvcc >/dev/null || export PATH=$PATH:/usr/local/cuda/bin
command -v ninja >/dev/null && export CMAKE_GENERATOR=Ninja

build() {
  cmake -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release -DKVCODEC_CUDA=ON -DKVCODEC_HDF5=OFF \
    -DKVCODEC_CUDA_RESOURCES=ON "-DCMAKE_CUDA_ARCHITECTURES=${KVCODEC_ARCHITECTURES:-native}" &&
    cmake --build "$build" -j "$jobs" --target test_cuda kvcodec_bench_cuda
}
run_tests() { ctest --test-dir "$build" -L '^cuda$' --output-on-failure --timeout 120 -j 4; }
# The instrumented kernels are slow: the test program's own sizes are enough. racecheck sees shared memory only.
sanitize() {
  local status=0 tool
  for tool in memcheck racecheck; do
    echo "== $tool"
    timeout 150 compute-sanitizer --tool "$tool" --error-exitcode 9 --kernel-regex kns=kvcodec \
      "$build/test/cuda/test_cuda" --test-case-exclude='*large*' || { status=$?; echo "$tool: status $status"; }
  done
  return $status
}
bench() {
  # shellcheck disable=SC2086  # several words are meant
  "$build/test/bench/kvcodec_bench_cuda" --json "$logs/bench.json" ${KVCODEC_BENCH_ARGS:-}
}

# step NAME SECONDS FUNCTION
worst=0
: >"$logs/summary"
step() {
  local name=$1 limit=$2 body=$3 status start=$SECONDS
  echo "== $name"
  # A shell of its own, so that `timeout` ends everything in it.
  export -f "${body?}"
  timeout -k 5 "$limit" bash -c "set -uo pipefail; $body" >"$logs/$name.log" 2>&1
  status=$?
  tail -n 25 "$logs/$name.log"
  echo "$name: status $status, $((SECONDS - start)) seconds" | tee -a "$logs/summary"
  ((status == 0)) || worst=1
}
export root build logs jobs
export KVCODEC_ARCHITECTURES=${KVCODEC_ARCHITECTURES:-native}
{ nvidia-smi || true; nvcc --version || true; "${CXX:-c++}" --version || true; } >"$logs/machine.log" 2>&1
for name in "${steps[@]}"; do
  case $name in
    build) step build 420 build ;;
    test) step test 180 run_tests ;;
    sanitize) step sanitize 320 sanitize ;;
    bench) step bench 240 bench ;;
    *) echo "run_device.sh: step '$name'; build, test, sanitize or bench expected" >&2; exit 2 ;;
  esac
done
exit $worst
