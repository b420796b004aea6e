#!/usr/bin/env bash
# Makes a table in Markdown of results of eval-model, a line for each setting, in the order of the files, under a sentence that says what was
# run.
# usage: markdown-table.sh [--budgets] RESULT.json...     task text; results of the task recall add how many facts were found
#        --budgets: labels end in -BUDGET; a line for each selector, a column for each budget, the rise of the likelihood (and facts found) in them
set -euo pipefail
budgets=false
if [[ ${1:-} == --budgets ]]; then
  budgets=true
  shift
fi
jq -r -s --argjson budgets $budgets '
  def grouped: tostring | [scan(".")] | reverse | [range(0; length; 3) as $i | .[$i:$i + 3] | reverse | add] | reverse | join(",");
  def fixed($digits): (. * pow(10; $digits) | round | tostring) | "0" * ([$digits + 1 - length, 0] | max) + . |
    if $digits == 0 then . else .[:-$digits] + "." + .[-$digits:] end;
  def signed($digits): (if . < 0 then "-" else "" end) + (fabs | fixed($digits));
  (map(select(.task == "recall") | .settings[] | {key: .label, value: .recall.share}) | from_entries) as $found |
  ([.[] | select(.task == "text") | .settings[] | select(.kl.quantile_99)] | length > 0) as $tail |
  (["setting", "bits/value", "NLL rise (95%)", "KL"] + if $tail then ["KL, 99th percentile"] else [] end + ["same top-1"] +
    if $found != {} then ["facts found"] else [] end) as $head |
  (map(select(.task == "text"))[0] | .uncompressed.nll as $nll |
    "\(.model | sub("/+$"; "") | split("/") | last | sub("\\.gguf$"; ""))\([.command | capture("--text \\S*/(?<text>[^/ ]+)\\.txt").text] | map(", " + .) | add // ""): \(.documents) documents of \(.length | grouped) tokens, of which \(.prefix | grouped) are compressed; \(.judged_tokens | grouped) judged tokens, \($nll.mean | fixed(3))" +
    (if $nll.half_width_95 then " ± \($nll.half_width_95 | fixed(3))" else "" end) + " nats per token with the uncompressed cache:", ""),
  if $budgets then
    [.[] | select(.task == "text") | .settings[] | (.label | capture("^(?<who>.*)-(?<budget>[0-9]+)$")) +
      {cell: ((.nll_rise.mean | signed(3)) + (if .nll_rise.half_width_95 then " ± \(.nll_rise.half_width_95 | fixed(3))" else "" end) +
        if $found[.label] then " (\(100 * $found[.label] | fixed(0))%)" else "" end)}] as $cells |
    ($cells | map(.budget) | unique_by(tonumber)) as $columns |
    ($cells | reduce .[].who as $w ([]; if index($w) then . else . + [$w] end)) as $rows |
    (["NLL rise at a budget of"] + $columns), (["---"] + ($columns | map("---"))),
    ($rows[] as $who | ["`\($who)`"] + [$columns[] as $b | ($cells[] | select(.who == $who and .budget == $b) | .cell) // ""]) |
    "| \(join(" | ")) |"
  else (($head, ($head | map("---")),
    (.[] | select(.task == "text") | .settings[] |
      ["`\(.label)`",
       (.bits_per_value | fixed(2)) + if (.bits_per_value_with_book | fixed(2)) != (.bits_per_value | fixed(2)) then " (\(.bits_per_value_with_book | fixed(2)) with its book)" else "" end,
       (.nll_rise.mean | signed(4)) + if .nll_rise.half_width_95 then " ± \(.nll_rise.half_width_95 | fixed(4))" else "" end,
       (.kl.mean | fixed(5))] +
      if $tail then [.kl.quantile_99 // 0 | fixed(4)] else [] end +
      ["\(100 * .same_top1.mean | fixed(1))%"] +
      if $found != {} then ["\(100 * $found[.label] | fixed(0))%"] else [] end)) |
  "| \(join(" | ")) |") end' "$@"
