# A model writes behind compressed caches, and behind joined ones.
set -e
. src/test/cli/refused.sh
eval_model() { kvcodec eval-model --model src/data/demo-model --text src/data/text/tempest.txt --chunk 300 --prefix 200 --max-documents 3 --json "$@"; }
eval_model --task generate --written 20 --codec none:dtype=f32 --codec lossless --codec q4:bits=2 >result
jq -c '[.judged_tokens, .written], (.settings[] | [.label, .agreed_tokens.mean])' result
# Its own text is likelier than any other to itself.
eval_model --codec none >text
jq -s '.[0].uncompressed.nll.mean < .[1].uncompressed.nll.mean' result text
# The loss of a joined cache shrinks with the tokens that are read again, to nothing but rounding.
for again in 0 16 50; do eval_model --joined 4 --recompute $again --codec none:dtype=f32 | jq '.settings[0].kl.mean'; done >lost
awk 'NR > 1 && $1 >= before { print "no less: " $0 } { before = $1 } END { print NR, (before < 1e-6 ? "nothing is lost" : before) }' lost
eval_model --joined 4 --recompute 16 --codec none | jq -c '[.joined, .recompute]'
# Facts that one document is asked for, each by itself; the demo model finds them, at each place.
kvcodec eval-model --model src/data/demo-model --text src/data/text/tempest.txt --task recall --lengths 600 --questions 2 --asked 5 --codec fp8 --json >facts
jq -c '[.documents, .asked, .keys], (.settings[0].recall.cells | map(.depth)), (.uncompressed.recall.share >= 0.8), (.settings[0].recall.share >= 0.8)' facts
set +e
refused eval-model --model src/data/demo-model --text src/LICENSE --codec none --recompute 3
refused eval-model --model src/data/demo-model --text src/LICENSE --codec none --written 3
refused eval-model --model src/data/demo-model --text src/LICENSE --codec none --chunk 40 --joined 21
