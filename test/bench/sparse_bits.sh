#!/bin/sh
# Bits per signal and error of sparse codes by type of coefficients, sorted and not.
#
#   sparse_bits.sh KVCODEC MODEL TRAINING-TEXT TEXT FOLDER
#
# Makes caches of 60,000 tokens of the training text and of 4,000 of the other, learns 8,192 atoms with all the
# layers of a model of four in one signal, and codes the second cache with 64 of them. Files that are in FOLDER
# already are taken as they are.
set -eu
kvcodec=$1 model=$2 training=$3 text=$4 folder=$5
mkdir -p "$folder"
cd "$folder"
[ -f train.h5 ] || "$kvcodec" dump-kv --model "$model" --text "$training" --chunk 1000 --max-tokens 60000 -o train.h5 >&2
[ -f kv.h5 ] || "$kvcodec" dump-kv --model "$model" --text "$text" --chunk 1000 --max-tokens 4000 -o kv.h5 >&2
[ -f dict.h5 ] || "$kvcodec" train-dict train.h5 --atoms 8192 --sparsity 64 --layer-group 4 --steps 40 -o dict.h5 >&2

signals=$((4000 * 2)) # one of keys and one of values for each token
number() { # <key> <file>: the first number of that name in a JSON result, 0 if there is none
  found=$(grep -o "\"$1\": *[-0-9.e+]*" "$2" | head -n 1 | sed 's/.*: *//')
  echo "${found:-0}"
}
after() { # <key> <file>: the file from the first line with that name on
  sed -n "/\"$1\":/,\$p" "$2"
}
measure() { # <options of encode ...>
  "$kvcodec" encode kv.h5 --codec sparse --preset paper --no-pack --book dict.h5 "$@" --quiet --overwrite -o codes.h5 >/dev/null
  "$kvcodec" decode codes.h5 --book dict.h5 --dtype f32 --quiet --overwrite -o recon.h5 >/dev/null
  "$kvcodec" info codes.h5 --json >info.json
  "$kvcodec" eval-recon kv.h5 recon.h5 --json >recon.json
  after ledger_bytes info.json >ledger.json
  after key recon.json >keys.json
  after value recon.json >values.json
  echo "$* $(number ids ledger.json) $(number payload ledger.json) $(number scales ledger.json) $(number offsets ledger.json) \
    $(number nmse keys.json) $(number nmse values.json)" |
    awk -v signals=$signals '{
      n = NF - 6; name = $1; for (i = 2; i <= n; ++i) name = name " " $i
      for (i = 1; i <= 4; ++i) bits[i] = 8 * $(n + i) / signals
      printf "%-60s %6.0f  %5.0f %5.0f %5.0f  %.5f %.5f\n", name, bits[1] + bits[2] + bits[3] + bits[4], bits[1], bits[2], bits[3] + bits[4], $(NF - 1), $NF }'
}
echo "options, bits per signal (all; ids, coefficients, rest), NMSE of keys and values"
measure --pack --coefficients f16
measure --sort-ids --coefficients f16
for part in 0 0.005 0.01 0.02 0.05; do measure --sort-ids --coefficients i8 --rounding-error $part; done
