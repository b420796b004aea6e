# Sensitivities of the demo model: the same for any number of threads, info shows the measurements, predictions, refusals.
. src/test/cli/refused.sh
measure() { kvcodec sensitivity --model src/data/demo-model --text src/LICENSE --chunk 200 --max-documents 3 --quiet "$@"; }
measure -o s.h5 | sed 's/; [0-9].*s$/; TIME/' >said
sed 's/[0-9][0-9.e+-]*/N/g' said | tr -s ' -'
for n in 1 2; do
  measure --threads $n --json -o s$n.h5 | grep -v '"seconds"\|"created"\|"command"\|"output"' >$n.json
done
cmp 1.json 2.json && echo "same for any number of threads"
kvcodec info s.h5 | sed -n '/^layer/,/^$/p' >shown
sed -n '/^layer/,/^$/p' said | cmp - shown && echo "info shows the same"
kvcodec info s.h5 | grep -o '^parameters.*'
kvcodec sensitivity --model src/data/demo-model --text src/LICENSE --chunk 200 --max-tokens 450 --quiet -o few.h5 | head -n 1 | sed 's/; .*//'
refused sensitivity --model src/data/demo-model --text src/LICENSE
refused sensitivity --text src/LICENSE -o x.h5
refused sensitivity --model src/data/demo-model -o x.h5
refused sensitivity --model src/data/demo-model --text src/LICENSE --chunk 200 --prefix 4 -o x.h5
refused sensitivity --model src/data/demo-model --text src/LICENSE --noise-target 0 -o x.h5
