#!/usr/bin/env bash
# Lets libFuzzer search for inputs that a fuzz target does not take: all targets, or those that are named.
#
#   cmake --preset fuzz && cmake --build --preset fuzz
#   test/fuzz/run.sh [-t SECONDS] [-j JOBS] [-n] BUILD [TARGET…]
#
#   -t SECONDS  for each target (60)
#   -j JOBS     targets that run side by side (1)
#   -n          begin without the inputs that earlier runs found: BUILD/test/fuzz/found/TARGET is emptied first
#
# Prints a line for each target: executions, executions per second, processor time, edges of kvcodec's sources that were reached (of all
# there are in the target), and finds. What a target failed on stays in BUILD/test/fuzz/finds/TARGET, its output in BUILD/test/fuzz/logs. The status
# is 1 if there was a find.
set -euo pipefail

seconds=60 jobs=1 fresh=
while getopts t:j:n option; do
  case $option in
    t) seconds=$OPTARG ;;
    j) jobs=$OPTARG ;;
    n) fresh=yes ;;
    *) sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' >&2; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
source=$(cd "$(dirname "$0")" && pwd)
[[ $# -ge 1 && -d $1/test/fuzz ]] || { echo "run.sh: name the build folder: test/fuzz/run.sh build-fuzz" >&2; exit 2; }
build=$(cd "$1" && pwd)/test/fuzz
shift
targets=("$@")
if ((${#targets[@]} == 0)); then
  for program in "$build"/*_fuzz; do
    name=${program##*/}
    targets+=("${name%_fuzz}")
  done
fi
mkdir -p "$build/logs"
# Files that targets write must cost no disk.
[[ -n ${TMPDIR:-} || ! -w /dev/shm ]] || TMPDIR=/dev/shm
TMPDIR=$(mktemp -d -p "${TMPDIR:-/tmp}" kvcodec-fuzz-XXXXXX)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

# number KEY LOG: the sum of a figure that libFuzzer prints at the end of each run.
number() { awk -v key="stat::$1:" '$1 == key { sum += $2 } END { print sum + 0 }' "$2"; }

# one TARGET: libFuzzer ends at its first find, and is started again for the time that is left.
one() {
  local name=$1 log=$build/logs/$1.log begun=$build/logs/$1.begun begin=$SECONDS left starts=0 ended=0
  local found=$build/found/$name finds=$build/finds/$name
  [[ -z $fresh ]] || rm -rf "$found"
  mkdir -p "$found" "$finds"
  : >"$log"
  : >"$begun"
  while left=$((seconds - (SECONDS - begin))) && ((left > 0 && starts < 50)); do
    starts=$((starts + 1))
    LSAN_OPTIONS=suppressions=$source/../lsan.supp:print_suppressions=0 OMP_NUM_THREADS=1 \
      "$build/${name}_fuzz" "$found" "$source/corpus/$name" -max_total_time="$left" -timeout=100 -rss_limit_mb=4096 \
      -malloc_limit_mb=2048 -print_final_stats=1 -reload=0 -artifact_prefix="$finds/" >>"$log" 2>&1 || ended=$?
  done
  local edges all count processor
  times >"$log.times" # the second line: of the runs and their children, user and system
  processor=$(awk 'NR == 2 { gsub(/[ms]/, " "); print $1 * 60 + $2 + $3 * 60 + $4 }' "$log.times")
  edges=$({ grep -o 'cov: [0-9]*' "$log" || true; } | awk '$2 > most { most = $2 } END { print most + 0 }')
  all=$(sed -n 's/.*Loaded [0-9]* PC tables (\([0-9]*\) PCs).*/\1/p' "$log" | head -1)
  count=$(find "$finds" -type f -newer "$begun" -not -name 'slow-unit-*' | wc -l)
  awk -v name="$name" -v runs="$(number number_of_executed_units "$log")" -v seconds="$((SECONDS - begin))" -v edges="$edges" \
    -v all="${all:-?}" -v finds="$count" -v processor="$processor" \
    'BEGIN { printf "%-12s %12d %9.0f/s %7.1f min %8d of %s edges %6d finds\n", name, runs, runs / (seconds > 0 ? seconds : 1), processor / 60, edges, all, finds }'
  # A run that ended otherwise without a find did not work.
  ((count == 0 && ended == 0))
}

failed=0 running=()
for name in "${targets[@]}"; do
  [[ -x $build/${name}_fuzz ]] || { echo "run.sh: there is no target '$name' in $build" >&2; exit 2; }
done
for name in "${targets[@]}"; do
  while (($(jobs -rp | wc -l) >= jobs)); do sleep 0.2; done
  one "$name" &
  running+=($!)
done
for job in "${running[@]}"; do wait "$job" || failed=1; done
exit $failed
