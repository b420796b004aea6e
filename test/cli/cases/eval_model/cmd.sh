# Effects of compressing the cache on the demo model: tables, the same JSON for any number of threads, invariants, refusals.
. src/test/cli/refused.sh
run() { kvcodec eval-model --model src/data/demo-model --text src/LICENSE --chunk 200 --max-documents 4 "$@"; }
run --codec none --codec kivi:bits=2,key-group=16,window=0 --codec q4:sink=0,bits=3,rotate=hadamard,label=three |
  sed 's/; [0-9].*s$/; TIME/; s/-*[0-9][0-9.]*/N/g' | tr -s ' -'
for n in 1 2; do
  run --codec lossless --codec kvcomp:preset=paper,unit-heads --codec none:select=quest,budget=20 --threads $n --json | grep -v seconds >$n.json
done
cmp 1.json 2.json && echo "same for any number of threads"
run --codec none --dtype f32 --json >f32.json
awk -v rise=$(tr -d ' \n' <f32.json | sed 's/.*"nll_rise":{"mean":\(-*[0-9.e+-]*\).*/\1/') \
  'BEGIN { print "32 bits kept: " (rise < 1e-5 && rise > -1e-5 ? "the same likelihood" : rise) }'
kvcodec eval-model --model src/data/demo-model --text src/LICENSE --task recall --lengths 100,200 --depths 2 --questions 3 --keys 2 \
  --codec fp8 --codec q4:bits=2 | sed 's/; [0-9].*s$/; TIME/; s/[0-9][0-9.-]*/N/g' | tr -s ' -'
kvcodec eval-model --model src/data/demo-model --text src/LICENSE --task recall --lengths 100 --depths 1 --questions 1 --keys 2 \
  --values 2 --codec none | grep '^recall'
# Each length has its own rate: short documents are completely in the window.
kvcodec eval-model --model src/data/demo-model --text src/LICENSE --task recall --lengths 100,400 --depths 1 --questions 2 \
  --codec kivi:bits=2,window=128 --json >lengths.json
jq -c '.settings[0] | [.recall.cells[] | .length, .bits_per_value > 16], (.bits_per_value | . > 9 and . < 10)' lengths.json
jq -c '.settings[0] | .recall.cells[1].bits_per_value | . > 8 and . < 9' lengths.json
kvcodec eval-model --model src/data/demo-model --text src/LICENSE --task recall --lengths 100,400 --depths 1 --questions 2 \
  --codec kivi:bits=2,window=128 | awk '$1 ~ /^kivi/ { print $2 }' | sed 's/\.[0-9]*$/.N/'
# The demo model finds every number in 1,000 tokens: a figure that no machine changes.
kvcodec eval-model --model src/data/demo-model --text src/LICENSE --task recall --lengths 1000 --depths 4 --questions 4 --codec none \
  --json | tr -d ' \n' | sed 's/"settings".*//; s/.*"recall":{"share":\([0-9.]*\).*/recall at 1,000 tokens: \1/'
echo
# One document has no interval; texts too short are named.
kvcodec eval-model --model src/data/demo-model --text src/LICENSE src/test/cli/refused.sh --chunk 1000 --max-documents 1 --codec none |
  sed -n 's/-*[0-9][0-9.]*/N/g; /^uncompressed/p; /^none/p' | tr -s ' '
run --codec kivi:preset=paper,bits=4 --stream 30 --select oracle --budget 60 --newest 4 | head -n 1 | sed 's/; [0-9].*s$/; TIME/'
kvcodec encode data/demo.h5 --codec kivi --preset paper --bits 3 --window 0 -o recipe.h5 >/dev/null
run --codec recipe.h5 --json | grep -c '"codec": "kivi"'
# Stored data: 4 coefficients of 16 bits and ids of 6 for 128 values; with the book, correspondingly more.
kvcodec train-dict data/demo.h5 --atoms 40 --sparsity 4 --epochs 1 --quiet -o tiny.h5 >/dev/null
run --codec sparse:preset=paper,book=tiny.h5,sparsity=4 --json | tr -d ' ,"' | awk -F: '
  $1 == "values" { n = $2 } $1 == "bits_per_value" { bits = $2 } $1 == "bits_per_value_with_book" { all = $2 } $1 == "book_bytes" { book = $2 }
  END { print bits " bits, " (book >= 10240 && all == bits + 8 * book / n ? "and the book counted" : "book: " all " " book " " n) }'
refused eval-model --text src/LICENSE --codec none
refused eval-model --model src/data/demo-model --codec none
refused eval-model --model src/data/demo-model --text src/LICENSE
refused eval-model --model src/data/demo-model --text src/LICENSE --codec frob
# Longer than the name of a file can be.
refused eval-model --model src/data/demo-model --text src/LICENSE --codec "$(printf "f%.0s" $(seq 300))"
refused eval-model --model src/data/demo-model --text src/LICENSE --codec nosuch.h5
refused eval-model --model src/data/demo-model --text src/LICENSE --codec q4,bits=2
refused eval-model --model src/data/demo-model --text src/LICENSE --codec kivi:bits=2,bits=4
refused eval-model --model src/data/demo-model --text src/LICENSE --codec kivi:bit=2
refused eval-model --model src/data/demo-model --text src/LICENSE --codec kivi:bits=9
refused eval-model --model src/data/demo-model --text src/LICENSE --codec kivi:bits
refused eval-model --model src/data/demo-model --text src/LICENSE --codec kvcomp:unit-heads=perhaps
refused eval-model --model src/data/demo-model --text src/LICENSE --codec none:book=data/dict.h5
refused eval-model --model src/data/demo-model --text src/LICENSE --codec sparse
refused eval-model --model src/data/demo-model --text src/LICENSE --codec sparse:book=data/dict.h5
refused eval-model --model src/data/demo-model --text src/LICENSE --codec data/kv.h5
refused eval-model --model src/data/demo-model --text src/LICENSE --codec none --select frob
refused eval-model --model src/data/demo-model --text src/LICENSE --codec none:select=oracle,share=mean,budget-mass=0.5
refused eval-model --model src/data/demo-model --text src/LICENSE --codec none:select=oracle,budget=5,ratio=0.5
refused eval-model --model src/data/demo-model --text src/LICENSE --codec none --budget 5
refused eval-model --model src/data/demo-model --text src/LICENSE --codec none:newest=5
refused eval-model --model src/data/demo-model --text src/LICENSE --codec none --select oracle --budget 5 --dense-layers two
refused eval-model --model src/data/demo-model --text src/LICENSE --codec none:select=oracle,budget=5,dense-layers=3-4
refused eval-model --model src/data/demo-model --text src/LICENSE --codec none --task recall --seed 4294967296
refused eval-model --model src/data/demo-model --text src/LICENSE --codec none --chunk 2000
refused eval-model --model src/data/demo-model --text src/LICENSE --codec none --chunk 100 --prefix 99
refused eval-model --model src/data/demo-model --text src/test/cli/refused.sh --codec none
refused eval-model --model src/data/demo-model --text src/LICENSE --codec none --depths 3
refused eval-model --model src/data/demo-model --text src/LICENSE --codec none --task recall --lengths 10
refused eval-model --model src/data/demo-model --text src/LICENSE --codec none --task recall --lengths ten
refused eval-model --model src/data/demo-model --text src/LICENSE --codec none --task recall --lengths 100 --chunk 200
