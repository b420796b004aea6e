#!/bin/sh
# The chain of data/quickstart.sh: caches, a transform, codes at five rates, restored caches, and what was lost. Of two novels that come with
# the project (data/text), the demo model reads one to learn from and one to compress.
# usage: sh data/quickstart-chain.sh OUT_FOLDER     with kvcodec on PATH; caches and codes of an earlier run in that folder are replaced
set -eu
data=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cd "$1"
rm -f letter.h5 letter.codes.h5 train.h5 kv.h5 sensitivity.h5 transform.h5 lossless*.h5 four-bits*.h5 two-bits*.h5 one-bit*.h5 half-a-bit*.h5
# Commands are shown as they can be typed: with paths from here.
data=$(realpath --relative-to=. "$data")

# Shows a command, then runs it.
run() {
  printf '\n$ %s\n' "$*"
  "$@"
}

step() { printf '\n== %s ==\n' "$*"; }

step "keys and values of the demo model, reading Pride and Prejudice (to learn from) and Moby-Dick (to compress)"
run kvcodec dump-kv --model "$data/demo-model" --text "$data/text/pride-and-prejudice.txt" --chunk 1024 --max-tokens 40960 -o train.h5
run kvcodec dump-kv --model "$data/demo-model" --text "$data/text/moby-dick.txt" --chunk 1024 --max-tokens 10240 -o kv.h5

step "what errors cost the model, and a transform that puts them where they cost least"
run kvcodec sensitivity --model "$data/demo-model" --text "$data/text/pride-and-prejudice.txt" --chunk 1024 --max-documents 4 --metric fisher -o sensitivity.h5
run kvcodec train-transform train.h5 --weights sensitivity.h5 -o transform.h5

step "encode and decode"
# code NAME OPTIONS...
code() {
  name=$1
  shift
  run kvcodec encode kv.h5 "$@" -o "$name.codes.h5"
  case "$*" in *--book*) book="--book transform.h5" ;; *) book= ;; esac
  # shellcheck disable=SC2086  # two words or none
  run kvcodec decode "$name.codes.h5" $book -o "$name.h5"
}
code lossless --codec lossless
code four-bits --codec q4
code two-bits --codec transform --book transform.h5 --total-bits 2
code one-bit --codec transform --book transform.h5 --total-bits 1
code half-a-bit --codec transform --book transform.h5 --total-bits 0.5

step "what was lost and what it cost"
set -- lossless four-bits two-bits one-bit half-a-bit
reconstructions= rates= settings=
for name; do
  reconstructions="$reconstructions $name.h5"
  rates="$rates --rate $name.codes.h5"
  case $name in
    lossless | four-bits) settings="$settings --codec $name.codes.h5:label=$name" ;;
    *) settings="$settings --codec $name.codes.h5:book=transform.h5,label=$name" ;;
  esac
done
# shellcheck disable=SC2086  # names without blanks
run kvcodec eval-recon kv.h5 $reconstructions $rates | tee recon.txt
# shellcheck disable=SC2086
run kvcodec eval-model --model "$data/demo-model" --text "$data/text/moby-dick.txt" --chunk 1024 --max-documents 10 $settings | tee model.txt

step "an answer from half a bit: a number in the middle of a text, found by the model in the compressed cache"
{ head -c 1000 "$data/text/moby-dick.txt"; echo ' The secret number of harbor is 4 8 2 1.'; tail -c +1001 "$data/text/moby-dick.txt" | head -c 1000; } >letter.txt
run kvcodec dump-kv --model "$data/demo-model" --text letter.txt -o letter.h5
run kvcodec encode letter.h5 --codec transform --book transform.h5 --total-bits 0.5 -o letter.codes.h5
# answer CACHE...: from the model without a cache, from the cache and from its codes
answer() { run kvcodec generate "$@" --model "$data/demo-model" --prompt ' What is the secret number of harbor? The secret number of harbor is' --tokens 5; }
answer
answer letter.h5
answer letter.codes.h5 --book transform.h5

step "in one table"
# Rows of both tables by their names: those of eval-recon are files.
awk '
  NR == FNR { if (sub(/\.h5$/, "", $1)) { keys[$1] = $3; values[$1] = $6; bits[$1] = $8; ratio[$1] = $9 } next }
  $1 in bits {
    if (!shown++) printf "%-10s  bits/value  ratio  keys SNR dB  values SNR dB  NLL rise     +-      KL\n", "setting"
    printf "%-10s  %10s  %5s  %11s  %13s  %8.3f  %.3f  %.4f\n", $1, bits[$1], ratio[$1], keys[$1], values[$1], $5, $6, $7
  }' recon.txt model.txt
