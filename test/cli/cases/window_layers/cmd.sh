# Layers with sliding windows: caches that keep only their last tokens.
. src/test/cli/refused.sh
seq -s ' ' 1 40 >ids
seq -s ' ' 5 9 >>ids
seq -s ' ' 30 60 >>ids
model=src/test/golden/model/gemma2-1
kvcodec dump-kv --model $model --tokens ids --queries last:4 --dtype f32 --quiet -o whole.h5 >dump
kvcodec dump-kv --model $model --tokens ids --queries last:4 --dtype f32 --window-layers trim --quiet -o trim.h5 >dump
kvcodec info trim.h5 | sed -n '/^tokens/,/^queries/p'
kvcodec info trim.h5 --json | jq -c .held_tokens
# The kept part equals that of the whole cache; later tokens see no more of it.
kvcodec eval-recon whole.h5 trim.h5 --attention --json | jq -c '.reconstructions[0] | [.key.values, .key.mse, .value.mse, .attention.queries, .attention.output_error]'
for codec in none kivi:window=4 q4 fp8 lossless kvcomp:block=4 kivi:rope=undo,window=4; do
  kvcodec encode trim.h5 --codec $codec --quiet -o codes.h5 --overwrite >codes
  kvcodec decode codes.h5 --dtype f32 --quiet -o recon.h5 --overwrite >recon
  kvcodec eval-recon trim.h5 recon.h5 --rate codes.h5 --json | jq -c '.reconstructions[0] | [.key.values, .rate.values, .key.snr_db == null or .key.snr_db > 5, .value.snr_db == null or .value.snr_db > 5]'
done
kvcodec check trim.h5 codes.h5
# Documents take that many bits per held value.
kvcodec ls trim.h5 --json | jq -c '[.files[].documents[].bits_per_value]'
kvcodec ls trim.h5 --long | awk '{ print $4 }'
kvcodec ls codes.h5 --json | jq '[.files[].documents[] | 8 * .bytes / .bits_per_value] | add | round' >values
kvcodec info codes.h5 --json | jq .rate.values | cmp - values && echo "as many values as info counts"
kvcodec info codes.h5 | sed -n '/^tokens held/,/^values/p'
kvcodec info codes.h5 --json | jq -c '[.version, .held_tokens]'
# Parts of it.
kvcodec decode codes.h5 --tokens 28: --dtype f32 --quiet -o part.h5 >part
kvcodec info part.h5 --json | jq -c .held_tokens
kvcodec eval-recon recon.h5 part.h5 --json | jq -c '.reconstructions[0] | [.tokens, .key.values, .key.mse, .value.mse]'
refused decode codes.h5 --tokens :9 -o x.h5
refused decode codes.h5 --tokens 28:36 -o x.h5
refused decode codes.h5 --select 0-3,25 --documents 2 -o x.h5
kvcodec decode codes.h5 --tokens :9 --layers 1 --quiet --json -o first.h5 | jq -c '[.documents, .tokens]'
kvcodec decode codes.h5 --tokens 31:36 --documents 0 --quiet -o inner.h5 >part
kvcodec info inner.h5 --json | jq -c .held_tokens
# Without compared tokens there is no measure.
kvcodec dump-kv --model $model --tokens ids --documents 0 --queries every:10 --dtype f32 --window-layers trim --quiet -o every.h5 >dump
kvcodec dump-kv --model $model --tokens ids --documents 0 --max-tokens 20 --dtype f32 --window-layers trim --quiet -o start-kv.h5 >dump
kvcodec encode start-kv.h5 --codec q4 --quiet -o start-codes.h5 >codes
kvcodec decode start-codes.h5 --dtype f32 --quiet -o start.h5 >part
kvcodec eval-recon every.h5 start.h5 --attention | sed 's/[0-9]\.[0-9e-]*/N/g; s/  */ /g'
kvcodec eval-recon every.h5 start.h5 --attention --json >measures
jq -c '.reconstructions[0] | .key.layers[0], .attention.layers[0] | del(.heads)' measures
# Documents can be added, but none is continued if tokens are missing.
kvcodec encode trim.h5 --codec q4 --center none --documents 0 --quiet -o one.h5 >one
kvcodec encode trim.h5 --append one.h5 --documents 1-2 --quiet -o two.h5 >two
kvcodec encode trim.h5 --codec q4 --center none --quiet -o all.h5 >all
kvcodec decode two.h5 --quiet -o two-recon.h5 >recon
kvcodec decode all.h5 --quiet -o all-recon.h5 >recon
kvcodec eval-recon all-recon.h5 two-recon.h5 --json | jq -c '.reconstructions[0] | [.key.values, .key.mse, .value.mse]'
make_kv --layers 2 --heads 1 --dim 16 --window 8 --window 0 --document a:0:20 -o begun.h5
make_kv --layers 2 --heads 1 --dim 16 --window 8 --window 0 --document a:20:40 -o more.h5
kvcodec encode begun.h5 --codec q4 --quiet -o begun-codes.h5 >begun
refused encode more.h5 --append begun-codes.h5 --continue -o x.h5
make_kv --layers 2 --heads 1 --dim 16 --document a:20:40 -o more.h5
kvcodec encode more.h5 --append begun-codes.h5 --continue --quiet -o more-codes.h5 >more
kvcodec info more-codes.h5 --json | jq -c .held_tokens
# Goals are reached on what layers hold.
make_kv --layers 2 --heads 2 --dim 32 --window 0 --window 128 --document a:0:600 -o windows.h5
for goal in '--total-bits 6' '--quality high'; do
  kvcodec encode windows.h5 --codec kvcomp $goal --quiet --json -o windows-codes.h5 --overwrite >rate
  jq -c '[.bits_per_value < 6.06, .bits_per_value > 4]' rate
  kvcodec decode windows-codes.h5 --quiet -o windows-recon.h5 --overwrite >recon
  kvcodec eval-recon windows.h5 windows-recon.h5 --json | jq '.reconstructions[0] | [.key, .value] | map(.layers[].snr_db) | min | floor'
done
kvcodec choose windows.h5 --total-bits 8 --codecs kvcomp,kivi --quiet --json | jq -c '[.codecs[] | [.codec, .reached]]'
# attend and select ask layers for what their windows show, and find in each what they find in the whole cache.
dump() { kvcodec dump-kv --model $model --tokens ids --queries last:$last --dtype f32 --quiet "$@" >dump; }
codec="--codec q4:center=none,sink=0 --rope keep" # codes each token by itself
last=1
dump -o whole.h5 --overwrite
dump --window-layers trim -o last.h5
kvcodec encode whole.h5 $codec --quiet -o whole-codes.h5 >codes
kvcodec encode last.h5 $codec --quiet -o last-codes.h5 >codes
same() { # FIELDS: whether they are as near to each other in whole.json and trim.json as rounding makes them, layer by layer
  jq -cs "[.[0].layers, .[1].layers] | transpose | map([.[0].layer, .[0].layer == .[1].layer and
    (map([$1]) | transpose | all((.[0] - .[1] | fabs) <= 1e-4 * (.[0] | fabs)))])" whole.json trim.json
}
errors=".relative_error, .max_error, .cosine_mean, .cosine_first_percentile"
kvcodec attend whole-codes.h5 --queries whole.h5 --json --quiet >whole.json
jq -c '.layers | map(.relative_error > 0)' whole.json
for run in last-codes:last last-codes:whole whole-codes:last; do
  kvcodec attend ${run%:*}.h5 --queries ${run#*:}.h5 --check --json --quiet >trim.json
  same "$errors"
done
jq -c '.total.check.largest_relative_difference < 0.001' trim.json
kvcodec index whole.h5 --sink 2 --clusters 5 --quiet -o index.h5 >index
for by in oracle "codes --share each" "clusters --index index.h5 --beside waiting"; do
  by="$by --first 1 --newest 1 --budget 4 --dense-layers 2"
  kvcodec select whole-codes.h5 --queries whole.h5 --by $by --json --quiet -o chosen.h5 --overwrite >whole.json
  kvcodec select last-codes.h5 --queries last.h5 --by $by --json --quiet -o last-chosen.h5 --overwrite >trim.json
  same ".selections, .tokens, .visible, .beside, .recall, .mass, .output_error, .stored_error"
  # The files name the same tokens, by their places in the documents.
  kvcodec attend whole-codes.h5 --queries whole.h5 --select chosen.h5 --json --quiet >whole.json
  for run in whole-codes:last-chosen last-codes:chosen; do
    kvcodec attend ${run%:*}.h5 --queries whole.h5 --select ${run#*:}.h5 --json --quiet >trim.json
    same ".selected_tokens, .beside, $errors"
  done
done
kvcodec encode last.h5 --codec selfindex --quiet -o signs.h5 >codes
kvcodec select signs.h5 --queries last.h5 --by signs --budget 4 --json --quiet | jq -c '[.layers[] | [.layer, .tokens]]'
# So do queries of later tokens, but none sees what is gone.
kvcodec dump-kv --model $model --tokens ids --documents 0 --max-tokens 30 --dtype f32 --quiet -o start-kv.h5 --overwrite >dump
kvcodec encode start-kv.h5 $codec --quiet -o start-codes.h5 --overwrite >codes
kvcodec dump-kv --model $model --tokens ids --documents 0 --max-tokens 30 --dtype f32 --window-layers trim --quiet -o start-last.h5 >dump
kvcodec encode start-last.h5 $codec --quiet -o start-trim.h5 >codes
last=11 && dump -o later.h5
kvcodec attend start-codes.h5 --queries later.h5 --json --quiet >whole.json
kvcodec attend start-trim.h5 --queries later.h5 --json --quiet >trim.json
same "$errors"
last=12 && dump -o later.h5 --overwrite
refused attend start-trim.h5 --queries later.h5 -o x.h5
refused attend start-codes.h5 --queries trim.h5 -o x.h5
refused attend codes.h5 --queries trim.h5 -o x.h5
refused select codes.h5 --queries trim.h5 --by codes --budget 9 -o x.h5
kvcodec attend codes.h5 --queries trim.h5 --layers 1 --json --quiet | jq .queries
# Layers that hold their windows only get no clusters, and select takes all tokens of them.
kvcodec index last.h5 --sink 2 --clusters 5 --json -o own.h5 2>note | jq -c '[[.layers[].layer], .layers_without_clusters]'
cat note
kvcodec select last-codes.h5 --queries last.h5 --by clusters --index own.h5 --first 1 --newest 1 --budget 4 --dense-layers none --json --quiet |
  jq -c '[.layers[] | [.layer, .dense, .tokens < .visible]]'
refused index last.h5 --layers 0 -o x.h5
refused index last.h5 --append index.h5 -o x.h5
refused select whole-codes.h5 --queries whole.h5 --by clusters --index own.h5 --budget 4 -o x.h5
# A model without windows keeps all.
export SOURCE_DATE_EPOCH=1700000000
kvcodec dump-kv --model src/data/demo-model --tokens ids --window-layers trim --quiet -o demo.h5 >dump
kvcodec info demo.h5 --json | jq -c '[.version, .held_tokens]'
