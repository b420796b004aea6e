# A corpus of lines with metadata, through every command that copies documents; shares of a model's run.
set -e
model="--model src/data/demo-model"
{
  printf '{"id": "wiki/one", "text": "The first of three texts, which is short.", "metadata": {"source": "wiki", "year": 1999}}\n\n'
  printf '{"text": "A text without a name; it is called by its line."}\n'
  printf '{"id": 7, "text": "The first of three texts, which is short.", "other": [1]}\n'
} >texts.jsonl
kvcodec dump-kv $model --text texts.jsonl --meta license=cc0 --meta source=unknown --quiet -o kv.h5 >/dev/null
kvcodec ls kv.h5 --long | cut -c1-200
kvcodec encode kv.h5 --codec q4 --quiet -o codes.h5 >/dev/null
kvcodec pack-indices codes.h5 --unpack -o plain.h5 >/dev/null
kvcodec split plain.h5 --size 2 -o 'part-{}.h5' >/dev/null
kvcodec cat part-1.h5 part-2.h5 -o joined.h5 >/dev/null
kvcodec decode joined.h5 -o back.h5 >/dev/null
facts() { kvcodec ls $1 --json | grep -E '"(name|digest|time|source|year|license)"'; }
facts kv.h5 >wanted
for file in codes plain joined back; do facts $file.h5 | cmp - wanted; done
kvcodec check kv.h5 joined.h5 back.h5

# a part has the digest of its own ids; documents that grow that of all
kvcodec decode joined.h5 --documents wiki/one --tokens 0:4 -o head.h5 >/dev/null
kvcodec decode joined.h5 --documents wiki/one --tokens 4: -o tail.h5 >/dev/null
kvcodec encode head.h5 --codec none --quiet -o grown.h5 >/dev/null
kvcodec encode tail.h5 --append grown.h5 --continue --quiet -o grown.h5 --overwrite >/dev/null
kvcodec check head.h5 grown.h5
kvcodec ls head.h5 --json | grep '"digest"' >head
! grep -qF -f head wanted
kvcodec ls grown.h5 --json | grep '"digest"' >grown
grep -cF -f grown wanted # its own, and that of the text that is there twice

# each text once
kvcodec dump-kv $model --text texts.jsonl --skip-duplicates -o once.h5 >/dev/null
kvcodec cat kv.h5 kv.h5 --skip-duplicates -o cat-once.h5
kvcodec ls cat-once.h5
# the next missing piece is found however far it is behind the first tokens
{ printf ' the%.0s' $(seq 40); printf ' of and to a in that'; } >repeated.txt
kvcodec dump-kv $model --text repeated.txt --special --chunk 4 --max-tokens 8 --skip-duplicates --quiet -o pieces.h5 >/dev/null
kvcodec ls pieces.h5

# an id that is there twice: once with one text, refused with another, and the later one with --replace
head -n 1 texts.jsonl >twice.jsonl
head -n 1 texts.jsonl >>twice.jsonl
kvcodec dump-kv $model --text twice.jsonl --json -o twice.h5 | jq -c '[.documents, .stored_before]'
printf '{"id": "wiki/one", "text": "Another text."}\n' >>twice.jsonl
kvcodec dump-kv $model --text twice.jsonl --quiet -o never.h5 2>&1 || echo "status $?"
kvcodec dump-kv $model --text twice.jsonl --replace --quiet --json -o twice.h5 --overwrite | jq -c '[.documents, .stored_before, .replaced]'

# shares of a run are its batches: joined they are its bits
run="--text src/data/text/moby-dick.txt --chunk 500 --max-tokens 9000 --queries last:2 --quiet"
kvcodec dump-kv $model $run -o all.h5 >/dev/null
for i in 1 2; do kvcodec dump-kv $model $run --shard $i/2 -o share-$i.h5 >/dev/null; done
kvcodec cat share-1.h5 share-2.h5 -o shares.h5 >/dev/null
kvcodec eval-recon all.h5 shares.h5 --json | grep -o '"max_error": [0-9.e-]*' | sort -u
kvcodec ls all.h5 --json | sed '/"file"/d' >all.txt
kvcodec ls shares.h5 --json | sed '/"file"/d' | cmp - all.txt
kvcodec info all.h5 | grep '^queries'
kvcodec info shares.h5 | grep '^queries'

set +e # refusals fail, and say so themselves
. src/test/cli/refused.sh
echo '{"text": 3}' >bad.jsonl
refused dump-kv $model --text bad.jsonl -o x.h5
echo '{"id": [], "text": ""}' >bad.jsonl
refused dump-kv $model --text bad.jsonl -o x.h5
printf '{"id": "x", "text": "a"}\n{"id": "x\\u0000y", "text": "b"}\n' >bad.jsonl
refused dump-kv $model --text bad.jsonl -o x.h5
echo '{"text": "a", "metadata": "b"}' >bad.jsonl
refused dump-kv $model --text bad.jsonl -o x.h5
printf '{"text": "a"}\nplain text\n' >bad.jsonl
refused dump-kv $model --text bad.jsonl -o x.h5
refused dump-kv $model --text texts.jsonl --meta license -o x.h5
ls x.h5 2>/dev/null || true
