# A model goes on from a cache as if it had read the text.
set -e
. src/test/cli/refused.sh
model=src/data/demo-model
head -c 700 src/LICENSE >a.txt
prompt=' and the'
said() { kvcodec generate "$@" --model $model --prompt "$prompt" --tokens 12 --json | jq -c .tokens; }
kvcodec dump-kv --model $model --text a.txt --dtype f32 --quiet -o a.h5 >/dev/null
said a.h5 >from-cache
kvcodec encode a.h5 --codec lossless --quiet -o a.codes.h5 >/dev/null
said a.codes.h5 >from-codes
cmp from-cache from-codes
kvcodec generate --model $model --prompt "$(cat a.txt)$prompt" --tokens 12 --json | jq -c .tokens >from-text
cmp from-cache from-text
jq length from-text
kvcodec dump-kv --model $model --text a.txt --dtype f32 --pre-rope --quiet -o pre.h5 >/dev/null
said pre.h5 | cmp - from-cache

# It is streamed, and the text is that of --json.
kvcodec generate a.h5 --model $model --prompt "$prompt" --tokens 12 --quiet >streamed
echo "$prompt" | kvcodec generate a.h5 --model $model --prompt - --tokens 12 --json | jq -r '.prompt_tokens, .cached_tokens'
kvcodec generate a.h5 --model $model --prompt "$prompt" --tokens 12 --json | jq -r .text | cmp - streamed
kvcodec generate a.h5 --model $model --prompt "$prompt" --tokens 1 2>&1 >/dev/null | sed 's/[0-9.]* m*s/TIME/g'

# No text is lost behind a special token, and none silently.
kvcodec generate --model $model --prompt 'A<|endoftext|>' --tokens 1 --no-stop --json | jq '.text != ""'
kvcodec generate a.h5 --model $model --prompt "$prompt" --tokens 3 --quiet 2>&1 >/dev/full || echo "status $?"
kvcodec generate a.h5 --model $model --prompt "$prompt" --tokens 3 --quiet --json 2>&1 >/dev/full || echo "status $?"

# Drawn tokens: the same for a seed, and the likeliest where only one may be drawn.
draw() { kvcodec generate a.h5 --model $model --prompt "$prompt" --tokens 12 --json --temperature 1.5 "$@" | jq -c .tokens; }
draw --seed 1 >one && draw --seed 1 | cmp - one && ! draw --seed 2 | cmp -s - one
draw --top-k 1 | cmp - from-cache
draw --top-p 0.000001 | cmp - from-cache

# Attention to few tokens: to all of them if the budget has them all.
said a.h5 --select oracle --budget 100000 | cmp - from-cache
few() { kvcodec generate a.h5 --model $model --prompt "$prompt" --tokens 12 --json --select "$@" | jq .attended_share; }
for by in signs quest clusters oracle; do few $by --budget 20; done | awk '$1 > 0.07 && $1 < 0.1 { ++n } END { print n " of " NR " attend to a twelfth" }'
few quest --setup paper --budget 64

# Several documents are one context.
head -c 1200 src/LICENSE | tail -c 400 >b.txt
kvcodec dump-kv --model $model --text a.txt --text b.txt --quiet -o ab.h5 >/dev/null
said ab.h5 >from-both
kvcodec join ab.h5 --dtype f32 --quiet -o joined.h5 >/dev/null
said joined.h5 | cmp - from-both

# Chat templates, and tokens that end an answer, as model directories name them.
mkdir chat && cp $model/config.json $model/model.safetensors $model/tokenizer.json chat
asked() { kvcodec generate a.h5 --model chat --prompt "$prompt" --tokens 12 --json "$@" | jq -c '[.prompt_tokens, (.tokens | length), .ended]'; }
echo '{"chat_template": "<|im_start|>"}' >chat/tokenizer_config.json
asked --chat
echo '{"chat_template": [{"name": "tools", "template": "[INST]"}, {"name": "default", "template": "[INST]"}]}' >chat/tokenizer_config.json
asked --chat
echo '<start_of_turn>' >chat/chat_template.jinja
asked --chat
jq -c '{eos_token_id: [.[3]]}' from-cache >chat/generation_config.json
asked
asked --no-stop
echo '{"eos_token_id": "x"}' >chat/generation_config.json

set +e
refused generate a.h5 --model chat --prompt x
refused generate a.h5 --prompt x
refused generate a.h5 --model $model --prompt x --keep-bos first
refused generate a.h5 --model $model --prompt x --tokens 1000000 --memory 64M --quiet
refused generate a.h5 --model $model
refused generate a.h5 --model $model --prompt ''
refused generate a.h5 --model $model --prompt x --top-k 4
refused generate a.h5 --model $model --prompt x --chat
refused generate --model $model --prompt x --documents 0
kvcodec dump-kv --model $model --text a.txt --layers 1 --quiet -o layer.h5 >/dev/null
refused generate layer.h5 --model $model --prompt x
make_kv --layers 4 --heads 1 --dim 32 -o other.h5
refused generate other.h5 --model $model --prompt x
refused generate a.h5 --model $model --prompt x --budget 4
refused generate --model $model --prompt x --select signs
