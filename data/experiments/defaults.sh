#!/usr/bin/env bash
# What codecs take and keep as they come, and in the form of their papers: a line for each codec, bits per value of the file, everything
# counted but the book, and the signal-to-noise ratio of keys and values in dB.
# usage: defaults.sh KV WORK_FOLDER CODEC[=BOOK]...      with kvcodec (or KVCODEC=...) and jq on PATH
set -euo pipefail
kv=$1 work=$2
shift 2
kvcodec=${KVCODEC:-kvcodec}
mkdir -p "$work"

# measure CODEC PRESET [BOOK]: bits, and the ratio of keys and of values
measure() {
  local book=(${3:+--book "$3"})
  "$kvcodec" encode "$kv" --codec "$1" --preset "$2" "${book[@]}" --quiet --json --overwrite -o "$work/codes.h5" >"$work/rate.json"
  "$kvcodec" decode "$work/codes.h5" "${book[@]}" --quiet --overwrite -o "$work/kv.h5" >"$work/decode.log"
  "$kvcodec" eval-recon "$kv" "$work/kv.h5" --quiet --json >"$work/recon.json"
  jq -r -s 'def db: if . == null then "exact" else . * 10 | round / 10 | tostring end;
    [(.[0].bits_per_value * 1000 | round / 1000), (.[1].reconstructions[0] | (.key.snr_db | db), (.value.snr_db | db))] | @tsv' \
    "$work/rate.json" "$work/recon.json"
}

printf '%-10s  %28s  %28s\n' codec 'default: bits, keys, values' 'paper: bits, keys, values'
for word; do
  codec=${word%%=*} book=
  [[ $word == *=* ]] && book=${word#*=}
  read -r bits keys values < <(measure "$codec" default "$book")
  paper='same'
  if read -r p_bits p_keys p_values < <(measure "$codec" paper "$book" 2>/dev/null); then
    paper=$(printf '%8s  %8s  %8s' "$p_bits" "$p_keys" "$p_values")
  fi
  printf '%-10s  %8s  %8s  %8s  %28s\n' "$codec" "$bits" "$keys" "$values" "$paper"
done
