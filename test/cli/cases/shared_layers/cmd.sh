# Gemma 4: layers with heads of two widths, the last of which use keys and values of earlier ones, through all codecs and back into the model.
set -e
. src/test/cli/refused.sh
# A small one that reads letters; the same as the part for text of one that reads pictures too, with experts.
for number in 1 3; do
  cp -r src/test/golden/model/gemma4-$number model$number && chmod -R u+w model$number
  jq -nc '(["Ġ", "."] + [range(97; 123), range(65; 91), range(48; 58) | [.] | implode] | to_entries | map({(.value): .key}) | add) as $vocab
    | {version: "1.0", added_tokens: [], normalizer: null, pre_tokenizer: {type: "ByteLevel", add_prefix_space: false, use_regex: true},
       post_processor: null, decoder: {type: "ByteLevel"}, model: {type: "BPE", vocab: $vocab, merges: []}}' >model$number/tokenizer.json
done
tr -sc 'a-z.' ' ' <src/data/text/tempest.txt >letters
for number in 1 2; do tail -c +$((number * 3000)) letters | head -c $((1000 + 300 * number)) >$number.txt; done
for number in 1 3; do
  kvcodec dump-kv --model model$number --text 1.txt 2.txt --dtype f32 --queries last:4 --quiet -o kv$number.h5 >dumped
  kvcodec info kv$number.h5 | sed -n '/^shape/,/^keys/p'
done
kvcodec dump-kv --model model1 --text 1.txt 2.txt --dtype f32 --window-layers trim --quiet -o trimmed.h5 >dumped

# Every codec codes what is there.
kvcodec train-transform kv1.h5 --quiet -o transform.h5 >book
kvcodec train-dict kv1.h5 --atoms 24 --sparsity 3 --steps 3 --quiet -o sparse.h5 >book
kvcodec train-rvq kv1.h5 --preset small --vectors 1000 --entries-value 8 --entries-low 8 --entries-high 8 --quiet -o rvq.h5 >book
for codec in none lossless q4 "q4 --rope undo" fp8 kivi kvcomp selfindex transform sparse rvq; do
  book=; if [ -e ${codec%% *}.h5 ]; then book="--book ${codec%% *}.h5"; fi
  kvcodec encode kv1.h5 --codec $codec $book --quiet -o codes.h5 --overwrite >codes
  kvcodec decode codes.h5 $book --dtype f32 --quiet -o recon.h5 --overwrite >decoded
  kvcodec eval-recon kv1.h5 recon.h5 --json | jq -c --arg codec "$codec" '.reconstructions[0] | [$codec, (.layers | length), (.key.snr_db // 99) > 3, (.value.snr_db // 99) > 3]'
done
for cache in kv1 trimmed; do
  kvcodec encode $cache.h5 --codec lossless --quiet -o $cache-codes.h5 >codes
  kvcodec decode $cache-codes.h5 --dtype f32 --quiet -o $cache-back.h5 >decoded
  kvcodec eval-recon $cache.h5 $cache-back.h5 --json | jq -c '.reconstructions[0] | [.key.max_error, .value.max_error]'
done

# The model goes on as if it had read the text, from rows, from codes in their place, and through a cache of transformers.
kvcodec export kv1-back.h5 --documents 1 --to transformers --quiet -o cache.safetensors >exported
kvcodec import cache.safetensors --model model1 --quiet -o imported.h5 >imported
more() { kvcodec generate "$@" --model model1 --prompt " and so" --tokens 24 --no-stop --json --quiet | jq -c .tokens; }
kvcodec generate --model model1 --prompt "$(cat 2.txt) and so" --tokens 24 --no-stop --json --quiet | jq -c .tokens >read
for cache in kv1.h5 kv1-codes.h5 trimmed.h5 trimmed-codes.h5; do more $cache --documents 1 | cmp - read; done
more kv1-codes.h5 --documents 1 --cache coded | cmp - read
more imported.h5 --documents 0 | cmp - read
jq length read
kvcodec generate --model model3 --prompt "$(cat 2.txt) and so" --tokens 24 --no-stop --json --quiet | jq -c .tokens >read
kvcodec generate kv3.h5 --documents 1 --model model3 --prompt " and so" --tokens 24 --no-stop --json --quiet | jq -c .tokens | cmp - read

# Codes, selection and joining lose something; the rest is refused.
for words in "--codec lossless --codec q4 --codec fp8" "--codec kvcomp:select=codes,budget=64 --codec none:select=signs,budget=64" \
  "--codec none --joined 2" "--codec q4 --stream 16"; do
  kvcodec eval-model --model model1 --text 1.txt --chunk 600 $words --json --quiet | jq -c '[.settings[] | [.setting, .kl.mean < 0.2]]'
done
kvcodec choose kv1.h5 --total-bits 6 --json --quiet | jq -c '.choice != null'
kvcodec attend kv1-codes.h5 --queries kv1.h5 --json --quiet | jq -c '[.layers[].layer]'
kvcodec sensitivity --model model1 --text 1.txt --chunk 600 --json --quiet -o weights.h5 | jq -c '[.layers[] | .key.variance > 0]'
kvcodec train-transform kv1.h5 --weights weights.h5 --quiet --json -o weighed.h5 | jq -c .layer_group
set +e
refused sensitivity --model model1 --text 1.txt --chunk 600 --metric fisher -o x.h5
refused export kv1.h5 --documents 0 --to mlx -o x.safetensors
