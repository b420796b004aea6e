# Options that encode finds for a rate, a quality, a loss. The found options can be typed, and give the same codes.
set -e
. src/test/cli/refused.sh
kvcodec dump-kv --model src/data/demo-model --text src/data/text/moby-dick.txt --chunk 512 --max-tokens 4096 --queries none --quiet -o kv.h5 >/dev/null
kvcodec train-dict kv.h5 --atoms 256 --sparsity 16 --layer-group 2 --epochs 1 --quiet -o dict.h5 >/dev/null
kvcodec train-transform kv.h5 --quiet -o transform.h5 >/dev/null
# The bits of a file, within 1% of the goal; from 0.97 for whole atoms, from 0.95 for a goal of 1/8 bit by layer and side. The search codes fewer values than the
# file has, although the cache is so small that its samples are large shares of it.
near() { # <lowest share> <bits> <options of encode...>
  low=$1 bits=$2
  shift 2
  kvcodec encode kv.h5 "$@" --total-bits "$bits" --json --overwrite -o codes.h5 2>said |
    jq -r --argjson low "$low" --argjson bits "$bits" '"\(.codec) \($bits): \(.bits_per_value / $bits | if . >= $low and . <= 1.01 then "near" else . end), \(
      if .search_tries <= 7 and .search_coded_values < 0.75 * .values then "cheap" else [.search_tries, .search_coded_values / .values] end)"'
  grep -c "note: $(echo "$2" | cut -d : -f 1) --" said
}
near 0.99 2 --codec kvcomp
near 0.99 3.5 --codec kvcomp
near 0.99 1 --codec transform --book transform.h5
near 0.97 1.4 --codec sparse --book dict.h5
near 0.95 3.5 --codec kivi
near 0.95 3.6 --codec q4
# The same options, typed, are the same codes; and the same again.
kvcodec encode kv.h5 --codec kvcomp --total-bits 2.5 --quiet -o found.h5 >/dev/null
options=$(kvcodec info found.h5 | sed -n 's/.*(found: \(.*\)).*/\1/p')
kvcodec encode kv.h5 --codec kvcomp $options --quiet -o typed.h5 >/dev/null
kvcodec info found.h5 --json | jq .parameters >found
kvcodec info typed.h5 --json | jq .parameters | cmp - found && echo "the options found are those of the file"
# A quality is reached, and a finer one takes more.
for quality in low medium high near-lossless; do
  kvcodec encode kv.h5 --codec kvcomp --quality $quality --quiet --json --overwrite -o $quality.h5 >rate
  kvcodec decode $quality.h5 --quiet --overwrite -o recon.h5 >/dev/null
  kvcodec eval-recon kv.h5 recon.h5 --json --quiet | jq -r --arg quality $quality --argjson bits "$(jq .bits_per_value rate)" \
    '.reconstructions[0] | [.key, .value] | map(.layers[].nmse) | (-10 * ((add / length) | log10)) as $snr
     | "\($quality): \($snr | . + 0.05 | floor) dB, \(if $bits > 0.5 and $bits < 8 then "smaller" else $bits end)"'
done
# A book says how decibels go on from one setting to the next.
for quality in low:10 medium:15 high:20; do
  kvcodec encode kv.h5 --codec transform --book transform.h5 --quality "${quality%:*}" --quiet --json --overwrite -o learned.h5 >rate
  kvcodec decode learned.h5 --book transform.h5 --quiet --overwrite -o recon.h5 >/dev/null
  kvcodec eval-recon kv.h5 recon.h5 --json --quiet | jq -r --argjson db "${quality#*:}" --argjson tries "$(jq .search_tries rate)" \
    '.reconstructions[0] | [.key, .value] | map(.layers[].nmse) | (-10 * ((add / length) | log10)) as $snr
     | "\(if ($snr - $db | fabs) < 1 then "reached" else $snr end) in \(if $tries <= 2 then "two tries at most" else $tries end)"'
done
# A loss: the upper end of its interval keeps the limit.
kvcodec encode kv.h5 --codec kvcomp --max-nll 0.02 --model src/data/demo-model --text src/data/text/pride-and-prejudice.txt --overwrite -o loss.h5 2>said >/dev/null
sed -n 's/.*loses \([0-9.]*\) nats per token, at most \([0-9.]*\) with 95% confidence/\1 \2/p' said |
  awk '{ print ($1 > 0.002 && $1 < $2 && $2 <= 0.02) ? "loses so much and no more" : $0 }'
# Text of another kind than the cache's is noted, by its tokens and by its rate.
yes 7 | head -n 3000 >numbers.txt
kvcodec encode kv.h5 --codec transform --book transform.h5 --max-nll 0.05 --model src/data/demo-model --text numbers.txt --overwrite -o loss.h5 2>said >/dev/null
grep -o 'its tokens do not occur in the text that the loss is measured on' said
grep -o 'bits per value where the text that the loss is measured on takes' said
# One document to judge on is enough from here on.
head -c 3000 src/data/text/pride-and-prejudice.txt >judged.txt
# The files used for judging count as inputs: a piece that is older than one of them is made again.
loss() { kvcodec encode kv.h5 --codec kivi --max-nll 0.02 --model src/data/demo-model --text judged.txt --resume --piece 64K -o resumed.h5; }
(
  ulimit -f "$(($(stat -c %s found.h5) * 7 / 10 / 512))"
  loss >/dev/null 2>&1 || echo "status $?"
)
ls resumed.h5.pieces | head -n 1
touch judged.txt
loss >/dev/null 2>said
grep -c 'pieces are in' said || true
sed -n 's/.*loses \([0-9.]*\) nats.*/\1/p' said | awk '{ print ($1 > 0.002 && $1 <= 0.02) ? "loses so much and no more" : $0 }'
kvcodec sensitivity --model src/data/demo-model --text src/data/text/pride-and-prejudice.txt --chunk 200 --max-documents 2 --quiet -o s.h5 >/dev/null
kvcodec encode kv.h5 --codec q4 --total-bits 3.1 --weights s.h5 --quiet -o weighed.h5 >/dev/null
kvcodec info weighed.h5 --json | jq -r '.parameters["layer-bits"] / " " | map(tonumber) | [length, (unique | length > 1)] | tostring'
kvcodec encode kv.h5 --codec kvcomp --total-bits 2 --weights s.h5 --quiet --overwrite -o weighed.h5 >/dev/null
kvcodec info weighed.h5 --json | jq -r '.parameters | [."max-error" > 0, (."error-scales" / " " | length)] | tostring'
# The options found are used for appended documents.
kvcodec encode kv.h5 --append found.h5 --quiet -o grown.h5 >/dev/null
kvcodec info grown.h5 --json | jq .parameters | cmp - found && echo "appended with the same options"
set +e
refused encode kv.h5 --codec none --total-bits 2 -o x.h5
refused encode kv.h5 --codec kivi --total-bits 2 --bits 2 -o x.h5
refused encode kv.h5 --codec kivi:bits=2,total-bits=2 -o x.h5
refused encode kv.h5 --codec kivi --total-bits 0.5 -o x.h5
refused encode kv.h5 --codec kivi --total-bits 0 -o x.h5
refused encode kv.h5 --codec kivi:total-bits=0 -o x.h5
refused encode kv.h5 --codec kvcomp --max-nll 0 -o x.h5
refused encode kv.h5 --codec auto --total-bits 0 --max-nll 0 -o x.h5
refused encode kv.h5 --codec transform --book transform.h5 --quality near-lossless -o x.h5
refused encode kv.h5 --codec kvcomp --total-bits 2 --quality low -o x.h5
refused encode kv.h5 --codec kvcomp --total-bits 0 --quality low -o x.h5
refused encode kv.h5 --codec kvcomp --max-nll 0.1 -o x.h5
refused encode kv.h5 --codec kvcomp --model src/data/demo-model -o x.h5
refused encode kv.h5 --append found.h5 --total-bits 2 -o x.h5
# A rate that no setting reaches is reported.
refused encode kv.h5 --codec kvcomp --max-rel-error 0.1 --weights s.h5 --total-bits 3 -o x.h5
# After a text of which nearly all is kept exactly no loss can be seen.
judge="--model src/data/demo-model --text judged.txt"
refused encode kv.h5 --codec q4 --window 512 --max-nll 0.01 $judge -o x.h5
refused encode kv.h5 --codec transform --book transform.h5 --window 512 --max-nll 0.01 $judge -o x.h5
kvcodec encode kv.h5 --codec q4 --window 128 --max-nll 0.05 $judge -o exact.h5 2>&1 >/dev/null | grep -o 'measured behind.*'
refused encode kv.h5 --codec q4 --preset paper -o x.h5
refused encode kv.h5 --codec kivi --preset best -o x.h5
