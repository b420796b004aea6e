#!/usr/bin/env bash
# Runs the commands that a page shows, README.md or man/kvcodec-tutorial.7: its blocks marked "sh tour" (blocks.awk), as printed and in
# their order, in one shell, in a fresh folder that looks like the checkout (its top level is linked there, except build/ and out/).
# usage: tour.sh ROOT PROGRAM_FOLDER WORK_FOLDER PAGE     fails if a command fails, or if a table is not what the commands print
#        tour.sh --self-test WORK_FOLDER                  shows that a failing command and a stale table are found
#
# Blocks marked "text tour" show what a command prints. Every line of them is looked for in what the commands printed, its figures within
# 5% (figures.awk): the last digits differ from machine to machine, and where a dictionary is learned some more do.
set -euo pipefail
checks=$(cd "$(dirname "$0")" && pwd)

# blocks FILE MARK: the lines of the blocks of that mark, one empty line between blocks.
blocks() { awk -v mark="$2" -f "$checks/blocks.awk" "$1"; }

# tour ROOT PROGRAMS WORK PAGE
tour() {
  local root=$1 programs=$2 work=$3 page=$4 entry status=0
  rm -rf "$work"
  mkdir -p "$work/run"
  for entry in "$root"/*; do
    case ${entry##*/} in
      build* | out) ;;
      *) ln -s "$entry" "$work/run/" ;;
    esac
  done
  blocks "$root/$page" "sh tour" >"$work/tour.sh" || { echo "$page: no complete block marked 'sh tour'"; return 1; }
  (cd "$work/run" && PATH=$programs:$PATH sh -eux "$work/tour.sh" >"$work/output" 2>"$work/messages") || status=$?
  if ((status != 0)); then
    echo "the tour ended with status $status; its last lines:"
    tail -n 5 "$work/output" "$work/messages"
    return 1
  fi
  blocks "$root/$page" "text tour" >"$work/shown" || { echo "$page: no complete block marked 'text tour'"; return 1; }
  awk -v page="$page" -v tolerance=0.05 -f "$checks/figures.awk" "$work/shown" "$work/output" || status=1
  return $status
}

self_test() {
  local work=$1 fake
  fake=$work/root
  rm -rf "$work"
  mkdir -p "$fake"
  markdown() { printf '```sh tour\n%s\n```\ntext\n```text tour\n%s\n```\n' "$1" "$2" >"$fake/page"; }
  manual() { printf '.Sh TOUR\n.\\" sh tour\n.Bd -literal\n%s\n.Ed\ntext\n.Bd -literal\nfalse\n.Ed\n.\\" text tour\n.Bd -literal\n%s\n.Ed\n' "$1" "$2" >"$fake/page"; }
  local form
  for form in markdown manual; do
    $form 'echo "a   b"; echo "100   2.00"' "$(printf 'a b\n103 1.92')"
    tour "$fake" /nonexistent "$work/run" page || { echo "a good tour was refused ($form)"; return 1; }
    $form 'false' 'a b'
    ! tour "$fake" /nonexistent "$work/run" page >/dev/null || { echo "a failing command was not found ($form)"; return 1; }
    $form 'echo "a c"' 'a b'
    ! tour "$fake" /nonexistent "$work/run" page >/dev/null || { echo "a stale table was not found ($form)"; return 1; }
    $form 'echo "a   b"; echo "100   2.00"' "$(printf 'a b\n107 2.00')"
    ! tour "$fake" /nonexistent "$work/run" page >/dev/null || { echo "a stale figure was not found ($form)"; return 1; }
    $form 'echo "a   b"' "$(printf 'a b\n1 2')"
    ! tour "$fake" /nonexistent "$work/run" page >/dev/null || { echo "a missing line was not found ($form)"; return 1; }
  done
  manual 'printf "a\e\e%s\en" x' '\&a\ex'
  tour "$fake" /nonexistent "$work/run" page || { echo "escapes of a manual page were not undone"; return 1; }
  sed -i '$d' "$fake/page"
  ! tour "$fake" /nonexistent "$work/run" page >/dev/null || { echo "a block without an end was not found"; return 1; }
  printf '# no tour\n' >"$fake/page"
  ! tour "$fake" /nonexistent "$work/run" page >/dev/null || { echo "a page without a tour was not found"; return 1; }
}

if [[ $1 == --self-test ]]; then
  self_test "$2"
else
  tour "$1" "$2" "$3" "$4"
fi
