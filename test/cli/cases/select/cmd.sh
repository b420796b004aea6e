# Tokens chosen by the index of the codes, by Quest and by the oracle; the same file for any number of threads; refusals.
. src/test/cli/refused.sh
kvcodec encode data/demo.h5 --codec selfindex --preset paper --exact-tokens 4 -o si.h5 --quiet >/dev/null || exit 1
plainly="--first 0 --newest 0 --candidates 1 --dense-layers none"
kvcodec select si.h5 --queries data/demo.h5 --budget 8 $plainly -o selection.h5
kvcodec info selection.h5 | sed -n '3,$p' | grep -v '^  kvcodec'
recall() { kvcodec select "$@" --queries data/demo.h5 --budget 16 --json | tr -d ' \n' | sed 's/.*"recall":\([0-9.]*\).*/\1/'; }
by() { recall si.h5 $plainly --by $1; }
own=$(by codes) quest=$(by quest) oracle=$(by oracle) signs=$(by signs)
echo "$own $signs $quest $oracle" |
  awk '{ print "oracle " $4 ", the index finds more than its signs, these more than Quest: " ($1 > $2 && $2 > $3 ? "yes" : "no " $0) }'
# Candidates correct wrong scores; codes without an index choose by products with their keys.
kvcodec encode data/demo.h5 --codec kvcomp --block 16 -o kvcomp.h5 >/dev/null
mended=$(recall si.h5 --first 0 --newest 0 --candidates 4) products=$(recall kvcomp.h5 --first 0 --newest 0)
echo "$own $mended $products" | awk '{ print "with candidates more, by products nearly all: " ($2 > $1 + 0.1 && $3 > 0.9 && $3 < 1 ? "yes" : "no " $0) }'
# As in the paper: the tokens that are kept exactly are chosen; dense layers choose all and do not count.
kvcodec select si.h5 --queries data/demo.h5 --budget 8 --setup paper --share each --json -o paper.h5 | grep -c '"dense": false'
kvcodec select si.h5 --queries data/demo.h5 --budget 8 | awk '$2 == "dense" || $1 == "all" { print $1, $2, $4 == $5 }'
tokens() { kvcodec select si.h5 --queries data/demo.h5 --share $1 --budget-mass $2 --json | tr -d ' \n' | sed 's/.*"tokens":\([0-9.]*\).*/\1/'; }
echo "$(tokens weight 0.5) $(tokens weight 0.95) $(tokens each 0.95)" | awk '{ print "more of the attention takes more tokens: " ($1 < $2 && $2 < 48 && $3 < $2 ? "yes" : "no " $0) }'
for n in 1 2; do
  kvcodec select si.h5 --queries data/demo.h5 --share each --threads $n -o each.h5 >/dev/null
  mv each.h5 $n.h5
done
cmp 1.h5 2.h5 && echo "same bytes"
kvcodec encode data/kv.h5 --codec selfindex --preset paper -o made-up.h5 2>&1 >/dev/null
refused select si.h5 --queries data/kv.h5
refused select made-up.h5 --queries data/kv.h5
refused select data/none.h5 --queries data/demo.h5
refused select si.h5
refused select kvcomp.h5 --queries data/demo.h5 --by signs
refused select si.h5 --queries data/demo.h5 --share max --budget-mass 0.9
refused select si.h5 --queries data/demo.h5 --budget 8 --ratio 0.5
refused select si.h5 --queries data/demo.h5 --dense-layers 3-4
refused select si.h5 --queries data/demo.h5 -o selection.h5
refused select si.h5 --queries si.h5
refused select si.h5 --queries data/demo.h5 --documents nowhere
kvcodec dump-kv --model src/data/demo-model --text src/LICENSE --chunk 64 --max-tokens 128 --quiet -o short.h5 >/dev/null
refused select si.h5 --queries short.h5
