#!/usr/bin/env bash
# Whole commands on a device beside the CPU of the same machine: a model's cache of many tokens is made, encoded and decoded, and judged.
# A table in Markdown: seconds by the clock of each, tokens a second on the device, and whether the files are the same bytes.
# usage: device.sh KVCODEC MODEL TEXT FOLDER      FOLDER: for files of 23 KB a token with SmolLM2-135M; a disk in memory is best
#   TOKENS         of the cache, in documents of 1,024; default: 100352
#   SOME           documents for transform and selfindex; default: 64
#   FEW            documents for the codecs whose coding is slow (rvq, sparse); default: 16
#   ROWS           only rows of the table whose names this regular expression finds, and dump-kv; default: all
#   STEP_SECONDS   limit of each command; default: 90
#   DEVICE         default: cuda
set -uo pipefail
[ $# -eq 4 ] || { sed -n '4,10s/^# //p' "$0" >&2; exit 2; }
kvcodec=$(realpath "$1") model=$(realpath "$2") text=$(realpath "$3")
tokens=${TOKENS:-100352} some=${SOME:-64} few=${FEW:-16} rows=${ROWS:-.} limit=${STEP_SECONDS:-90} device=${DEVICE:-cuda}
export SOURCE_DATE_EPOCH=0  # files hold when they were made
mkdir -p "$4" && cd "$4" || exit 1

# timed DEVICE ARGUMENTS…: runs a command; sets $seconds, and writes its output to said-DEVICE.txt.
timed() {
  local where=$1 start end
  shift
  start=$(date +%s.%N)
  timeout "$limit" "$kvcodec" "$@" --device "$where" --quiet >said-"$where".txt 2>&1
  local status=$?
  end=$(date +%s.%N)
  seconds=$(awk "BEGIN { printf \"%.2f\", $end - $start }")
  [ $status -eq 0 ] && return
  seconds="failed ($status)"
  tail -n 3 said-"$where".txt >&2
  return 1
}
# wanted NAME: true if the row was selected.
wanted() { [[ $1 =~ $rows ]]; }
# both NAME TOKENS ARGUMENTS…: on the CPU and on the device, to cpu.h5 and device.h5, and a line of the table; fails if there
# is no product of the device.
both() {
  local name=$1 count=$2 of_cpu same
  shift 2
  rm -f cpu.h5 device.h5
  # Files hold the command that made them, and its product's name.
  timed cpu "$@" --overwrite -o product.h5 && mv product.h5 cpu.h5
  of_cpu=$seconds
  timed "$device" "$@" --overwrite -o product.h5 && mv product.h5 device.h5
  if cmp -s cpu.h5 device.h5; then same=yes; else same=no; fi
  printf '| %s | %s | %s | %s | %s | %s |\n' "$name" "$count" "$of_cpu" "$seconds" \
    "$(awk "BEGIN { s = \"$seconds\" + 0; if (s > 0) printf \"%.0f\", $count / s }")" "$same"
  grep -v '^$' said-"$device".txt | grep -i 'device\|cpu' | sed 's/^/    /' >&2
  [ -s device.h5 ]
}
# codec_rows NAME TOKENS BOOK ENCODE…: rows of encode and of decode by one codec; BOOK: the file that both take, or nothing.
codec_rows() {
  local name=$1 count=$2 book=${3:+--book $3}
  shift 3
  wanted "$name" || return
  # shellcheck disable=SC2086  # two words, or none
  both "encode $name" "$count" encode kv.h5 $book "$@" && mv device.h5 codes.h5 && both "decode $name" "$count" decode codes.h5 $book
}

printf '| command | tokens | CPU, s | device, s | tokens/s | same bytes |\n| --- | --- | --- | --- | --- | --- |\n'
both dump-kv "$tokens" dump-kv --model "$model" --text "$text" --chunk 1024 --max-tokens "$tokens"
[ -s cpu.h5 ] || mv device.h5 cpu.h5
mv cpu.h5 kv.h5
[ -s device.h5 ] && "$kvcodec" eval-recon kv.h5 device.h5 --quiet 2>&1 | grep '^all' >&2
coded=$((few * 1024)) more=$((some * 1024))
share=0-$((few - 1)) larger=0-$((some - 1))

codec_rows kvcomp "$tokens" '' --codec kvcomp
codec_rows 'kvcomp, Huffman' "$tokens" '' --codec kvcomp --entropy huffman
if wanted transform; then
  timed cpu train-transform kv.h5 --documents 0-2 --overwrite -o transform.h5
  echo "train-transform on the CPU, 3 documents: $seconds s" >&2
  codec_rows transform "$more" transform.h5 --documents $larger --codec transform --bits 1
fi
codec_rows selfindex "$more" '' --documents $larger --codec selfindex
if wanted sparse; then
  both 'train-dict' "$coded" train-dict kv.h5 --documents $share --layer-group 5 --atoms 4096 --sparsity 32 --steps 100 --optimizer adam &&
    mv device.h5 dictionary.h5 && codec_rows sparse "$coded" dictionary.h5 --documents $share --codec sparse
fi
if wanted rvq; then
  both 'train-rvq' "$coded" train-rvq kv.h5 --documents $share --epochs 2 && mv device.h5 codebooks.h5 &&
    codec_rows rvq "$coded" codebooks.h5 --documents $share --codec rvq
fi
wanted clusters && both 'index, clusters' "$tokens" index kv.h5 --clusters 64
wanted eval-model || exit 0
for where in cpu "$device"; do
  timed "$where" eval-model --model "$model" --text "$text" --chunk 2048 --max-documents 4 --codec none --codec kvcomp --codec selfindex
  printf '\neval-model, 4 documents of 2,048 tokens, 3 settings, %s: %s s\n' "$where" "$seconds"
  grep -E '^(uncompressed|none|kvcomp|selfindex)' said-"$where".txt
done
