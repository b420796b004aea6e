# Clusters of keys: of a cache and of codes, at once and as documents grow, the same for any number of threads; the tokens that they
# select are attended to, and decoded alone.
set -e
kvcodec index data/demo.h5 --clusters 4 --sink 8 -o index.h5 | sed 's/, [^,]*, [^,]*$//'
kvcodec info index.h5 | sed -n '3,$p' | grep -v -e '^  kvcodec' -e '^file ' -e '^source ' | sed "s:$SOURCE:SOURCE:" | tr -s ' ' 
for n in 1 2; do
  kvcodec index data/demo.h5 --metric l2 --threads $n --memory 64M -o l2.h5 >/dev/null
  mv l2.h5 $n.h5
done
cmp 1.h5 2.h5 && echo "same bytes"
kvcodec encode data/demo.h5 --codec none -o none.h5 >/dev/null
kvcodec index none.h5 --clusters 4 --sink 8 -o of-codes.h5 --json | grep -E '"(clusters|tokens|largest)"' >of-codes.txt
kvcodec index data/demo.h5 --clusters 4 --sink 8 -o again.h5 --json | grep -E '"(clusters|tokens|largest)"' | diff of-codes.txt - && echo "codes give what the cache gives"
kvcodec index data/sparse.h5 --book data/dict.h5 --layers 1,3 -o - | kvcodec info - --json | grep -c '"clusters"'

# Selection. All tokens are found if the budget holds them all; more clusters find more.
shared="--setup paper --share max --dense-layers none"
recall() { kvcodec select none.h5 --queries data/demo.h5 --by clusters $shared --json "$@" | tr -d ' \n' | sed 's/.*"layer":"all".*"recall":\([0-9.]*\).*/\1/'; }
kvcodec index data/demo.h5 --clusters 16 --sink 2 -o fine.h5 >/dev/null
kvcodec index data/demo.h5 --clusters 1 --sink 2 -o coarse.h5 >/dev/null
echo "$(recall --index fine.h5 --budget 64) $(recall --index fine.h5 --budget 16) $(recall --index coarse.h5 --budget 16)" |
  awk '{ print "all: " $1 "; sixteen clusters find more than one: " ($2 > $3 ? "yes" : "no " $0) }'
kvcodec select none.h5 --queries data/demo.h5 --by clusters --index fine.h5 --budget 16 $shared -o selection.h5
kvcodec attend none.h5 --queries data/demo.h5 --select selection.h5 --json | grep -m 4 -E '"(selection|documents|queries|relative_error)"' |
  sed 's/\(0\.[0-9][0-9][0-9][0-9]\)[0-9]*/\1/'
kvcodec select none.h5 --queries data/demo.h5 --by clusters --index fine.h5 --budget 64 --setup paper --dense-layers none -o every.h5 >/dev/null
kvcodec attend none.h5 --queries data/demo.h5 --select every.h5 --json | awk -F'[:,]' '/"relative_error"/ { print "all tokens selected: " ($2 < 1e-5 ? "no error" : $2) ; exit }'
kvcodec decode none.h5 --select selection.h5 --layers 2 -o fetched.h5 --json | grep -E '"(documents|layers)"'
kvcodec decode data/kivi.h5 --select 0-15,100,40-60,50-70 -o listed.h5 --json | grep -E '"(documents|tokens)"'
for codec in none kivi kvcomp selfindex; do
  kvcodec decode data/$codec.h5 --dtype f32 -o whole.h5 --overwrite >/dev/null
  kvcodec decode data/$codec.h5 --dtype f32 --select 33-96 -o part.h5 --overwrite >/dev/null
  kvcodec eval-recon whole.h5 part.h5 | sed -n '1p; /^all/p'
done

# Like decoded ones: tokens that wait for their batch are selected, and the choice is the same for any number of threads.
kvcodec index data/demo.h5 --clusters 8 --prompt 40 --batch 10 --batch-clusters 2 --sink 2 -o steps.h5 >/dev/null
kvcodec info steps.h5 --json | tr -d ' \n' | grep -o '"batch_ends":\[[0-9,]*\]' | sort -u
for n in 1 2; do
  kvcodec select none.h5 --queries data/demo.h5 --by clusters --index steps.h5 --budget 12 $shared --threads $n -o steps.h5-$n |
    awk '/^all/ { print "recall " ($6 > 0.4 && $6 < 1 ? "as should be" : $6) }'
  mv steps.h5-$n $n.h5
done
kvcodec attend none.h5 --queries data/demo.h5 --select 1.h5 --json -o 1-out.h5 | grep -m 1 '"relative_error"' >1.txt
kvcodec attend none.h5 --queries data/demo.h5 --select 2.h5 --threads 1 --json -o 2-out.h5 | grep -m 1 '"relative_error"' | cmp - 1.txt && echo "same outputs"

# Growing: document b continues in part-2, c is new; tokens that wait for a whole batch are not in the index.
options="--sink 4 --batch 60 --batch-clusters 3"
kvcodec index data/part-1.h5 $options --prompt 60 -o first.h5 >/dev/null
kvcodec index data/part-2.h5 --append first.h5 --continue -o second.h5 --json | grep -E '"(documents|indexed_tokens|new_tokens)"'
kvcodec index data/whole.h5 --append first.h5 --continue --quiet -o whole-second.h5 --json | grep -E '"(documents|indexed_tokens|new_tokens)"'
kvcodec info second.h5 --json | tr -d ' \n' | sed 's/.*"documents":\(\[.*\]\),"layers".*/\1/; s/},{/},\n{/g'
echo
kvcodec index data/whole.h5 $options --prompt 60 -o at-once.h5 --json | grep -E '"(clusters|largest)"' >at-once.txt
kvcodec index data/whole.h5 --append second.h5 -o nothing-new.h5 --json | tee nothing.json | grep -E '"(clusters|largest)"' | diff at-once.txt - && echo "as at once"
jq -c '[.new_tokens, .stored_before]' nothing.json
# Names: a document with the tokens that it has is left out, also if its last ones wait for a batch; one with others takes its place.
make_kv --layers 4 --heads 2 --dim 16 --document b:0:300 --document a:0:310 --document d:0:60 -o others.h5
kvcodec index others.h5 --append second.h5 --replace -o replaced.h5 --json | jq -c '[.documents, .new_tokens, .replaced, .stored_before]'
kvcodec info replaced.h5 --json | jq -c '[.documents[] | [.name, .tokens]]'
kvcodec check replaced.h5
kvcodec index others.h5 --documents b $options --prompt 60 --quiet -o alone.h5 --json | jq -c '[.layers[].clusters]' >alone.txt
kvcodec index others.h5 --documents b --append second.h5 --replace --quiet -o b.h5 --json | jq -c '[.layers[].clusters]' >b.txt
kvcodec index data/whole.h5 --documents a,c $options --prompt 60 --quiet -o ac.h5 --json | jq -c '[.layers[].clusters]' >ac.txt
jq -c -n --slurpfile one alone.txt --slurpfile two ac.txt --slurpfile both b.txt '[range(4) | $one[0][.] + $two[0][.] == $both[0][.]]'
