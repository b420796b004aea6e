# A model with convolutions in the place of attention (LFM2): only its layers with attention have keys and values, codes keep the state of
# the others, and the model goes on from both.
set -e
. src/test/cli/letters_model.sh
letters_model lfm2-1
for number in 1 2 3; do tail -c +$((number * 1000)) letters | head -c 800 >$number.txt; done
kvcodec dump-kv --model model --text 1.txt 2.txt 3.txt --dtype f32 --queries last:16 --quiet -o kv.h5 >dumped
kvcodec info kv.h5 | grep -E '^state'
kvcodec check kv.h5
kvcodec info kv.h5 | grep -E '^layers'
state_of kv.h5 --documents 0 | cut -d' ' -f1,2

kvcodec train-transform kv.h5 --quiet -o book.h5 >book
kvcodec encode kv.h5 --codec transform --book book.h5 --quiet -o codes.h5 >codes
kvcodec decode codes.h5 --book book.h5 --quiet -o recon.h5 >decoded
kvcodec eval-recon kv.h5 recon.h5 --json --quiet | jq -c '.. | objects | select(has("layers")) | .layers | length' | head -1
kvcodec encode kv.h5 --codec lossless --quiet -o lossless.h5 >codes
kvcodec eval-model --model model --text 1.txt 2.txt --chunk 400 --codec none:label=exact --codec q4 --dtype f32 --json --quiet >judged
jq -c '.settings[] | [.label, (.nll_rise.mean | fabs) < 1e-6]' judged
goes_on kv.h5 lossless.h5
