#!/usr/bin/env bash
# Times what a model takes for a token behind a stored context, and the memory that it takes, with the cache held decoded and coded.
# usage: steps.sh MODEL TEXT REPEATS OUT PEAK_MEMORY TOKENS... -- NAME=ENCODE_OPTIONS...
#   PEAK_MEMORY: build/test/cli/peak_memory
#
# For each number of tokens, which the text begins with, a line for each codec: tokens; name; bits per value; MB of codes; and twice, decoded and
# coded, the median of milliseconds a token and MiB of memory at the most. A codec that a cache cannot be held in is left out there.
set -eu -o pipefail
export LC_ALL=C  # or seconds have a comma
model=$1 text=$2 repeats=$3 out=$4 peak_memory=$5
shift 5
kvcodec=${KVCODEC:-kvcodec}
lengths=() steps=16
while [[ $1 != -- ]]; do lengths+=("$1"); shift; done
shift
mkdir -p "$out"

median() { sort -g | awk '{ value[NR] = $1 } END { print value[int((NR + 1) / 2)] }'; }
# written TOKENS FORM BOOK…: seconds that writing them takes, and MiB; the first of them comes with the prompt
written() {
  local tokens=$1 form=$2
  shift 2
  "$peak_memory" 1000000 "$kvcodec" generate "$out/codes.h5" "$@" --model "$model" --prompt ' And then' --tokens "$tokens" --no-stop --cache "$form" \
    --quiet --json 2>"$out/said" >"$out/written.json" || { cat "$out/said" >&2; return 1; }
  printf '%s\t%s\n' "$(jq '.seconds' "$out/written.json")" "$(sed -n 's/^peak_memory: \([0-9]*\) MiB.*/\1/p' "$out/said")"
}
# step FORM BOOK…: milliseconds a token, MiB
step() {
  local times="" memory=0 one many
  for ((i = 0; i < repeats; ++i)); do
    one=$(written 1 "$@") || { printf '\t' && return; }
    many=$(written $((steps + 1)) "$@")
    times+=$(jq -n "(${many%$'\t'*} - ${one%$'\t'*}) * 1000 / $steps")$'\n'
    memory=${many#*$'\t'}
  done
  printf '%s\t%s' "$(median <<<"${times%$'\n'}")" "$memory"
}

for tokens in "${lengths[@]}"; do
  "$kvcodec" dump-kv --model "$model" --text "$text" --chunk "$tokens" --max-tokens "$tokens" --queries none --quiet --overwrite -o "$out/kv.h5" >/dev/null
  for setting; do
    # shellcheck disable=SC2086  # options
    "$kvcodec" encode "$out/kv.h5" ${setting#*=} --quiet --overwrite -o "$out/codes.h5" >/dev/null
    book=$(grep -oE -e '--book [^ ]+' <<<"${setting#*=}" || true)
    # shellcheck disable=SC2086
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$tokens" "${setting%%=*}" \
      "$("$kvcodec" info "$out/codes.h5" --json | jq '.rate.bits_per_value * 100 | round / 100')" \
      "$(($(stat -c %s "$out/codes.h5") / 1000000))" "$(step decoded $book)" "$(step coded $book)"
  done
done
