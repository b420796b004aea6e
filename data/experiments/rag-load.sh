#!/usr/bin/env bash
# Loads random sets of documents from one codes file, several times each.
# usage: rag-load.sh KV CODES BOOK_OPTIONS REPEATS DOCUMENTS...
#
# A line for each number of documents: that number; bytes of the streams, ids unpacked; median seconds, with the file dropped from the page cache, of the
# whole of `kvcodec decode` into memory and of reading streams; the same two with the file in the page cache, and of rebuilding; the mean of
# the NMSE of keys and of values. The same sets for every file: the generator's seed is the number of documents.
set -eu -o pipefail
kv=$1 codes=$2 book=$3 repeats=$4
shift 4
kvcodec=${KVCODEC:-kvcodec}
memory=$(mktemp -d "${RAG_MEMORY:-/dev/shm}/rag-load.XXXXXX")
trap 'rm -rf "$memory"' EXIT

all=$("$kvcodec" info "$codes" --json | jq '.documents | length')

load() {  # of one loading: seconds, of reading, of rebuilding, bytes read
  "$kvcodec" decode "$codes" $book --documents "$1" --json --quiet --overwrite -o "$memory/set.h5" | jq -r '[.seconds, .read_seconds, .rebuild_seconds, .read_bytes] | @tsv'
}
drop() { dd if="$codes" iflag=nocache count=0 status=none; }
median() { cut -f "$2" <<<"$1" | sort -g | awk '{ value[NR] = $1 } END { print value[int((NR + 1) / 2)] }'; }  # <lines> <column>

for documents in "$@"; do
  ((documents <= all)) || documents=$all
  set=$(seq 0 $((all - 1)) | awk -v seed="$documents" 'BEGIN { srand(seed) } { print rand(), $1 }' | sort -g |
    awk -v count="$documents" 'NR <= count { print $2 }' | sort -n | paste -sd,)
  cold=$(for ((i = 0; i < repeats; ++i)); do drop; load "$set"; done)
  load "$set" >/dev/null
  warm=$(for ((i = 0; i < repeats; ++i)); do load "$set"; done)
  nmse=$("$kvcodec" eval-recon "$kv" "$memory/set.h5" --documents "$set" --quiet --json | jq '.reconstructions[0] | (.key.nmse + .value.nmse) / 2')
  printf '%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n' "$documents" "$(median "$warm" 4)" "$(median "$cold" 1)" "$(median "$cold" 2)" \
    "$(median "$warm" 1)" "$(median "$warm" 2)" "$(median "$warm" 3)" "$nmse"
done
