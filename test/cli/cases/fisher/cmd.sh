# Fisher matrices of the demo model: their sums agree with the cost of noise, the same for any number of threads; info shows them; refusals.
. src/test/cli/refused.sh
measure() { kvcodec sensitivity --model src/data/demo-model --text src/LICENSE --chunk 200 --max-documents 3 --quiet "$@"; }
measure --metric fisher --noise-documents 2 -o f.h5 | sed 's/; [0-9].*s$/; TIME/' >said
sed 's/[0-9][0-9.e+-]*/N/g' said | tr -s ' -'
for n in 1 2; do
  measure --metric fisher --noise-documents 2 --threads $n --json -o f$n.h5 | grep -v '"seconds"\|"created"\|"command"\|"output"' >$n.json
done
cmp 1.json 2.json && echo "same for any number of threads"
grep -c '"fisher": [0-9]' 1.json
kvcodec info f.h5 | sed -n '/^layer/,/^$/p' >shown
sed -n '/^layer/,/^$/p' said | cmp - shown && echo "info shows the same"
kvcodec info f.h5 --json | grep -c '"fisher": [0-9]'
kvcodec info f.h5 | grep -o '^parameters.*'
# Without noise, as by default, the same matrices and nothing else; files of both kinds weigh alike.
measure --metric fisher -o d.h5 | sed 's/; [0-9].*s$//' | sed -n '1,6p'
for f in f d; do kvcodec info $f.h5 --json | jq -c '[.layers[] | .key.fisher, .value.fisher]' >$f.matrices; done
cmp f.matrices d.matrices && kvcodec info d.h5 --json | jq -c '.layers[0].key | keys'
kvcodec dump-kv --model src/data/demo-model --text src/LICENSE --chunk 200 --max-tokens 600 --quiet -o kv.h5 >/dev/null
for f in f d; do kvcodec encode kv.h5 --codec kvcomp --max-error 0.5 --weights $f.h5 --quiet --json -o $f-codes.h5 | jq .bits_per_value; done | uniq -c | tr -s ' '
# The results of noise do not depend on them, and without derivatives there are no matrices.
measure --noise-documents 2 -o s.h5 >scalar
sed -n 's/^\([0-3]\)  *\([^ ]*\)  *\([^ ]*\) .*/\1 \2 \3/p' said >with
sed -n 's/^\([0-3]\)  *\([^ ]*\)  *\([^ ]*\) .*/\1 \2 \3/p' scalar | cmp - with && echo "the same figures of noise"
kvcodec info s.h5 --json | grep -c '"fisher": [0-9]'
measure --metric fisher --noise-documents 2 --seed 1 -o other.h5 | sed -n '/^layer/,/^$/p' | cmp -s - shown || echo "another seed, other targets"
refused sensitivity --model src/data/demo-model --text src/LICENSE --metric trace -o x.h5
refused sensitivity --model src/data/demo-model --text src/LICENSE --metric fisher --chunk 200 --prefix 4 -o x.h5
[ ! -e x.h5 ] && echo "nothing written"
