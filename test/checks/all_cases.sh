#!/bin/sh
# all_cases.sh PROGRAM FOLDER: fails unless the lists that CMake wrote to FOLDER for ctest have each case of a doctest program once.
set -eu
cases=$("$1" --count | sed -n 's/.*current filters: \([0-9]*\)$/\1/p')
tests=$(cat "$2/$(basename "$1")"_tests-*.cmake | grep -c '^add_test(') || true
[ "${cases:-0}" -gt 0 ] && [ "$cases" = "$tests" ] && exit 0
echo "$(basename "$1") has ${cases:-no} cases, ctest runs $tests of them"
exit 1
