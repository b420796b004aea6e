# Documents that become one: where their tokens lie, what their keys are, and which tokens are kept.
set -e
. src/test/cli/refused.sh
model=src/data/demo-model
printf '5 6 7 8 9 10 11\n5 20 21 22 23\n' >ids.txt
printf '5 6 7 8 9 10 11 5 20 21 22 23\n' >whole.txt
printf '5 6 7 8 9 10 11 20 21 22 23\n' >once.txt
for ids in ids whole once; do kvcodec dump-kv --model $model --tokens $ids.txt --dtype f32 --quiet -o $ids.h5 >/dev/null; done

name() { kvcodec ls $1.h5 --json | jq -r '.files[0].documents[0].name'; }

# In the first layer nothing has seen other tokens: there a joined cache is that of a model that reads the whole.
kvcodec join ids.h5 -o joined.h5 | sed 's/  *[0-9.]* s$//'
kvcodec info joined.h5 | grep -E '^([0-9]|tokens|documents)'
first_layer() { kvcodec eval-recon $1.h5 $2.h5 --layers 0 --json | jq -r '.reconstructions[0] | [.key.nmse < 1e-11, .value.nmse < 1e-11] | @tsv'; }
kvcodec join ids.h5 --name "$(name whole)" -o joined.h5 --overwrite --quiet >/dev/null
first_layer whole joined
kvcodec eval-recon whole.h5 joined.h5 --json | jq '.reconstructions[0].key.nmse > 1e-4'

# In the order in which they are named.
printf '5 20 21 22 23 5 6 7 8 9 10 11\n' >turned.txt
kvcodec dump-kv --model $model --tokens turned.txt --dtype f32 --quiet -o turned.h5 >/dev/null
kvcodec join ids.h5 --documents 1,0,1 --name "$(name turned)" --quiet -o turned-joined.h5 >/dev/null
first_layer turned turned-joined

# The first token once.
kvcodec join ids.h5 --quiet --keep-bos first --name "$(name once)" --json -o once-joined.h5 | jq -c '[.documents, .tokens, .dropped_tokens]'
first_layer once once-joined

# A document in two parts is the document, bit for bit; so is one that was moved there and back, but for rounding.
kvcodec encode whole.h5 --codec lossless --quiet -o whole.codes.h5 >/dev/null
for part in :5 5:; do kvcodec decode whole.codes.h5 --tokens $part --quiet -o part$part.h5 >/dev/null; done
kvcodec join part:5.h5 part5:.h5 --name "$(name whole)" --quiet -o again.h5 >/dev/null
kvcodec eval-recon whole.h5 again.h5 --json | jq '.reconstructions[0] | [.key.mse, .value.mse]' -c
kvcodec join whole.codes.h5 --at 500 --quiet -o moved.h5 >/dev/null
kvcodec join moved.h5 --quiet -o back.h5 --name "$(name whole)" >/dev/null
kvcodec eval-recon whole.h5 back.h5 --json | jq '.reconstructions[0] | [.key.mse > 0, .key.nmse < 1e-11, .value.mse]' -c

# Codes that need a book beside codes that need none.
kvcodec train-dict ids.h5 --atoms 8 --sparsity 2 --steps 2 --quiet -o dict.h5 >/dev/null
kvcodec encode ids.h5 --codec sparse --book dict.h5 --sparsity 2 --quiet -o sparse.h5 >/dev/null
kvcodec encode ids.h5 --codec q4 --quiet -o q4.h5 >/dev/null
kvcodec join q4.h5 sparse.h5 --book dict.h5 --quiet --json -o both.h5 | jq -c '[.documents, .tokens]'

# Keys from before the rotary embedding stay as they are.
kvcodec dump-kv --model $model --tokens ids.txt --pre-rope --dtype f32 --quiet -o pre.h5 >/dev/null
kvcodec join pre.h5 --quiet -o pre-joined.h5 >/dev/null
kvcodec info pre-joined.h5 | grep ^keys

kvcodec dump-kv --model $model --tokens ids.txt --layers 1 --quiet -o layer.h5 >/dev/null
make_kv --layers 4 --heads 2 --dim 32 -o other.h5
set +e
refused join ids.h5 --book data/dict.h5 -o no.h5
refused join ids.h5 layer.h5 -o no.h5
refused join ids.h5 other.h5 -o no.h5
refused join other.h5 --at 4 -o no.h5
refused join ids.h5 --documents 7 -o no.h5
printf '9 6\n5 20\n' >apart.txt
kvcodec dump-kv --model $model --tokens apart.txt --quiet -o apart.h5 >/dev/null
refused join apart.h5 --keep-bos first -o no.h5
refused join ids.h5 --keep-bos firt -o no.h5
