# Tokens chosen by the index of the codes, by Quest and by the oracle; the same file for any number of threads; refusals.
. src/test/cli/refused.sh
kvcodec encode data/demo.h5 --codec selfindex --exact-tokens 4 -o si.h5 >/dev/null || exit 1
kvcodec select si.h5 --queries data/demo.h5 --budget 8 -o selection.h5
kvcodec info selection.h5 | sed -n '3,$p' | grep -v '^  kvcodec'
recall() { kvcodec select si.h5 --queries data/demo.h5 --budget 16 --json "$@" | tr -d ' \n' | sed 's/.*"recall":\([0-9.]*\).*/\1/'; }
own=$(recall) quest=$(recall --by quest) oracle=$(recall --by oracle) signs=$(recall --by signs)
echo "$own $signs $quest $oracle" |
  awk '{ print "oracle " $4 ", the index finds more than its signs, these more than Quest: " ($1 > $2 && $2 > $3 ? "yes" : "no " $0) }'
for n in 1 2; do
  kvcodec select si.h5 --queries data/demo.h5 --share each --threads $n -o each.h5 >/dev/null
  mv each.h5 $n.h5
done
cmp 1.h5 2.h5 && echo "same bytes"
kvcodec encode data/kv.h5 --codec selfindex -o made-up.h5 2>&1 >/dev/null
refused select si.h5 --queries data/kv.h5
refused select made-up.h5 --queries data/kv.h5
refused select data/none.h5 --queries data/demo.h5
refused select si.h5
refused select si.h5 --queries data/demo.h5 --budget 0 --ratio 0
refused select si.h5 --queries data/demo.h5 -o selection.h5
refused select si.h5 --queries si.h5
refused select si.h5 --queries data/demo.h5 --documents nowhere
kvcodec dump-kv --model src/data/demo-model --text src/LICENSE --chunk 64 --max-tokens 128 --quiet -o short.h5 >/dev/null
refused select si.h5 --queries short.h5
