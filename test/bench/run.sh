#!/bin/sh
# Builds and runs every benchmark, and prints what it prints in Markdown: the tables of BENCHMARKS.md.
# usage: test/bench/run.sh [BUILD_FOLDER]     default: build, a configured build folder
# For a quiet machine: one at a time, and nothing else running. OPENBLAS_CORETYPE is unset, since a wrong one halves OpenBLAS.
set -eu
cd "$(dirname "$0")/../.."
build=${1:-build}
unset OPENBLAS_CORETYPE

cmake --build "$build" --target benchmarks >&2
"$build/test/bench/kvcodec_bench_cuda_emulated" --small >/dev/null  # its answers alone are of use: the emulation's times mean nothing
for program in "$build"/test/bench/kvcodec_bench_*; do
  case $program in *_emulated) continue ;; esac
  printf '\n## %s\n\n```\n' "${program##*/kvcodec_bench_}"
  "$program"
  printf '```\n'
done
