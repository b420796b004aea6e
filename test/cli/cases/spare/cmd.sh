# Commands say where compact would free more than half of a file, and only there.
set -e
note() { grep -o 'note: .*would free' || echo nothing; }
# Codes of a document that grew often leave behind what they replaced.
make_kv --layers 8 --heads 8 --dim 64 --document a:0:200 -o a.h5
kvcodec encode a.h5 --codec kivi --window 400 --quiet -o codes.h5 >/dev/null
kvcodec ls codes.h5 2>&1 >/dev/null | note
for first in 200 202 204 206 208 210; do
  make_kv --layers 8 --heads 8 --dim 64 --document a:$first:$((first + 2)) -o more.h5
  kvcodec encode more.h5 --append codes.h5 --continue --json >grown.json 2>notes
done
note <notes
jq '.compact_frees > .ledger_bytes.file / 2' grown.json
kvcodec ls codes.h5 2>&1 >/dev/null | note
kvcodec info codes.h5 2>&1 >/dev/null | note
kvcodec check codes.h5 2>&1 >/dev/null | note
kvcodec info - <codes.h5 2>&1 >/dev/null | note
kvcodec ls codes.h5 --quiet --json | jq '.files[0].compact_frees' >ls.txt
kvcodec info codes.h5 --quiet --json | jq .compact_frees | cmp - ls.txt
kvcodec check codes.h5 --quiet --json | jq '.files[0].compact_frees' | cmp - ls.txt
# As many bytes as compact then frees, but for HDF5's own.
before=$(wc -c <codes.h5)
kvcodec compact codes.h5 --quiet >/dev/null
after=$(wc -c <codes.h5)
echo "$before $after $(cat ls.txt)" | awk '{ print ($1 - $2 > $3 && $1 - $2 < 1.5 * $3 ? "as it frees" : $0) }'
kvcodec ls codes.h5 2>&1 >/dev/null | note
kvcodec ls codes.h5 --json | jq '.files[0].compact_frees'
# A kv file with bytes that nothing needs.
cp data/kv.h5 padded.h5
head -c 4194304 /dev/zero >>padded.h5
for command in ls info check; do kvcodec $command padded.h5 2>&1 >/dev/null | note; done
cp a.h5 some.h5
head -c 1048576 /dev/zero >>some.h5
kvcodec ls some.h5 2>&1 >/dev/null | note
kvcodec compact padded.h5 --quiet >/dev/null
kvcodec ls padded.h5 2>&1 >/dev/null | note
# Small files, and those with many layers or documents, are not large for nothing.
make_kv --layers 100 --heads 1 --dim 16 --document a:0:3 -o layers.h5
make_kv --layers 1 --heads 1 --dim 16 --documents 2000 --tokens 1 -o documents.h5
for file in data/kv.h5 layers.h5 documents.h5; do
  kvcodec encode $file --codec q4 --quiet -o small.h5 --overwrite >/dev/null
  kvcodec ls $file small.h5 --quiet --json | jq -c '[.files[].compact_frees]'
done
