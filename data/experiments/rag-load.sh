#!/usr/bin/env bash
# Loads random sets of documents from one codes file, several times each.
# usage: rag-load.sh KV CODES BOOK_OPTIONS REPEATS DOCUMENTS...
#
# A line for each number of documents: that number, bytes that the set needs (its share of the file), median seconds with the file dropped from
# the page cache and with it there, and the mean of the NMSE of keys and of values. Times are those of `kvcodec decode` into memory. The
# same sets for every file: the generator's seed is the number of documents.
set -eu -o pipefail
kv=$1 codes=$2 book=$3 repeats=$4
shift 4
kvcodec=${KVCODEC:-kvcodec}
memory=$(mktemp -d "${RAG_MEMORY:-/dev/shm}/rag-load.XXXXXX")
trap 'rm -rf "$memory"' EXIT

all=$("$kvcodec" info "$codes" --json | jq '.documents | length')
tokens=$("$kvcodec" info "$codes" --json | jq '[.documents[].tokens] | add')
bytes=$(stat -c %s "$codes")

load() {  # seconds of one loading
  "$kvcodec" decode "$codes" $book --documents "$1" --json --quiet --overwrite -o "$memory/set.h5" | jq .seconds
}
drop() { dd if="$codes" iflag=nocache count=0 status=none; }
median() { sort -g | awk '{ value[NR] = $1 } END { print value[int((NR + 1) / 2)] }'; }

for documents in "$@"; do
  ((documents <= all)) || documents=$all
  set=$(seq 0 $((all - 1)) | awk -v seed="$documents" 'BEGIN { srand(seed) } { print rand(), $1 }' | sort -g |
    awk -v count="$documents" 'NR <= count { print $2 }' | sort -n | paste -sd,)
  cold=$(for ((i = 0; i < repeats; ++i)); do drop; load "$set"; done | median)
  load "$set" >/dev/null
  warm=$(for ((i = 0; i < repeats; ++i)); do load "$set"; done | median)
  loaded=$("$kvcodec" info "$memory/set.h5" --json | jq '[.documents[].tokens] | add')
  nmse=$("$kvcodec" eval-recon "$kv" "$memory/set.h5" --documents "$set" --quiet --json | jq '.reconstructions[0] | (.key.nmse + .value.nmse) / 2')
  printf '%d\t%d\t%s\t%s\t%s\n' "$documents" $((bytes * loaded / tokens)) "$cold" "$warm" "$nmse"
done
