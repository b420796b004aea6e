#!/usr/bin/env bash
# Runs one command-line test: a script and what it must print.
# usage: run_case.sh PROGRAM_FOLDER WORK_FOLDER CASE_FOLDER [--update]
#
# A case is a folder with
#   cmd.sh                       run by sh in a fresh directory, with kvcodec and the test tools on PATH
#   exit                         the expected exit status (0 if the file is missing; 77 = the case skipped itself)
#   stdout.exact, stdout.glob    what it must print: byte for byte, or line by line with the shell's * ? [..], where a line "..."
#                                stands for any number of lines. Neither = nothing. stdout.ignore = anything.
#   stderr.exact, …              likewise
# The script finds the checkout as src/ and shared small files (test/cli/make_data.sh) as data/, absolutely as $SOURCE and $DATA.
# --update writes what came out to the .exact files and `exit`; look at the diff before believing it.
set -u
programs=$1 work=$2 case=$3 update=${4:-}
name=$(basename "$case")
SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
DATA=$work/data
export SOURCE DATA
export SOURCE_DATE_EPOCH=1700000000 LC_ALL=C PATH="$programs:$PATH"
unset OMP_NUM_THREADS KVCODEC_SIMD

directory=$work/$name
rm -rf "$directory"
mkdir -p "$directory/run"
ln -s "$SOURCE" "$directory/run/src"
ln -s "$DATA" "$directory/run/data"
(cd "$directory/run" && exec sh "$case/cmd.sh") >"$directory/stdout" 2>"$directory/stderr" </dev/null
status=$?

if ((status == 77)); then
  echo "skipped: $(cat "$directory/stdout" "$directory/stderr")"
  exit 77
fi

# matches EXPECTED ACTUAL: line by line; "..." takes as few lines as will do.
matches() {
  local -a want got
  mapfile -t want <"$1"
  mapfile -t got <"$2"
  local w=0 g=0 back_w=-1 back_g=0
  while ((g < ${#got[@]})); do
    if ((w < ${#want[@]})) && [[ ${want[w]} == "..." ]]; then
      back_w=$((w + 1)) back_g=$g w=$((w + 1))
    elif ((w < ${#want[@]})) && [[ ${got[g]} == ${want[w]} ]]; then
      w=$((w + 1)) g=$((g + 1))
    elif ((back_w >= 0)); then
      back_g=$((back_g + 1)) w=$back_w g=$back_g
    else
      return 1
    fi
  done
  while ((w < ${#want[@]})) && [[ ${want[w]} == "..." ]]; do w=$((w + 1)); done
  ((w == ${#want[@]}))
}

failed=0
expected_status=0
[[ -f $case/exit ]] && expected_status=$(<"$case/exit")
if ((status != expected_status)); then
  if [[ $update ]]; then
    echo "$status" >"$case/exit"
    ((status != 0)) || rm "$case/exit"
  else
    echo "exit status $status, not $expected_status"
    failed=1
  fi
fi

for stream in stdout stderr; do
  actual=$directory/$stream
  [[ -f $case/$stream.ignore ]] && continue
  if [[ -f $case/$stream.glob ]]; then
    if ! matches "$case/$stream.glob" "$actual"; then
      echo "$stream does not match $case/$stream.glob; it is:"
      cat "$actual"
      failed=1
    fi
    continue
  fi
  expected=$case/$stream.exact
  [[ -f $expected ]] || expected=/dev/null
  cmp -s "$expected" "$actual" && continue
  if [[ $update ]]; then
    rm -f "$case/$stream.exact"
    [[ ! -s $actual ]] || cp "$actual" "$case/$stream.exact"
  else
    echo "$stream differs from what is expected:"
    diff -u "$expected" "$actual"
    failed=1
  fi
done

((failed)) && echo "(files are in $directory)"
[[ $update ]] || ((failed)) || rm -rf "$directory"
exit $failed
