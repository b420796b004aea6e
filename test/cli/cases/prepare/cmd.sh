# A transform in one command: the same book as by its three parts; interrupted, it goes on with what is finished; refusals.
. src/test/cli/refused.sh
model=src/data/demo-model text="src/LICENSE src/data/text/moby-dick.txt"
prepare() { kvcodec prepare $model --text src/LICENSE --text src/data/text/moby-dick.txt --tokens 5000 --chunk 500 --judged-documents 2 "$@"; }
export SOURCE_DATE_EPOCH=0
prepare -o book.h5 >said 2>notes
tail -n 1 said | sed 's/[0-9][0-9] KiB.*/NN KiB/'
sed 's/[0-9][0-9.]*/N/g; s/N min N s/N s/g; s/N ms/N s/g' notes
[ ! -e book.h5.steps ] && echo "no parts are left"
# Its parts: as many tokens of each text, derivatives of documents spread over both, without noise.
i=0
for t in $text; do
  kvcodec dump-kv --model $model --text $t --chunk 500 --max-tokens 2500 --queries none --quiet -o part-$i.h5 >/dev/null
  i=$((i + 1))
done
kvcodec sensitivity --model $model --text src/LICENSE --text src/data/text/moby-dick.txt --chunk 1024 --max-documents 2 --metric fisher --quiet -o w.h5 >/dev/null
kvcodec train-transform part-0.h5 part-1.h5 --weights w.h5 --quiet -o parts.h5 | sed 's/^parts/book/' | cmp - said && echo "the same book as by its parts"
# Interrupted, here by texts that are too short, the command goes on with the parts that are not older than their text.
head -c 1500 src/data/text/tempest.txt >one.txt
head -c 1500 src/LICENSE >two.txt
again() { kvcodec prepare $model --text one.txt --text two.txt --tokens 4096 --chunk 500 --judged-documents 20 -o later.h5; }
again 2>&1 | sed '/note/d'
ls later.h5.steps later.h5 2>/dev/null
head -c 20000 src/LICENSE >two.txt
again 2>notes | sed 's/[0-9][0-9] KiB.*/NN KiB/' | tail -n 1
sed -n 's/.*note: later.h5.steps/kept: /p' notes
ls later.h5*
# What else lies in the folder stays; a folder that is not there is not made.
mkdir shared.h5.steps && echo mine >shared.h5.steps/mine
prepare --quiet -o shared.h5 >/dev/null && ls shared.h5.steps
refused prepare $model --text src/LICENSE --quiet -o nowhere/x.h5
ls nowhere 2>/dev/null || echo "no folder is made"
refused prepare $model --text src/LICENSE -o book.h5
refused prepare $model -o x.h5
refused prepare $model --text - -o x.h5
refused prepare $model --text src/LICENSE -o -
refused prepare $model --text src/LICENSE --tokens 100 -o x.h5
ls x.h5* 2>/dev/null || echo "nothing written"
