# decode --keep-going and cat --keep-going leave damaged documents out, name them, and end with a status of their own.
. src/test/cli/refused.sh
left() { # left FILE: its documents
  kvcodec ls "$1" --json | jq -c '[.files[].documents[].name]'
}
run() { # run ARGUMENTS…: its notes, its status and what it left out
  rm -f out.h5
  kvcodec "$@" --json -o out.h5 >out.json 2>notes
  status=$?
  cat notes
  echo "  status $status"
  [ -e out.h5 ] || echo "  no output"
}
# Damage in three documents: a byte of one, a digest of one, tokens and positions of one, the first and the last.
kvcodec decode data/kivi.h5 --quiet -o whole.h5 >/dev/null
for damage in 'flip-part 2 3' 'flip-digest 2 0' 'flip-part 2 8' 'flip-part 1 0,flip-digest 3 7'; do
  echo "$damage"
  cp data/kivi.h5 bad.h5
  echo "$damage" | tr , '\n' | while read -r one; do damage bad.h5 $one; done
  refused decode bad.h5 -o x.h5
  run decode bad.h5 --keep-going
  jq -c '[.documents, .tokens, (.damaged | map([.file, .number, .name]))]' out.json
  left out.h5
  kvcodec eval-recon whole.h5 out.h5 | grep ^all
  run cat bad.h5 --keep-going
  jq -c '[(.outputs[] | .documents, (.damaged | map([.file, .number, .name])))]' out.json
  left out.h5
  kvcodec check out.h5
done
# Notes are quiet with --quiet, the status and JSON stay; what is not asked for does not count; without damage all is as without the option.
kvcodec decode bad.h5 --keep-going --quiet --json -o quiet.h5 | jq -c '.damaged | map(.reason)'
kvcodec decode bad.h5 --keep-going --quiet -o quiet.h5 --overwrite >/dev/null
echo "  status $?"
run decode bad.h5 --keep-going --documents b
run decode bad.h5 --keep-going --layers 1-2
run decode data/kivi.h5 --keep-going
jq -c '[.documents, .damaged]' out.json
kvcodec eval-recon whole.h5 out.h5 | grep ^all
# Several files; the rule of names holds for what is whole.
make_kv --layers 4 --heads 2 --dim 16 --document b:0:50 -o other-kv.h5
kvcodec encode other-kv.h5 --codec kivi --preset paper --bits 2 --key-group 16 --window 32 --quiet -o other.h5 >/dev/null
cp data/kivi.h5 bad.h5
damage bad.h5 flip-part 2 3
refused cat bad.h5 other.h5 -o x.h5
run cat bad.h5 other.h5 --keep-going
kvcodec ls out.h5
# All documents: nothing is written.
for row in 1 3; do damage bad.h5 flip-part $row 5; done
run decode bad.h5 --keep-going
run cat bad.h5 --keep-going
# Damage that is not of one document ends the command as without the option: attributes, what all documents share.
cp data/kivi.h5 bad.h5 && damage bad.h5 attribute / codec magic
refused decode bad.h5 --keep-going -o x.h5
cp data/kivi.h5 bad.h5 && damage bad.h5 truncate 30000
refused cat bad.h5 --keep-going -o x.h5
kvcodec encode data/kv.h5 --codec fp8 --quiet -o bad.h5 --overwrite >/dev/null && damage bad.h5 flip-part 0 1
refused decode bad.h5 --keep-going -o x.h5
refused cat bad.h5 --keep-going -o x.h5
# A kv file: documents in chunks of their own, queries, and a chunk that two documents share.
make_kv --layers 2 --heads 8 --dim 128 --queries 512 --document a:0:512 --document b:0:512 --document c:0:512 -o kv.h5
for place in key value query; do
  cp kv.h5 bad.h5 && damage bad.h5 flip /layers/1/$place
  refused cat bad.h5 -o x.h5
  run cat bad.h5 --keep-going
  left out.h5
  kvcodec check out.h5
done
ls -A | grep -v -e '^bad' -e '^other' -e '^out' -e '^notes'
