#!/usr/bin/env bash
# The share of the product's lines that the unit tests run: a line for each folder. Takes half an hour on two cores.
# usage: test/coverage.sh [DOCTEST OPTIONS…]     for instance -tc='codecs*'; builds in build-coverage/
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset coverage >/dev/null
cmake --build build-coverage --target fast_tests test_cli >&2
counts=$(mktemp -d)
trap 'rm -rf "$counts"' EXIT
programs=()
for program in build-coverage/test/test_lib build-coverage/test/test_formats build-coverage/test/test_cli; do
  # A test of the program's own limits must not prevent its process from writing the counts.
  LLVM_PROFILE_FILE="$counts/%p-%m.profraw" "$program" "$@" >&2 || echo "coverage.sh: $program: a test failed; its lines count all the same" >&2
  programs+=(-object "$program")
done
llvm-profdata-14 merge -sparse "$counts"/*.profraw -o "$counts/all"
llvm-cov-14 export -summary-only -instr-profile="$counts/all" "${programs[@]}" |
  jq -r --arg root "$PWD/" '.data[0].files[] | select(.filename | startswith($root)) |
    [(.filename | ltrimstr($root)), .summary.lines.count, .summary.lines.covered] | @tsv' |
  awk -F '\t' '/^(lib|formats|cli)\// {
      n = split($1, path, "/"); folder = path[1] "/" (n > 2 ? path[2] : "")
      lines[folder] += $2; run[folder] += $3; lines["all"] += $2; run["all"] += $3 }
    END { for (folder in lines) printf "%-20s %6d lines %5.1f%%\n", folder, lines[folder], 100 * run[folder] / lines[folder] }' | sort
