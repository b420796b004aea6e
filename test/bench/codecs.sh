#!/usr/bin/env bash
# Times encode and decode of every codec on a cache of a model, one thread, and prints a table in Markdown: bits per value, and MB of 16-bit
# cache per second of processor time (user and system) of the whole command, medians. Books are learned in a hurry: they say nothing of loss;
# TRANSFORM_BOOK names one in place of the transform.
# usage: codecs.sh KVCODEC MODEL FOLDER [TOKENS] [ROUNDS]      needs jq
set -euo pipefail
kvcodec=$1 model=$2 folder=$3 tokens=${4:-2048} rounds=${5:-3}
texts=$(cd "$(dirname "$0")/../../data/text" && pwd)
mkdir -p "$folder"
cd "$folder"
export OMP_NUM_THREADS=1

make() { [[ -f ${*: -1} ]] || "$kvcodec" "${@:1:$#-1}" --quiet -o "${*: -1}" >/dev/null; }  # COMMAND... FILE
make dump-kv --model "$model" --text "$texts/moby-dick.txt" --chunk 1024 --max-tokens "$tokens" --queries last:32 kv.h5
make dump-kv --model "$model" --text "$texts/pride-and-prejudice.txt" --chunk 1024 --max-tokens 8192 train.h5
[[ ${TRANSFORM_BOOK:-} ]] && cp "$TRANSFORM_BOOK" transform.h5
make train-transform train.h5 --max-tokens 6144 transform.h5
make train-dict train.h5 --max-tokens 8192 --atoms 1024 --sparsity 48 --layer-group "${LAYER_GROUP:-3}" --steps 4 --rope undo dict.h5
make train-rvq train.h5 --codebooks-value 8 --codebooks-low 6 --codebooks-high 4 --vectors 8192 --epochs 1 --rope undo rvq.h5

settings=(none none lossless lossless fp8 fp8 q4 q4 q4-3 q4:bits=3 kivi-3 kivi:bits=3 kvcomp kvcomp kvcomp-huffman kvcomp:entropy=huffman
  selfindex selfindex rvq rvq:book=rvq.h5 sparse-24 sparse:book=dict.h5,sparsity=24)
for bits in 1.0 0.5 0.2; do settings+=("transform-$bits" "transform:book=transform.h5,bits=$bits"); done
TIMEFORMAT='%U %S'
for ((round = 0; round < rounds; round++)); do
  for ((i = 0; i < ${#settings[@]}; i += 2)); do
    label=${settings[i]} word=${settings[i + 1]} book=()
    [[ $word =~ book=([^,]*) ]] && book=(--book "${BASH_REMATCH[1]}")
    { time "$kvcodec" encode kv.h5 --codec "$word" --device cpu --overwrite --quiet --json -o codes.h5 >"$label.json"; } 2>encode.time
    { time "$kvcodec" decode codes.h5 "${book[@]}" --device cpu --overwrite --quiet -o restored.h5 >/dev/null; } 2>decode.time
    echo "$label $(jq -r '[.bits_per_value, .values] | @tsv' "$label.json") $(cat encode.time decode.time | xargs)"
  done
done >times
echo '| setting | bits/value | encode, MB/s | decode, MB/s |'
echo '| --- | --- | --- | --- |'
awk '
  function median(list, n, i, j, v) {
    split(list, v, " ")
    for (i = 1; i <= n; i++) for (j = i + 1; j <= n; j++) if (v[j] + 0 < v[i] + 0) { t = v[i]; v[i] = v[j]; v[j] = t }
    return v[int((n + 1) / 2)]
  }
  !($1 in n) { order[++labels] = $1 }
  { n[$1]++; bits[$1] = $2; megabytes[$1] = $3 * 2 / 1e6; encode[$1] = encode[$1] " " ($4 + $5); decode[$1] = decode[$1] " " ($6 + $7) }
  END {
    for (i = 1; i <= labels; i++) {
      l = order[i]
      printf "| `%s` | %.2f | %.0f | %.0f |\n", l, bits[l], megabytes[l] / median(encode[l], n[l]), megabytes[l] / median(decode[l], n[l])
    }
  }' times
