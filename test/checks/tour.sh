#!/usr/bin/env bash
# Runs the tour of README.md: its blocks marked "sh tour", as printed and in their order, in one shell, in a fresh folder that looks
# like the checkout (its top level is linked there, but for build/ and out/).
# usage: tour.sh ROOT PROGRAM_FOLDER WORK_FOLDER     fails if a command fails, or if a table is not that of the README
#        tour.sh --self-test WORK_FOLDER             shows that a failing command and a stale table are found
#
# Of the blocks marked "text tour", which show what a command prints, every line is looked for in what the tour printed, its figures within
# 5% (figures.awk): they differ from machine to machine in their last digits, and where a dictionary is learned in some more.
set -euo pipefail
checks=$(cd "$(dirname "$0")" && pwd)

# blocks README MARK: the lines of the blocks of that mark, one empty line between blocks.
blocks() { awk -v mark="$2" -f "$checks/blocks.awk" "$1"; }

# tour ROOT PROGRAMS WORK
tour() {
  local root=$1 programs=$2 work=$3 entry status=0
  rm -rf "$work"
  mkdir -p "$work/run"
  for entry in "$root"/*; do
    case ${entry##*/} in
      build* | out) ;;
      *) ln -s "$entry" "$work/run/" ;;
    esac
  done
  blocks "$root/README.md" "sh tour" >"$work/tour.sh" || { echo "README.md: no complete block marked 'sh tour'"; return 1; }
  (cd "$work/run" && PATH=$programs:$PATH sh -eux "$work/tour.sh" >"$work/output" 2>"$work/messages") || status=$?
  if ((status != 0)); then
    echo "the tour ended with status $status; its last lines:"
    tail -n 5 "$work/output" "$work/messages"
    return 1
  fi
  blocks "$root/README.md" "text tour" >"$work/shown" || { echo "README.md: no complete block marked 'text tour'"; return 1; }
  awk -v tolerance=0.05 -f "$checks/figures.awk" "$work/shown" "$work/output" || status=1
  return $status
}

self_test() {
  local work=$1 fake
  fake=$work/root
  rm -rf "$work"
  mkdir -p "$fake"
  readme() { printf '```sh tour\n%s\n```\ntext\n```text tour\n%s\n```\n' "$1" "$2" >"$fake/README.md"; }
  readme 'echo "a   b"; echo "100   2.00"' "$(printf 'a b\n103 1.92')"
  tour "$fake" /nonexistent "$work/run" || { echo "a good tour was refused"; return 1; }
  readme 'false' 'a b'
  ! tour "$fake" /nonexistent "$work/run" >/dev/null || { echo "a failing command was not found"; return 1; }
  readme 'echo "a c"' 'a b'
  ! tour "$fake" /nonexistent "$work/run" >/dev/null || { echo "a stale table was not found"; return 1; }
  readme 'echo "a   b"; echo "100   2.00"' "$(printf 'a b\n107 2.00')"
  ! tour "$fake" /nonexistent "$work/run" >/dev/null || { echo "a stale figure was not found"; return 1; }
  readme 'echo "a   b"' "$(printf 'a b\n1 2')"
  ! tour "$fake" /nonexistent "$work/run" >/dev/null || { echo "a missing line was not found"; return 1; }
  printf '# no tour\n' >"$fake/README.md"
  ! tour "$fake" /nonexistent "$work/run" >/dev/null || { echo "a README without a tour was not found"; return 1; }
}

if [[ $1 == --self-test ]]; then
  self_test "$2"
else
  tour "$1" "$2" "$3"
fi
