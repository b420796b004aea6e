# Documents that dump-kv adds to a cache in place: its content, repeated additions, and two runs at once.
. src/test/cli/refused.sh
set -e
model=src/data/demo-model
for name in a b c d; do
  { echo "Text $name."; head -n 6 src/LICENSE; } >$name.txt
done
dump() { kvcodec dump-kv --model $model --quiet "$@" >/dev/null; }
dump --text a.txt -o kv.h5
cp kv.h5 first.h5
dump --text b.txt --append kv.h5
dump --text c.txt --append kv.h5 --meta kind=third
kvcodec ls kv.h5
kvcodec ls kv.h5 --json | grep -c '"kind": "third"'
kvcodec info kv.h5 | grep -E '^(guarded|elements|tokens|queries|  kvcodec)'
# The result equals that of one run for each document, joined.
for name in a b c; do dump --text $name.txt -o $name.h5; done
kvcodec cat a.h5 b.h5 c.h5 -o joined.h5 >/dev/null
kvcodec eval-recon joined.h5 kv.h5 | grep ^all
# Existing documents stay, and so does the file.
cp kv.h5 before.h5
kvcodec dump-kv --model $model --text b.txt c.txt --append kv.h5 --json | grep _added
cmp before.h5 kv.h5
# A changed text is refused under its name, or takes the place of the old one in one step.
cp b.txt b-before.txt
echo "One line more." >>b.txt
set +e
refused dump-kv --model $model --text b.txt --append kv.h5
set -e
cmp before.h5 kv.h5
kvcodec dump-kv --model $model --text b.txt c.txt --append kv.h5 --replace --json | jq -c '[.documents, .documents_added, .replaced, .stored_before]'
kvcodec ls kv.h5 --json | jq -c '[.files[].documents[].name]'
kvcodec info kv.h5 | grep ^queries
dump --text a.txt -o replaced.h5
dump --text c.txt --append replaced.h5
dump --text b.txt --append replaced.h5
kvcodec eval-recon replaced.h5 kv.h5 | grep ^all
kvcodec check kv.h5
mv b-before.txt b.txt
cp before.h5 kv.h5
cp b.txt b-again.txt
dump --text b-again.txt --append kv.h5 --skip-duplicates
cmp before.h5 kv.h5
# It continues with its own settings: before the rotary embedding, some layers, without queries.
dump --text a.txt --pre-rope --layers 1-2 --queries none --dtype f16 -o other.h5
dump --text b.txt --append other.h5
kvcodec info other.h5 | grep -E '^(keys|layers|elements|queries)'
kvcodec check other.h5
# Simultaneous runs lose nothing.
cp first.h5 kv.h5
for name in b c d; do dump --text $name.txt --append kv.h5 & done
wait
kvcodec ls kv.h5 --json | grep -c '"name": "[abcd].txt"'
kvcodec check kv.h5
ls -A | grep -v 'txt$'
golden=src/test/golden/interop
kvcodec import $golden/llama-f16.bin --heads 1 -o imported.h5 >/dev/null
# Impossible requests are refused before the model runs.
set +e
refused dump-kv --model $model --text d.txt --append other.h5 --queries last:4
refused dump-kv --model $model --text d.txt --append kv.h5 -o new.h5
refused dump-kv --model $model --text d.txt --append kv.h5 --dtype f32
refused dump-kv --model $model --text d.txt --append kv.h5 --resume
refused dump-kv --model $model --text d.txt --append none.h5
refused dump-kv --model $model --text d.txt --append data/kv.h5
refused dump-kv --model $model --text d.txt --append data/none.h5
refused dump-kv --model $model --text d.txt --append imported.h5
