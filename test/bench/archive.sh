#!/bin/bash
# An archive of many documents, as the engineer of a corpus uses it: one document out of it, its list, documents appended, shards joined.
# Documents of 200 tokens of the demo model, those of one novel again and again, coded by the transform that data/quickstart.sh learns.
# usage: test/bench/archive.sh [BUILD_FOLDER]     DOCUMENTS=100000 (default), REPEATS=11; takes some 5 GB in TMPDIR for 100,000 documents
#
# Times are medians and extremes of REPEATS runs of whole commands. Reads are those that strace counts during the whole command, for the
# archive alone; without strace they are left out.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
PATH=$(realpath "${1:-build}"):$PATH
DOCUMENTS=${DOCUMENTS:-100000} REPEATS=${REPEATS:-11}
export SOURCE_DATE_EPOCH=1700000000
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

milliseconds() { # COMMAND…: of one run
  local begin=$EPOCHREALTIME
  "$@" >/dev/null 2>messages || { cat messages >&2; return 1; }
  awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f\n", (b - a) * 1000 }'
}
summary() { # NAME <times
  sort -n | awk -v name="$1" '{ t[NR] = $1 } END { printf "%-32s %10.1f ms   (%.1f to %.1f)\n", name, t[int((NR + 1) / 2)], t[1], t[NR] }'
}
report() { # NAME COMMAND…
  local name=$1
  shift
  for _ in $(seq "$REPEATS"); do milliseconds "$@"; done | summary "$name"
}
reads_of() { # FILE COMMAND…: how often and how much of FILE
  local file=$1
  shift
  command -v strace >/dev/null || { echo "reads: unknown without strace"; return; }
  strace -f -y -e trace=pread64,read,preadv -o trace "$@" >/dev/null 2>&1
  grep -F "/$file>" trace | awk '{ n++; bytes += $NF } END { printf "%-44s %d reads, %d bytes\n", "  of the archive", n, bytes }'
}

echo "== documents and a book"
kvcodec dump-kv --model "$root/data/demo-model" --text "$root/data/text/pride-and-prejudice.txt" --chunk 1024 --max-tokens 40960 --queries none --quiet -o train.h5
kvcodec train-transform train.h5 --quiet -o book.h5 >/dev/null
kvcodec dump-kv --model "$root/data/demo-model" --text "$root/data/text/moby-dick.txt" --chunk 200 --max-tokens 40000 --queries none --quiet -o kv.h5
kvcodec encode kv.h5 --codec transform --book book.h5 --bits 1 --quiet -o part.h5 >/dev/null
in_part=$(kvcodec ls part.h5 --json | grep -c '"tokens": 200')
copies=$(((DOCUMENTS + in_part - 1) / in_part))
# Each copy has names of its own: those in the header of the form for transformers, where they are text.
kvcodec export kv.h5 --to transformers --quiet -o kv.safetensors >/dev/null
for copy in $(seq -f %04g "$copies"); do
  sed "s/moby-dick/moby-$copy/g" kv.safetensors >copy.safetensors
  kvcodec import copy.safetensors --model "$root/data/demo-model" --quiet --overwrite -o copy.h5 >/dev/null
  kvcodec encode copy.h5 --codec transform --book book.h5 --bits 1 --quiet -o "part-$copy.h5" >/dev/null
  echo "part-$copy.h5"
done >parts
echo "$in_part documents of 200 tokens, $copies times: $((in_part * copies)) documents"

echo "== one archive"
report "start alone (--version)" kvcodec --version
(REPEATS=1 report "cat of $copies files" kvcodec cat -T parts --quiet --overwrite -o archive.h5)
ls -l archive.h5 | awk '{ printf "%-44s %s bytes\n", "archive", $5 }'
middle=$((in_part * copies / 2))
report "ls" kvcodec ls archive.h5
report "decode one document" kvcodec decode archive.h5 --book book.h5 --documents $middle --quiet --overwrite -o one.h5
reads_of archive.h5 kvcodec decode archive.h5 --book book.h5 --documents $middle --quiet --overwrite -o one.h5

echo "== 1,000 documents appended, three times"
for set in 1 2 3; do # texts of new names: what the archive has under a name is not added again
  mkdir set-$set
  for copy in 1 2; do cp "$root/data/text/pride-and-prejudice.txt" set-$set/set-$set-$copy.txt; done
  kvcodec dump-kv --model "$root/data/demo-model" --text set-$set --chunk 200 --max-tokens 200000 --queries none --quiet -o set-$set.h5
done
encode="kvcodec encode --codec transform --book book.h5 --bits 1 --quiet --overwrite"
for set in 1 2 3; do milliseconds $encode set-$set.h5 -o new-$set.h5; done | summary "encode them alone"
for set in 1 2 3; do milliseconds kvcodec encode set-$set.h5 --append archive.h5 --book book.h5 --quiet; done | summary "append them in place"
echo "$(kvcodec ls archive.h5 --json | grep -c '"tokens": 200') documents now"

echo "== 200 documents dumped into a cache of 2,000, in place, beside a file of their own"
dump="kvcodec dump-kv --model $root/data/demo-model --chunk 200 --quiet"
mkdir there more
cp "$root/data/text/moby-dick.txt" there/a.txt
cp "$root/data/text/pride-and-prejudice.txt" more/b.txt
$dump --text there --max-tokens 400000 -o there.h5 >/dev/null
for _ in $(seq "$REPEATS"); do
  cp there.h5 grown.h5 && sync
  milliseconds $dump --text more --max-tokens 40000 --append grown.h5 >>grown.times
  sync
  milliseconds $dump --text more --max-tokens 40000 --overwrite -o alone.h5 >>alone.times
done
summary "dump-kv --append" <grown.times
summary "dump-kv alone" <alone.times
rm there.h5 grown.h5 alone.h5

echo "== 64 shards by two commands at a time, joined, beside one run"
shards() { seq 64 | xargs -P 2 -I{} $encode set-1.h5 --shard {}/64 -o shard-{}.h5; }
join() { kvcodec cat $(seq -f 'shard-%g.h5' 64) --quiet --overwrite -o joined.h5; }
report "one run" $encode set-1.h5 -o whole.h5
(REPEATS=3 report "64 shards" shards)
report "cat of 64 shards" join
for file in whole joined; do kvcodec decode $file.h5 --book book.h5 --dtype f32 --quiet --overwrite -o $file-kv.h5 >/dev/null; done
kvcodec eval-recon whole-kv.h5 joined-kv.h5 --json --quiet | jq -e '.reconstructions[0] | .key.max_error == 0 and .value.max_error == 0' >/dev/null
diff <(kvcodec ls whole.h5 --json | jq -c '.files[].documents[] | [.name, .tokens, .digest]' | sort) <(kvcodec ls joined.h5 --json | jq -c '.files[].documents[] | [.name, .tokens, .digest]' | sort)
echo "the documents are the same, bit for bit"
