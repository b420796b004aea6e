#!/bin/sh
# Runs every benchmark and prints what it prints, in Markdown: the tables of BENCHMARKS.md.
# usage: test/bench/run.sh [BUILD_FOLDER]     default: build
# For a quiet machine: one at a time, and nothing else running. OPENBLAS_CORETYPE is unset, since a wrong one halves OpenBLAS.
set -eu
cd "$(dirname "$0")/../.."
build=${1:-build}
unset OPENBLAS_CORETYPE

found=
for program in "$build"/test/bench/kvcodec_bench_*; do
  [ -x "$program" ] || continue
  found=yes
  printf '\n## %s\n\n```\n' "${program##*/kvcodec_bench_}"
  "$program"
  printf '```\n'
done
[ -n "$found" ] || {
  echo "run.sh: no benchmarks in $build/test/bench; configure with -DKVCODEC_BENCH=ON and build" >&2
  exit 1
}
