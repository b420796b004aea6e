#!/usr/bin/env bash
# Runs the tour of README.md: its blocks marked "sh tour", as printed and in their order, in one shell, in a fresh folder that looks
# like the checkout (its top level is linked there, but for build/ and out/).
# usage: tour.sh ROOT PROGRAM_FOLDER WORK_FOLDER     fails if a command fails, or if a table's head is not that of the README
#        tour.sh --self-test WORK_FOLDER             shows that a failing command and a stale table are found
#
# Of the blocks marked "text tour", which show what a command prints, the first line is looked for in what the tour printed: figures
# may differ from machine to machine, names of columns may not.
set -euo pipefail

# blocks README MARK: the lines of the blocks of that mark, one empty line between blocks.
blocks() {
  awk -v mark="\`\`\`$2" '
    inside && /^```/ { inside = 0; print ""; next }
    inside { print }
    $0 == mark { inside = 1; found = 1 }
    END { if (inside) exit 3; if (!found) exit 4 }' "$1"
}

# tour ROOT PROGRAMS WORK
tour() {
  local root=$1 programs=$2 work=$3 entry head status=0
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
  # Runs of spaces and dashes count as one: the width of a column depends on its figures.
  tr -s ' -' <"$work/output" | sed 's/^ //; s/ $//' >"$work/squeezed"
  awk 'BEGIN { first = 1 } first && NF { print; first = 0 } !NF { first = 1 }' "$work/shown" | tr -s ' -' | sed 's/^ //; s/ $//' >"$work/heads"
  while IFS= read -r head; do
    grep -qxF -- "$head" "$work/squeezed" || { echo "README.md shows a line that no command of the tour prints: $head"; status=1; }
  done <"$work/heads"
  return $status
}

self_test() {
  local work=$1 fake
  fake=$work/root
  rm -rf "$work"
  mkdir -p "$fake"
  readme() { printf '```sh tour\n%s\n```\ntext\n```text tour\n%s\n```\n' "$1" "$2" >"$fake/README.md"; }
  readme 'echo "a   b"; echo "1   2"' "$(printf 'a b\n3 4')"
  tour "$fake" /nonexistent "$work/run" || { echo "a good tour was refused"; return 1; }
  readme 'false' 'a b'
  ! tour "$fake" /nonexistent "$work/run" >/dev/null || { echo "a failing command was not found"; return 1; }
  readme 'echo "a c"' 'a b'
  ! tour "$fake" /nonexistent "$work/run" >/dev/null || { echo "a stale table was not found"; return 1; }
  printf '# no tour\n' >"$fake/README.md"
  ! tour "$fake" /nonexistent "$work/run" >/dev/null || { echo "a README without a tour was not found"; return 1; }
}

if [[ $1 == --self-test ]]; then
  self_test "$2"
else
  tour "$1" "$2" "$3"
fi
