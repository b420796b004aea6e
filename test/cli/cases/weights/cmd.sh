# Errors weighted by their cost for the demo model: codes and books that record it, and refusals.
. src/test/cli/refused.sh
model=src/data/demo-model
kvcodec sensitivity --model $model --text src/data/text/pride-and-prejudice.txt --chunk 200 --max-documents 2 --sink 0 --quiet -o s.h5 >said
kvcodec dump-kv --model $model --text src/data/text/moby-dick.txt --chunk 200 --max-tokens 600 --quiet -o kv.h5 >said
bound="--codec kvcomp --sink 0 --entropy huffman --max-error 0.3 --block 50"
kvcodec encode kv.h5 $bound --quiet -o plain.h5 >said
kvcodec encode kv.h5 $bound --weights s.h5 --quiet -o weighed.h5 >said
kvcodec encode kv.h5 $bound --weights s.h5 -o noted.h5 2>&1 >said | grep 'first tokens'
kvcodec encode kv.h5 $bound --weights s.h5 --sink 1 -o unnoted.h5 2>&1 >said | grep -c 'first tokens'
# Four layers, keys and values: eight numbers, not all the same.
kvcodec info weighed.h5 --json | jq -c '.parameters["error-scales"] / " " | [length, (unique | length > 4)]'
kvcodec info plain.h5 --json | jq -c '.parameters["error-scales"]'
kvcodec info weighed.h5 --json | jq -c '.parameters["error-scales"] / " " | map(tonumber)' >scales
# The same tokens in two pieces give the same codes.
kvcodec encode kv.h5 $bound --weights s.h5 --documents 0 --quiet -o one.h5 >said
kvcodec encode kv.h5 --append one.h5 --documents 1-2 --quiet -o two.h5 >said
kvcodec info two.h5 --json | jq -c '.parameters["error-scales"] / " " | map(tonumber)' | cmp - scales && echo "appended with the same bounds"
# Nothing is quantized yet, and the token that replaces the first one waits too.
kvcodec encode kv.h5 --codec kivi --preset paper --sink 1 --window 500 --quiet -o kivi.h5 >said
kvcodec decode kivi.h5 --quiet -o kivi-recon.h5 >said
kvcodec eval-recon kv.h5 kivi-recon.h5 --rate kivi.h5 --quiet --json | jq -c '.reconstructions[0].rate | [.key.values == .key.exempt_values]'
# Books trained with weights.
kvcodec train-dict kv.h5 --weights s.h5 --atoms 64 --sparsity 8 --layer-group 2 --epochs 1 --quiet -o dict.h5 >said
kvcodec info dict.h5 --json | jq -c '.parameters.normalize'
kvcodec train-rvq kv.h5 --weights s.h5 --codebooks-value 2 --codebooks-low 2 --codebooks-high 1 --entries-value 16 --entries-low 16 --entries-high 16 --epochs 2 --refits 1 --quiet -o books.h5 >said
kvcodec info books.h5 --json | jq -c '.parameters["error-scales"] / " " | length'
kvcodec encode kv.h5 --codec rvq --sink 4 --book books.h5 --window 20 --quiet -o rvq.h5 >said
kvcodec encode kv.h5 --codec rvq --sink 0 --book books.h5 --window 20 -o unkept.h5 2>&1 >said | grep 'first tokens'
kvcodec encode kv.h5 --codec sparse --sink 0 --book dict.h5 -o unkept-2.h5 2>&1 >said | grep 'first tokens'
kvcodec encode kv.h5 --codec sparse --book dict.h5 -o kept.h5 2>&1 >said | grep -c 'first tokens'
# The same bounds; places in a batch of the model differ, and with them last digits.
kvcodec eval-model --model $model --text src/data/text/moby-dick.txt --chunk 200 --max-documents 2 --quiet --json \
  --codec kvcomp:sink=0,entropy=huffman,max-error=0.3,block=50,weights=s.h5 --codec weighed.h5 --codec sparse:preset=paper,book=dict.h5 --codec rvq:sink=4,book=books.h5,window=20 |
  jq -c '[.settings[].kl.mean] | [(.[0] / .[1] - 1 | fabs) < 1e-4, (map(. > 0) | all)]'
refused encode kv.h5 --codec kvcomp --weights s.h5 -o x.h5
refused encode kv.h5 --codec q4 --weights s.h5 -o x.h5
refused encode kv.h5 --codec sparse --book dict.h5 --weights s.h5 -o x.h5
refused encode kv.h5 $bound --weights kv.h5 -o x.h5
refused encode kv.h5 $bound --weights missing.h5 -o x.h5
refused encode kv.h5 --append weighed.h5 --weights s.h5 -o x.h5
refused train-dict kv.h5 --weights s.h5 --normalize signal -o x.h5
refused train-dict kv.h5 --normalize weights -o x.h5
refused train-dict kv.h5 --resume dict.h5 --weights s.h5 -o x.h5
refused train-rvq kv.h5 --resume books.h5 --weights s.h5 -o x.h5
refused eval-model --model $model --text src/LICENSE --codec weighed.h5:weights=s.h5
