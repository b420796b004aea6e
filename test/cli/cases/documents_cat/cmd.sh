# Documents of caches and of every codec's codes are listed, split, joined and removed, without a change of their content.
set -e
same() { # WHOLE OTHER: the same documents, decoded to the same bits
  kvcodec decode "$1" $book -o whole-kv.h5 --overwrite --quiet >/dev/null
  kvcodec decode "$2" $book -o other-kv.h5 --overwrite --quiet >/dev/null
  kvcodec eval-recon whole-kv.h5 other-kv.h5 --json | grep -o '"max_error": [0-9.e-]*' | sort -u
  kvcodec ls "$1" --json | sed '/"file"/d' >whole.txt
  kvcodec ls "$2" --json | sed '/"file"/d' >other.txt
  cmp whole.txt other.txt
}
for codes in none kivi kvcomp selfindex sparse; do
  book=
  [ $codes != sparse ] || book="--book data/dict.h5"
  kvcodec split data/$codes.h5 --size 1 -o "$codes-{}.h5" >/dev/null
  kvcodec cat $codes-1.h5 $codes-2.h5 $codes-3.h5 -o joined.h5 --overwrite >/dev/null
  same data/$codes.h5 joined.h5
  kvcodec info joined.h5 --json | sed -n '/"streams"/,/"documents"/p' >joined.txt
  kvcodec info data/$codes.h5 --json | sed -n '/"streams"/,/"documents"/p' >whole.txt
  cmp joined.txt whole.txt
  kvcodec check joined.h5 $book
done
book=

# caches, listed by a file, some of their documents
kvcodec split data/kv.h5 --list 'ab=a,b' --list 'c=c' -o 'kv-{}.h5'
printf 'kv-ab.h5\n\n  kv-c.h5  \n' >list
kvcodec cat -T list -o joined.h5 --overwrite
kvcodec ls joined.h5
kvcodec ls data/none.h5 data/kv.h5 --match '[bc]'
printf 'a\n1-2\nc*\n' >wanted
kvcodec cat joined.h5 --documents 0-2 -o abc.h5
kvcodec ls joined.h5 --documents @wanted --json | grep '"n[au]m'

# taken out, to another file and in place
kvcodec rm joined.h5 --documents '2,b,@wanted' -o rest.h5
kvcodec ls rest.h5
cp joined.h5 smaller.h5
kvcodec rm smaller.h5 --documents 'c' --in-place
kvcodec rm smaller.h5 --documents 'b' -o smaller.h5 --overwrite --force
kvcodec ls smaller.h5
kvcodec cat smaller.h5 smaller.h5 -o twice.h5
# Other tokens under one name: those of the later file take the place of the earlier ones.
kvcodec cat data/part-1.h5 data/part-2.h5 --replace --json -o later.h5 | jq -c '.outputs[0] | [.documents, .tokens, .replaced]'
kvcodec ls later.h5
kvcodec check abc.h5 rest.h5 smaller.h5 twice.h5
cp abc.h5 over-a.h5
kvcodec split over-a.h5 --list a=c --list b=a --list c=b -o 'over-{}.h5' --force
for part in a b c; do kvcodec ls over-$part.h5; done
ls *.tmp .*.tmp 2>/dev/null || true

# one document out of many: a few calls to read, wherever it lies
make_kv --layers 4 --heads 2 --dim 16 --documents 300 --tokens 200 -o many-kv.h5
kvcodec encode many-kv.h5 --codec q4 --center none --quiet -o many.h5 >/dev/null
kvcodec cat many.h5 --quiet -o archive.h5
for document in 3 250; do kvcodec decode archive.h5 --documents $document --quiet --json -o one.h5 --overwrite | jq '.physical_reads <= 5'; done
