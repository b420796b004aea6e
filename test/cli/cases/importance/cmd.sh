# A step for each token, by what the end of its document attends to: files decode by themselves and grow, searches know of it, and it needs queries.
. src/test/cli/refused.sh
kvcodec dump-kv --model src/data/demo-model --text src/data/text/pride-and-prejudice.txt --chunk 256 --max-tokens 4096 --quiet -o train.h5 >/dev/null
kvcodec dump-kv --model src/data/demo-model --text src/LICENSE --chunk 160 --max-tokens 320 --quiet -o kv.h5 >/dev/null
kvcodec train-transform train.h5 --least-bits 0.1 --most-bits 2 --quiet -o book.h5 >/dev/null
code="--codec transform --book book.h5 --bits 0.7 --block 64 --no-adapt --quiet"
echo "== files"
kvcodec encode kv.h5 $code -o plain.h5 >/dev/null
kvcodec encode kv.h5 $code --importance queries --verify -o whole.h5 >/dev/null
kvcodec info plain.h5 | grep -c importance
kvcodec info whole.h5 | grep '^parameters' | grep -o 'importance.*[0-9]'
kvcodec info whole.h5 | grep rungs | tr -s ' '
kvcodec encode kv.h5 $code --importance queries --importance-power 0 -o alike.h5 >/dev/null
for codes in plain whole alike; do kvcodec decode $codes.h5 --book book.h5 --quiet -o $codes-kv.h5 >/dev/null; done
# As loud an error: components are computed in stages for the finest step that a token may have.
for codes in plain alike; do kvcodec eval-recon kv.h5 $codes-kv.h5 --json --quiet | jq '.reconstructions[0].key.snr_db'; done | jq -s '(.[0] - .[1]) | fabs < 0.5'
kvcodec decode whole.h5 --book book.h5 --documents 1 --tokens 70:80 --layers 1-2 --quiet -o part.h5 >/dev/null
kvcodec eval-recon whole-kv.h5 part.h5 | grep '^all'
echo "== appended"
kvcodec encode kv.h5 $code --importance queries --documents 0 -o first.h5 >/dev/null
kvcodec encode kv.h5 --append first.h5 --book book.h5 --documents 1 --quiet -o grown.h5 >/dev/null
kvcodec decode grown.h5 --book book.h5 --quiet -o grown-kv.h5 >/dev/null
kvcodec eval-recon whole-kv.h5 grown-kv.h5 | grep '^all'
echo "== searches"
kvcodec encode kv.h5 --codec transform:importance=queries --book book.h5 --total-bits 1.2 --json --quiet -o found.h5 | jq 'has("search_tries") and .bits_per_value > 0.7 and .bits_per_value < 1.25'
kvcodec eval-model --model src/data/demo-model --text src/LICENSE --chunk 128 --max-documents 2 --codec transform:book=book.h5,bits=0.5 --codec transform:book=book.h5,bits=0.5,importance=queries --json --quiet |
  jq -c '[.settings[].ledger_bytes | (.scales // 0) > 0], .settings[0].ledger_bytes.payload > .settings[1].ledger_bytes.payload'
echo "== refused"
kvcodec dump-kv --model src/data/demo-model --text src/LICENSE --chunk 160 --max-tokens 320 --queries none --quiet -o none.h5 >/dev/null
refused encode none.h5 $code --importance queries -o no.h5
refused encode none.h5 --codec transform:importance=queries --book book.h5 --total-bits 1 -o no.h5
refused encode none.h5 --append first.h5 --book book.h5 --documents 1 -o no.h5
refused encode kv.h5 $code --importance keys -o no.h5
