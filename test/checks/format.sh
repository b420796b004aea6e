#!/usr/bin/env bash
# Checks that the sources follow .clang-format.
# usage: format.sh ROOT          exit 1 and clang-format's complaints; 77 without clang-format 14
#        format.sh --self-test   shows that a violation is found
set -euo pipefail

# Other versions format some lines differently.
find_formatter() {
  local program
  for program in clang-format-14 clang-format; do
    if grep -q 'version 14\.' <("$program" --version 2>/dev/null); then
      echo "$program"
      return
    fi
  done
}

# check FORMATTER ROOT
check() {
  local formatter=$1
  cd "$2"
  find lib formats cli cuda test -type f \( -name '*.hpp' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
    xargs -0 -n 40 -P 2 "$formatter" --dry-run --Werror
}

self_test() {
  local formatter=$1 root dir
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
  dir=$(mktemp -d)
  trap "rm -rf '$dir'" EXIT
  mkdir "$dir"/{lib,formats,cli,cuda,test}
  cp "$root/.clang-format" "$dir"
  echo 'int f() { return 1; }' >"$dir/lib/good.cpp"
  check "$formatter" "$dir" || { echo "self-test: what is well laid out is refused"; exit 1; }
  local part
  for part in lib/bad.cpp formats/bad.hpp cli/bad.cpp cuda/bad.cu test/bad.cuh; do
    echo 'int f( ) {return 1;}' >"$dir/$part"
    if (check "$formatter" "$dir") 2>/dev/null; then echo "self-test: $part passed"; exit 1; fi
    rm "$dir/$part"
  done
  echo "self-test: all violations found"
}

formatter=$(find_formatter)
if [[ -z $formatter ]]; then
  echo "skipped: no clang-format 14 (sh data/install-deps.sh ci)"
  exit 77
fi
case ${1:?usage: format.sh ROOT | --self-test} in
  --self-test) self_test "$formatter" ;;
  *) check "$formatter" "$1" ;;
esac
