#!/usr/bin/env bash
# Builds lib and cuda on a bare machine with a device, and checks and measures the device twins there. Each step has
# its own time limit and log; a step that fails or takes too long does not keep the next ones from running.
# usage: run_device.sh LOGS [STEP…]
#   steps: configure library build-test test build-bench bench memcheck racecheck (all, in this order). Where a command
#   may take ten minutes only, several calls with some of the steps each do the same.
#   KVCODEC_STEP_SECONDS  limit of each step, default: 580
#   KVCODEC_ONLY  memcheck and racecheck take the test files alone whose names match this pattern, as in 'rvq_*' or
#     '@(omp|nearest)_test.cpp'; default: all of test/cuda
#   KVCODEC_PREFIX   folder with the packages unpacked into it (dpkg -x), where they are not installed
#   KVCODEC_BUILD_DIR  default: build-device. Programs that were built elsewhere will do for all steps behind the builds:
#     test/cuda/test_cuda and test/bench/kvcodec_bench_cuda in it.
#   KVCODEC_ARCHITECTURES  default: native
#   KVCODEC_BENCH_ARGS  passed to the benchmark
# Of each step a line "STEP: status S, T seconds" is added to LOGS/summary, which a call without steps empties before;
# the exit status is 0 if all were 0. A test that is skipped has not run on a device: that is a failure here.
#
# Packages (Debian 12) of KVCODEC_PREFIX
#   to build: libfmt-dev libpcre2-dev libxxhash-dev libutf8proc-dev libopenblas-openmp-dev doctest-dev;
#     cmake, ninja-build and pkg-config with what they need, where the machine has none
#   to run: libfmt9 libpcre2-8-0 libxxhash0 libutf8proc2 libopenblas0-openmp libgfortran5 libquadmath0
#   not: libc6, libstdc++6, libgcc-s1. The machine's own must be found, not others through LD_LIBRARY_PATH.
# Static libraries (*.a) may be deleted from the folder to keep it small: nothing links them.
set -uo pipefail
all_steps=(configure library build-test test build-bench bench memcheck racecheck)
logs=${1:?usage: run_device.sh LOGS [STEP…], steps: ${all_steps[*]}}
shift
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${KVCODEC_BUILD_DIR:-$root/build-device}
mkdir -p "$logs"
logs=$(cd "$logs" && pwd)
steps=("$@")
only_some=${#steps[@]}
((only_some)) || steps=("${all_steps[@]}")
for name in "${steps[@]}"; do
  [[ " ${all_steps[*]} " == *" $name "* ]] || { echo "run_device.sh: step '$name'; one of: ${all_steps[*]}" >&2; exit 2; }
done
jobs=$(nproc)

prefix=${KVCODEC_PREFIX:-}
if [[ -n $prefix ]]; then
  prefix=$(cd "$prefix" && pwd)
  multi=$prefix/usr/lib/x86_64-linux-gnu
  # The machine's own programs have precedence.
  export PATH=$PATH:$prefix/usr/bin
  # Paths in the packages' own files must be interpreted relative to the folder.
  export PKG_CONFIG_SYSROOT_DIR=$prefix PKG_CONFIG_PATH=$multi/pkgconfig:$prefix/usr/share/pkgconfig
  export CMAKE_PREFIX_PATH=$prefix/usr:$multi CPATH=$prefix/usr/include
  export CMAKE_INCLUDE_PATH=$prefix/usr/include:$prefix/usr/include/x86_64-linux-gnu:$prefix/usr/include/x86_64-linux-gnu/openblas-openmp
  export CMAKE_LIBRARY_PATH=$multi:$multi/openblas-openmp
  export LIBRARY_PATH=$multi:$multi/openblas-openmp LD_LIBRARY_PATH=$multi:$multi/openblas-openmp:${LD_LIBRARY_PATH:-}
fi
command -v nvcc >/dev/null || export PATH=$PATH:/usr/local/cuda/bin
command -v ninja >/dev/null && export CMAKE_GENERATOR=Ninja

configure() {
  cmake -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release -DKVCODEC_CUDA=ON -DKVCODEC_HDF5=OFF \
    -DKVCODEC_CUDA_RESOURCES=ON "-DCMAKE_CUDA_ARCHITECTURES=${KVCODEC_ARCHITECTURES:-native}"
}
make_target() { cmake --build "$build" -j "$jobs" --target "$@"; }

# The test program with these arguments, behind `runner` (an array that begins with `timeout`); fails if no case ran, or
# if one was skipped.
run_cases() {
  local output status
  # `timeout` has a process group of its own, with all that it starts: the end of the step is passed on to it.
  output=$(trap 'kill "$job"; exit 143' TERM; "${runner[@]}" "$build/test/cuda/test_cuda" "$@" 2>&1 & job=$!; wait "$job")
  status=$?
  printf '%s\n' "$output"
  ((status == 77)) && echo "skipped although there should be a device"
  ((status == 0)) || return "$status"
  grep -Eq 'test cases: +[1-9][0-9]* ' <<<"$output" || { echo "no case ran"; return 1; }
}
# Runs one case in a separate process, so that a fault cannot affect later ones. Adds "STATUS SECONDS NAME" to cases.log.
run_one() {
  local name=$1 status=0 start=$SECONDS output
  # Commas and backslashes mean something in doctest's filters, and so does "*", for which its "?" (any character) will do.
  local filter=${name//\\/\\\\}
  filter=${filter//,/\\,}
  runner=(timeout -k 5 120)
  output=$(run_cases --test-case="${filter//\*/?}" --no-colors) || status=$?
  printf '%s %s %s\n' "$status" "$((SECONDS - start))" "$name" >>"$logs/cases.log"
  ((status == 0)) || printf '#### status %s: %s\n%s\n' "$status" "$name" "$output" >>"$logs/failed-cases.log"
}
run_tests() {
  # Without a device every case would be skipped, and nothing would be wrong with any.
  runner=(timeout -k 5 60)
  run_cases --test-case="$device_case" || { echo "there is no device that works"; return 1; }
  rm -f "$logs/cases.log" "$logs/failed-cases.log"
  # For the CPU's side of several processes: their threads must not wait for each other's processors.
  "$build/test/cuda/test_cuda" --list-test-cases --no-colors | grep -v -e '^===' -e '^\[doctest\]' |
    OMP_NUM_THREADS=$(((jobs + 3) / 4)) xargs -d '\n' -P 8 -I '{}' bash -c 'run_one "$1"' sh '{}'
  sort -k 3 -o "$logs/cases.log" "$logs/cases.log"
  cat "$logs/cases.log"
  [[ ! -e $logs/failed-cases.log ]] || cat "$logs/failed-cases.log"
  echo "$(grep -c '^0 ' "$logs/cases.log") of $(wc -l <"$logs/cases.log") cases passed; one that is skipped has not passed"
  ! grep -qv '^0 ' "$logs/cases.log"
}
# The cases of one test file under a tool of compute-sanitizer; what they say is in a log of their own.
sanitize_file() {
  local tool=$1 file=$2 status=0 start=$SECONDS
  local log=$logs/$tool-${file%.cpp}.log
  runner=(timeout -k 5 300 compute-sanitizer --tool "$tool" --error-exitcode 9 --kernel-name kns=kvcodec)
  # racecheck of CUDA 13.0 ends in an error of its own where cuBLAS runs on an H100.
  local without='*large*'
  [[ $tool == racecheck ]] && without+=',*prefill*,*logits*,*long products*,*more parts*,a model goes on*'
  run_cases --source-file="*/cuda/$file" --test-case-exclude="$without" >"$log" 2>&1 || status=$?
  ((status == 0)) || tail -n 15 "$log"
  echo "$tool, $file: status $status, $((SECONDS - start)) seconds"
  return "$status"
}
# The instrumented kernels are slow: the test program's own sizes are enough, and some files run at a time. racecheck
# sees shared memory only.
sanitize() {
  local tool=$1 file files=()
  for file in "$root"/test/cuda/*_test.cpp; do
    file=${file##*/}
    # shellcheck disable=SC2053  # a pattern is meant
    [[ $file == ${KVCODEC_ONLY:-*} ]] && files+=("$file")
  done
  ((${#files[@]})) || { echo "no test file is '$KVCODEC_ONLY'"; return 1; }
  # shellcheck disable=SC2016  # for the inner shell
  printf '%s\n' "${files[@]}" | OMP_NUM_THREADS=$(((jobs + 3) / 4)) xargs -P 4 -I '{}' bash -c 'sanitize_file "$1" "$2"' sh "$tool" '{}'
}
bench() {
  # shellcheck disable=SC2086  # several words are meant
  "$build/test/bench/kvcodec_bench_cuda" --json "$logs/bench.json" ${KVCODEC_BENCH_ARGS:-}
}

# step NAME COMMAND
worst=0
# Calls with some of the steps each add to one summary.
((only_some)) || : >"$logs/summary"
step() {
  local name=$1 command=$2 status start=$SECONDS
  echo "== $name"
  # A shell of its own, so that `timeout` ends everything in it.
  timeout -k 5 "${KVCODEC_STEP_SECONDS:-580}" bash -c "set -uo pipefail; $command" >"$logs/$name.log" 2>&1
  status=$?
  tail -n 25 "$logs/$name.log"
  echo "$name: status $status, $((SECONDS - start)) seconds" | tee -a "$logs/summary"
  ((status == 0)) || worst=1
}
device_case='device 0 describes itself'  # of device_test.cpp; it asks for the device
export root build logs jobs device_case
export KVCODEC_ARCHITECTURES=${KVCODEC_ARCHITECTURES:-native}
export -f configure make_target run_cases run_one run_tests sanitize_file sanitize bench
{ nvidia-smi || true; nvcc --version || true; "${CXX:-c++}" --version || true; } >"$logs/machine.log" 2>&1
for name in "${steps[@]}"; do
  case $name in
    library) step library 'make_target kvcodec_cuda' ;;
    build-test) step build-test 'make_target test_cuda' ;;
    test) step test run_tests ;;
    build-bench) step build-bench 'make_target kvcodec_bench_cuda' ;;
    memcheck | racecheck) step "$name" "sanitize $name" ;;
    *) step "$name" "$name" ;;  # configure, bench
  esac
done
exit $worst
