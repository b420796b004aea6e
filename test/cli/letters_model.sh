# For cases of models whose layers keep state beside their cache: small models that read letters, and texts for them.

# letters_model GOLDEN: makes model/, the golden model of that name with a tokenizer of letters, and the file letters.
letters_model() {
  cp -r "src/test/golden/model/$1" model && chmod -R u+w model
  jq -nc '(["Ġ", "."] + [range(97; 123), range(65; 91), range(48; 58) | [.] | implode] | to_entries | map({(.value): .key}) | add) as $vocab
    | {version: "1.0", added_tokens: [], normalizer: null, pre_tokenizer: {type: "ByteLevel", add_prefix_space: false, use_regex: true},
       post_processor: null, decoder: {type: "ByteLevel"}, model: {type: "BPE", vocab: $vocab, merges: []}}' >model/tokenizer.json
  tr -sc 'a-z.' ' ' <src/data/text/tempest.txt >letters
}

# goes_on CACHE...: behind documents 0, 1 and 2 of each cache, of 1.txt, 2.txt and 3.txt, the model writes what it writes behind their text.
# Prints the number of tokens.
goes_on() {
  for number in 0 1 2; do
    kvcodec generate --model model --prompt "$(cat $((number + 1)).txt) and so" --tokens 24 --json --quiet | jq -c .tokens >read
    for cache in "$@"; do
      kvcodec generate $cache --documents $number --model model --prompt " and so" --tokens 24 --json --quiet | jq -c .tokens | cmp - read
    done
  done
  jq length read
}

# state_of CACHE OPTIONS...: the tensors of state that it exports: name, shape and checksum.
state_of() {
  kvcodec export "$@" --to transformers --quiet -o state.safetensors --overwrite >exported
  length=$(od -An -tu8 -N8 state.safetensors | tr -d ' ')
  tail -c +9 state.safetensors | head -c $length |
    jq -r 'to_entries[] | select(.key | contains("_states")) | [.key, (.value.shape | map(tostring) | join("x")), .value.data_offsets[]] | @tsv' |
    while read -r name shape begin end; do
      echo $name $shape $(tail -c +$((length + 9 + begin)) state.safetensors | head -c $((end - begin)) | cksum)
    done
}
