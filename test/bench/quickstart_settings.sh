#!/bin/sh
# Reproduces the choice of settings of codec sparse in data/quickstart-chain.sh: every setting learns from as many tokens of one text, and
# codes as many of another, as the quickstart does, at the rate of 2-bit kivi (3 bits per value without the overhead of
# the file), and the one with the highest mean SNR of keys and values wins. When they were chosen
# the quickstart read other texts; today it reads parts of the two that the settings were chosen on.
# No more than 1,024 atoms: those of four layers' signals are 4 MiB, and 2,048 would weigh nearly half as much as the cache at 16 bits.
# usage: test/bench/quickstart_settings.sh LEARN.txt CODE.txt [BUILD_FOLDER]     e.g. Project Gutenberg's 1342 and 2701
set -eu
[ $# -ge 2 ] || { sed -n '2,7s/^# //p' "$0" >&2; exit 2; }
learn=$(realpath "$1")
code=$(realpath "$2")
cd "$(dirname "$0")/../.."
kvcodec=$(realpath "${3:-build}")/kvcodec
model=$PWD/data/demo-model
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

number() { # <key>: the number of that name in a JSON result
  grep -o "\"$1\": *[-0-9.e+]*" | head -n 1 | sed 's/.*: *//'
}
dump() { "$kvcodec" dump-kv --model "$model" --text "$1" --chunk 1024 --max-tokens "$2" --quiet -o "$3" >/dev/null; }
dump "$learn" 40960 train.h5
dump "$code" 10240 kv.h5

width=128 # values of one layer's keys: 2 heads of 64
echo "atoms group sparsity  bits/value  keys dB  values dB  mean dB"
for atoms in 512 1024; do
  bits=$(awk "BEGIN { print 16 + log($atoms) / log(2) }")
  for group in 1 2 4; do
    s=$(awk "BEGIN { print int(3 * $group * $width / $bits) }")
    "$kvcodec" train-dict train.h5 --atoms $atoms --layer-group $group --sparsity "$s" --overwrite --quiet -o dict.h5 >/dev/null
    "$kvcodec" encode kv.h5 --codec sparse --preset paper --book dict.h5 --pack --overwrite --quiet -o codes.h5 >/dev/null
    "$kvcodec" decode codes.h5 --book dict.h5 --overwrite --quiet -o recon.h5 >/dev/null
    "$kvcodec" eval-recon kv.h5 recon.h5 --rate codes.h5 --quiet >table
    rate=$("$kvcodec" info codes.h5 --json | number bits_per_value)
    awk -v atoms=$atoms -v group=$group -v s="$s" -v rate="$rate" '
      /^all keys/ { keys = $5 }
      /^all values/ { values = $5 }
      END { printf "%5d %5d %8d %11.3f %8.2f %10.2f %8.2f\n", atoms, group, s, rate, keys, values, (keys + values) / 2 }' table
  done
done
