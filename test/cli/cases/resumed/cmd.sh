# A stopped command continues where it stopped (--resume): finished pieces are kept, damaged ones are made again, and the product
# equals that of one run. A limit on file sizes stops it; pieces stay below the limit, the product does not.
set -e
make_kv --layers 2 --heads 2 --dim 32 --queries 2 --document a:0:300 --document b:0:300 --document c:0:10 --document d:0:300 -o kv.h5

limit() { echo $(($(stat -c %s "$1") * 7 / 10 / 512)); }

for codec in none kvcomp; do
  echo "== $codec"
  kvcodec encode kv.h5 --codec $codec --quiet -o whole.h5 --overwrite >/dev/null
  (
    ulimit -f "$(limit whole.h5)"
    kvcodec encode kv.h5 --codec $codec --resume --piece 128K -o out.h5 || echo "status $?"
  )
  ls out.h5* | grep -v '^$'
  cksum out.h5.pieces/items-0-1.h5 >before
  damage out.h5.pieces/items-1-2.h5 flip-part 1 0
  echo rubbish >out.h5.pieces/items-2-4.h5
  kvcodec encode kv.h5 --codec $codec --resume --piece 128K --threads 1 -o out.h5 >/dev/null
  ls -d out.h5*
  for file in whole out; do
    kvcodec decode $file.h5 -o $file-kv.h5 --overwrite >/dev/null
    kvcodec info $file.h5 --json | sed -n '/"streams"/,/"documents"/p' >$file.txt
  done
  cmp whole.txt out.txt
  kvcodec eval-recon whole-kv.h5 out-kv.h5 --json | grep -o '"max_error": [0-9.e-]*' | sort -u
  kvcodec check out.h5
  kvcodec info out.h5 --json | sed -n '/"history"/,/]/p' | sed 's/out\.h5/whole.h5/; s/ --resume --piece 128K --threads 1//' >out.txt
  kvcodec info whole.h5 --json | sed -n '/"history"/,/]/p' | cmp - out.txt
  rm out.h5
done

echo "== what pieces share is that of the first one, here of another cache"
mkdir other share.h5.pieces
(
  cd other
  make_kv --seed 2 --layers 2 --heads 2 --dim 32 --queries 2 --document a:0:300 --document b:0:300 --document c:0:10 --document d:0:300 -o kv.h5
  ulimit -f "$(limit ../whole.h5)"
  kvcodec encode kv.h5 --codec kvcomp --resume --piece 128K --quiet -o share.h5 || echo "status $?"
)
cp other/share.h5.pieces/items-0-1.h5 share.h5.pieces
kvcodec encode kv.h5 --codec kvcomp --resume --piece 128K --quiet -o share.h5 >/dev/null
kvcodec check share.h5
kvcodec decode share.h5 -o share-kv.h5 >/dev/null
kvcodec eval-recon kv.h5 share-kv.h5 --documents b,c,d --json | jq '.reconstructions[0].key.snr_db > 10'

echo "== a model"
dump() { kvcodec dump-kv --model src/data/demo-model --text src/data/text/moby-dick.txt --chunk 512 --max-tokens 8192 --queries last:1 "$@"; }
dump --quiet -o whole.h5 --overwrite >/dev/null
(
  ulimit -f "$(limit whole.h5)"
  dump --resume --piece 1M -o out.h5 || echo "status $?"
)
ls out.h5.pieces
rm out.h5.pieces/items-1-2.h5
echo kept >out.h5.pieces/readme
dump --resume --piece 1M -o out.h5 >/dev/null
ls out.h5.pieces
kvcodec eval-recon whole.h5 out.h5 --json | grep -o '"max_error": [0-9.e-]*' | sort -u
kvcodec check out.h5

echo "== other documents by the same words"
printf 'a\nb\nd\n' >list
kvcodec encode kv.h5 --codec none --documents @list --quiet -o whole.h5 --overwrite >/dev/null
(
  ulimit -f "$(limit whole.h5)"
  kvcodec encode kv.h5 --codec none --documents @list --resume --piece 128K --quiet -o list.h5 || echo "status $?"
)
printf 'b\nc\nd\n' >list
kvcodec encode kv.h5 --codec none --documents @list --resume --piece 128K -o list.h5 >/dev/null
kvcodec ls list.h5
ls -d list.h5*

echo "== a last piece without queries, by a long command line"
for i in $(seq 139); do seq -s ' ' 1 60; done | tr '\n' ' ' >ids
all=$(printf '0,%.0s' $(seq 3000))0
few() {
  kvcodec dump-kv --model src/test/golden/model/gemma2-1 --tokens ids --chunk 500 --queries every:400 --documents "$all" --overwrite "$@"
}
few --quiet -o whole.h5 >/dev/null
few --quiet --resume --piece 1K -o out.h5 >/dev/null
for file in whole out; do kvcodec info $file.h5 --json | jq .query_tokens; done
kvcodec eval-recon whole.h5 out.h5 --attention --json >recon
jq -c '.reconstructions[0] | [.key.max_error, .attention.queries, .attention.output_error]' recon
few --quiet --shard 1/2 -o shard-1.h5 >/dev/null
few --quiet --shard 2/2 -o shard-2.h5 >/dev/null
kvcodec cat shard-1.h5 shard-2.h5 -o joined.h5 >/dev/null
kvcodec info joined.h5 --json | jq .query_tokens
(
  ulimit -f "$(limit out.h5)"
  few --quiet --resume --piece 1K -o again.h5 || echo "status $?"
)
few --resume --piece 1K -o again.h5 2>&1 >/dev/null | grep -o '. of . pieces are in .*'

set +e # refusals fail, and say so themselves
. src/test/cli/refused.sh
refused encode kv.h5 --codec none --resume -o -
refused encode - --codec none --resume -o new.h5
refused encode kv.h5 --codec none --piece 1M -o new.h5
refused encode kv.h5 --codec none --resume --piece many -o new.h5
refused encode kv.h5 --append whole.h5 --resume -o new.h5
mkdir elsewhere linked.h5.pieces
echo mine >elsewhere/items-0-1.h5
ln -s elsewhere new.h5.pieces
refused encode kv.h5 --codec none --resume -o new.h5
ln -s ../elsewhere/items-0-1.h5 linked.h5.pieces/items-0-4.h5
refused encode kv.h5 --codec none --resume -o linked.h5
cat elsewhere/*
