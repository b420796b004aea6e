# A model with convolutions in the place of attention (LFM2): only its layers with attention have keys and values, codes keep the state of
# the others, and the model goes on from both.
set -e
cp -r src/test/golden/model/lfm2-1 model && chmod -R u+w model
jq -nc '(["Ġ", "."] + [range(97; 123), range(65; 91), range(48; 58) | [.] | implode] | to_entries | map({(.value): .key}) | add) as $vocab
  | {version: "1.0", added_tokens: [], normalizer: null, pre_tokenizer: {type: "ByteLevel", add_prefix_space: false, use_regex: true},
     post_processor: null, decoder: {type: "ByteLevel"}, model: {type: "BPE", vocab: $vocab, merges: []}}' >model/tokenizer.json
tr -sc 'a-z.' ' ' <src/data/text/tempest.txt >letters
for number in 1 2 3; do tail -c +$((number * 1000)) letters | head -c 800 >$number.txt; done
kvcodec dump-kv --model model --text 1.txt 2.txt 3.txt --dtype f32 --queries last:16 --quiet -o kv.h5 >dumped
kvcodec info kv.h5 | grep -E '^state'
kvcodec check kv.h5
kvcodec export kv.h5 --to transformers --documents 0 --quiet -o state.safetensors >exported
length=$(od -An -tu8 -N8 state.safetensors | tr -d ' ')
tail -c +9 state.safetensors | head -c $length | jq -r 'to_entries[] | select(.key != "__metadata__") | [.key, (.value.shape | map(tostring) | join("x"))] | @tsv' | sort

kvcodec train-transform kv.h5 --quiet -o book.h5 >book
kvcodec encode kv.h5 --codec transform --book book.h5 --quiet -o codes.h5 >codes
kvcodec decode codes.h5 --book book.h5 --quiet -o recon.h5 >decoded
kvcodec eval-recon kv.h5 recon.h5 --json --quiet | jq -c '.. | objects | select(has("layers")) | .layers | length' | head -1
kvcodec encode kv.h5 --codec lossless --quiet -o lossless.h5 >codes
kvcodec eval-model --model model --text 1.txt 2.txt --chunk 400 --codec none:label=exact --codec q4 --dtype f32 --json --quiet >judged
jq -c '.settings[] | [.label, (.nll_rise.mean | fabs) < 1e-6]' judged
for number in 0 1; do
  kvcodec generate --model model --prompt "$(cat $((number + 1)).txt) and so" --tokens 24 --json --quiet | jq -c .tokens >read
  for cache in kv.h5 lossless.h5; do
    kvcodec generate $cache --documents $number --model model --prompt " and so" --tokens 24 --json --quiet | jq -c .tokens | cmp - read
  done
done
jq length read
