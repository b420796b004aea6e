#!/usr/bin/env bash
# Times the first token that a model writes behind a stored context, against reading the context's text.
# usage: first-answer.sh MODEL TEXT REPEATS OUT TOKENS... -- NAME=ENCODE_OPTIONS...
#
# For each number of tokens, which the text begins with, a line for the text itself and one for each codec: tokens; name; bits per value; medians of
# seconds to read and decode the cache, to read what is not cached (the prompt, or text and prompt), and of the whole command.
set -eu -o pipefail
export LC_ALL=C  # or seconds have a comma
model=$1 text=$2 repeats=$3 out=$4
shift 4
kvcodec=${KVCODEC:-kvcodec}
prompt=' What happens to them all in the end?'
lengths=()
while [[ $1 != -- ]]; do lengths+=("$1"); shift; done
shift
mkdir -p "$out"

median() { sort -g | awk '{ value[NR] = $1 } END { print value[int((NR + 1) / 2)] }'; }
# first_token NAME BITS ARGUMENTS…: a line
first_token() {
  local name=$1 bits=$2 results="" begin
  shift 2
  for ((i = 0; i < repeats; ++i)); do
    begin=$EPOCHREALTIME
    "$kvcodec" generate "$@" --model "$model" --prompt - --tokens 1 --no-stop --quiet --json <"$out/prompt.txt" >"$out/answer.json"
    results+=$(jq -r --arg from "$begin" --arg to "$EPOCHREALTIME" \
      '[.cached_tokens + .prompt_tokens, .cache_seconds, .prompt_seconds, ($to | tonumber) - ($from | tonumber)] | @tsv' "$out/answer.json")$'\n'
  done
  results=${results%$'\n'}
  printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$(cut -f 1 <<<"$results" | median)" "$name" "$bits" "$(cut -f 2 <<<"$results" | median)" \
    "$(cut -f 3 <<<"$results" | median)" "$(cut -f 4 <<<"$results" | median)"
}

per_token=$("$kvcodec" dump-kv --model "$model" --text "$text" --layers 0 --chunk 512 --quiet --overwrite --json -o "$out/layer.h5" |
  jq --argjson bytes "$(stat -Lc %s "$text")" '$bytes / .tokens')
for tokens in "${lengths[@]}"; do
  "$kvcodec" dump-kv --model "$model" --text "$text" --chunk "$tokens" --max-tokens "$tokens" --queries none --quiet --overwrite -o "$out/kv.h5" >/dev/null
  { head -c "$(jq -n "$per_token * $tokens | floor")" "$text"; echo "$prompt"; } >"$out/prompt.txt"
  first_token text ""
  echo "$prompt" >"$out/prompt.txt"
  for setting; do
    # shellcheck disable=SC2086  # options
    "$kvcodec" encode "$out/kv.h5" ${setting#*=} --quiet --overwrite -o "$out/codes.h5" >/dev/null
    book=$(grep -oE -e '--book [^ ]+' <<<"${setting#*=}" || true)
    # shellcheck disable=SC2086
    first_token "${setting%%=*}" "$("$kvcodec" info "$out/codes.h5" --json | jq '.rate.bits_per_value * 100 | round / 100')" "$out/codes.h5" $book
  done
done
