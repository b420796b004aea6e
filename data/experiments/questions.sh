#!/usr/bin/env bash
# Asks a model about a text whose cache is compressed: questions.tsv has the number of a piece of data/text/technical.txt, a question, and its
# answer, a span of that piece. The model goes on behind the piece's cache with what it takes for likeliest.
# usage: questions.sh MODEL OUT NAME=ENCODE_OPTIONS...      a line per setting: bits per value; F1; answers that hold the right one, in percent
#
# F1 is of words, as SQuAD counts them (Rajpurkar et al., 2016): without case, punctuation and articles. NAME= alone: the cache as it is.
set -eu -o pipefail
export LC_ALL=C
model=$1 out=$2
shift 2
kvcodec=${KVCODEC:-kvcodec}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$out"
# Pieces of 1,900 to 2,600 tokens, which begin at these headings.
rm -f "$out"/piece-*
awk -v out="$out" '/^(3\. Single|4\. Rollback|6\. Additional|7\.3\. )/ || NR == 1 { ++piece } /^9\. Things/ { exit }
  { print >(out "/piece-" piece ".txt") }' "$here/../text/technical.txt"
"$kvcodec" dump-kv --model "$model" --text "$out"/piece-?.txt --queries none --quiet --overwrite -o "$out/kv.h5" >/dev/null

for setting; do
  options=${setting#*=} cache=$out/kv.h5 bits=16
  book=$(grep -oE -e '--book [^ ]+' <<<"$options" || true)
  if [[ $options ]]; then
    cache=$out/${setting%%=*}.h5
    # shellcheck disable=SC2086  # options
    "$kvcodec" encode "$out/kv.h5" $options --quiet --overwrite -o "$cache" >/dev/null
    bits=$("$kvcodec" info "$cache" --json | jq '.rate.bits_per_value * 100 | round / 100')
  fi
  while IFS=$'\t' read -r piece question right; do
    # shellcheck disable=SC2086
    answer=$("$kvcodec" generate "$cache" $book --documents $((piece - 1)) --model "$model" --prompt - --tokens 24 --quiet --json \
      <<<$'\n\nQuestion: '"$question"$'\nAnswer:' | jq -r '.text | ltrimstr(" ") | split("\n")[0]')
    printf '%s\t%s\n' "$right" "$answer"
  done <"$here/questions.tsv" | tee "$out/${setting%%=*}.answers" | awk -F '\t' -v name="${setting%%=*}" -v bits="$bits" '
    function words(text, list,  n, i, kept, all) {
      text = tolower(text); gsub(/[^a-z0-9 ]/, "", text); n = split(text, all, " ")
      for (i = 1; i <= n; ++i) if (all[i] !~ /^(a|an|the)$/) list[++kept] = all[i]
      return kept + 0
    }
    {
      delete right; delete said; delete left
      r = words($1, right); s = words($2, said); same = 0; text = phrase = " "
      for (i = 1; i <= r; ++i) { ++left[right[i]]; phrase = phrase right[i] " " }
      for (i = 1; i <= s; ++i) { if (left[said[i]]-- > 0) ++same; text = text said[i] " " }
      f1 += same ? 2 * same / (r + s) : 0; held += index(text, phrase) > 0; ++asked
    }
    END { printf "| `%s` | %s | %.1f | %.1f |\n", name, bits, 100 * f1 / asked, 100 * held / asked }'
done
