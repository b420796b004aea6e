#!/usr/bin/env bash
# Makes the table of `make kvcomp-keys` of results of eval-model, a part for each. Labels are KIND_STEP, the steps of a kind in rising order.
# The last column: the KL where a kind takes the bits that the first kind takes at its middle step, on a straight line of the KL's logarithm
# over bits between two steps.
# usage: kvcomp-keys.sh RESULT.json...
set -euo pipefail
cat <<'TEXT'
Keys of `kvcomp` with a relative step for each channel of a block, for a head's block, and for a block of all heads; *centred*: without the
means of their channels (`centred-heads` is the default); *plain*: symbols without origins. Values are coded alike. Moby-Dick. Last column:
the KL where a row takes the bits of the middle step by channel, and over that row's.

TEXT
jq -r -s '
  def fixed($digits): (if . < 0 then "-" else "" end) + (fabs * pow(10; $digits) | round | tostring |
    "0" * ([$digits + 1 - length, 0] | max) + . | .[:-$digits] + "." + .[-$digits:]);
  def kl_at($bits): sort_by(.bits) as $at | [range(1; length) | select($at[. - 1].bits <= $bits and $bits <= $at[.].bits)][0] as $i |
    if $i == null then null else $at[$i - 1] as $a | $at[$i] as $b |
      ($a.kl | log) + (($b.kl | log) - ($a.kl | log)) * ($bits - $a.bits) / ($b.bits - $a.bits) | exp end;
  .[-1] as $last | .[] | ([.settings[] | (.label | capture("^(?<kind>.*)_(?<step>.*)$")) + {bits: .bits_per_value, rise: .nll_rise.mean, kl: .kl.mean}]) as $all |
  ($all | reduce .[].kind as $k ([]; if index($k) then . else . + [$k] end)) as $kinds |
  [$kinds[] as $k | [$all[] | select(.kind == $k)]] as $rows | ($rows[0][1].bits) as $bits | ($rows[0] | kl_at($bits)) as $first |
  "\(.model | sub("/+$"; "") | split("/") | last | sub("\\.gguf$"; "")), \(.documents) document\(if .documents == 1 then "" else "s" end) of \(.length) tokens, of which \(.prefix) are compressed:", "",
  "| keys | step: bits per value, NLL rise, KL | \($rows[0][1:] | map("") | join(" | ")) | KL at \($bits | fixed(2)) bits |",
  "| --- | \($rows[0] | map("---") | join(" | ")) | --- |",
  ($rows[] | kl_at($bits) as $kl | "| \(.[0].kind) | \(map("\(.step): \(.bits | fixed(2)), \(.rise | fixed(4)), \(.kl | fixed(4))") | join(" | ")) | " +
    (if $kl then "\($kl | fixed(4)) (\($kl / $first | fixed(2)))" else "" end) + " |"), (select(. != $last) | "")' "$@"
