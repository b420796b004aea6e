#!/usr/bin/env bash
# Makes the tables of `make judges` of results of eval-model: for each text a line for each setting, its bits (of all models, from, to), the rise of
# the likelihood where it is largest, and the divergence of each model.
# usage: judges-table.sh [--rivals] RESULT.json...      --rivals: results of `make rivals`
set -euo pipefail
if [[ ${1:-} == --rivals ]]; then
  shift
  cat <<'TEXT'
`make rivals`: methods of others as programs of the codec exec ([rivals](../rivals)), and ours as they come (`kivi-3`: `--bits 3`; `transform-0.5`: bits
of the text that its book learned from, Pride and Prejudice). `llama.cpp-q4_0` and its like are types of its cache, with the rotation of heads that
it has had since April 2026; `turboquant-3` is the paper's MSE form at 3 bits, `vllm-` its `turboquant_` types; `kvquant-3` is nuq3 with 1% outliers and one
exact token. Bits are per value, of all models, all streams counted but books and programs; rise and KL in nats per token, with the interval that
holds 95% of the time over documents drawn like these.

TEXT
else
  cat <<'TEXT'
`make judges`: codecs as they come (a number behind `q4` and `kivi`: `--bits`; behind `transform`: bits of the text that its book learned from, Pride
and Prejudice) on four models and two texts of which nothing was picked on; nothing was picked on Gemma. Bits are per value, of all models, all
streams counted but the book; rise and KL in nats per token, with the interval that holds 95% of the time over documents drawn like these.

TEXT
fi
jq -r -s '
  def fixed($digits): (if . < 0 then "-" else "" end) + (fabs * pow(10; $digits) | round | tostring |
    "0" * ([$digits + 1 - length, 0] | max) + . | .[:-$digits] + "." + .[-$digits:]);
  def measure($digits): (.mean | fixed($digits)) + if .half_width_95 then " ± \(.half_width_95 | fixed($digits))" else "" end;
  def name: .model | sub("/+$"; "") | split("/") | last | sub("\\.gguf$"; "");
  def text: .command | capture("--text \\S*/(?<text>[^/ ]+)\\.txt").text;
  group_by(text)[] as $results | [$results[0].settings[].label] as $names |
  "## \($results[0] | text)", "",
  ($results[] | "- \(name): \(.documents) documents, \(.length) tokens of which \(.prefix) are compressed; \(.uncompressed.nll | measure(3)) nats with the uncompressed cache"), "",
  "| setting | bits/value | NLL rise, worst | \($results | map("KL, \(name | split("-Instruct")[0] | split(".Q")[0])") | join(" | ")) |",
  "| --- | --- | --- | \($results | map("---") | join(" | ")) |",
  ($names[] as $setting | [$results[] | .settings[] | select(.label == $setting)] as $rows | ($rows | map(.bits_per_value | fixed(2)) | unique) as $bits |
    "| `\($setting)` | \($bits[0])\(if $bits | length > 1 then " to \($bits[-1])" else "" end) | \($rows | max_by(.nll_rise.mean) | .nll_rise | measure(4)) | " +
    ($rows | map(.kl | measure(5)) | join(" | ")) + " |"), ""' "$@"
