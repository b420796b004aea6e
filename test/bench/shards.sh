#!/bin/bash
# The cost of a share of a corpus besides its work: starts of dump-kv --shard and encode --shard, and cat by share and by byte.
#
#   shards.sh KVCODEC MAKE_KV MODEL TEXT FOLDER [ROUNDS]      TEXT: a file that is cut into documents of 1,000 characters
#
# For each command: the median of its processor time and of the wall clock, in seconds, and what it read and wrote (calls and
# bytes, of the whole process, by /proc/self/io).
set -eu
kvcodec=$(realpath "$(command -v "$1")") make_kv=$(realpath "$2") model=$(realpath "$3") text=$(realpath "$4") folder=$5 rounds=${6:-3}
export OMP_NUM_THREADS=1 SOURCE_DATE_EPOCH=1700000000
TIMEFORMAT='%U %S %R'
mkdir -p "$folder"
cd "$folder"
middle() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
# The counts of a shell include those of the programs that it waited for.
counted() { sh -c '"$@" >/dev/null || exit 1; awk "/syscr|rchar|syscw|wchar/ { print \$2 }" /proc/$$/io >counts' sh "$@"; }
measure() { # <name> <command ...>: one line
  local name=$1
  shift
  rm -f times
  for _ in $(seq "$rounds"); do { time counted "$@" 2>&3; } 3>&2 2>>times; done
  read -r rchar wchar syscr syscw < <(xargs <counts)
  printf '%s: read %s bytes in %s calls, wrote %s in %s, ' "$name" "$rchar" "$syscr" "$wchar" "$syscw"
  echo "processor $(awk '{ print $1 + $2 }' times | middle) s, clock $(awk '{ print $3 }' times | middle) s"
}
# Texts of 1 and 8 MB.
for size in 1 8; do
  for _ in $(seq $((2 + size * 1000000 / $(stat -c %s "$text")))); do cat "$text"; done |
    tr -s '\n' ' ' | fold -w 1000 | head -n "${size}000" | jq -R -c '{text: .}' >corpus-$size.jsonl
done
measure "nothing (--version)" "$kvcodec" --version
for size in 1 8; do
  measure "dump-kv, a share of no document, of $size MB of text" \
    "$kvcodec" dump-kv --model "$model" --text corpus-$size.jsonl --queries none --shard 1/1000000 --quiet --overwrite -o none.h5
done
# The table of documents that each start reads.
for documents in 1000 10000; do
  [ -f kv-$documents.h5 ] ||
    "$make_kv" --layers 4 --heads 2 --dim 16 --documents $documents --tokens 16 -o kv-$documents.h5
  measure "encode, share 1 of 1,000 of $documents documents" \
    "$kvcodec" encode kv-$documents.h5 --codec q4 --sink 1 --shard 1/1000 --quiet --overwrite -o share.h5
done
# Joins of few and of many shares, of few and of many bytes.
[ -f big.h5 ] || "$make_kv" --layers 4 --heads 2 --dim 16 --documents 64 --tokens 4096 -o big.h5
join() { # <kv file> <how many of its 16 shares>
  for i in $(seq "$2"); do
    [ -f "$1-$i.h5" ] || "$kvcodec" encode "$1" --codec q4 --sink 1 --shard "$i/16" --quiet -o "$1-$i.h5" >/dev/null
  done
  # shellcheck disable=SC2046  # a word for each share
  measure "cat, $2 of 16 shares of $1" "$kvcodec" cat $(seq -f "$1-%.0f.h5" "$2") --quiet --overwrite -o joined.h5
}
join kv-1000.h5 4
join kv-1000.h5 16
join big.h5 8
join big.h5 16
