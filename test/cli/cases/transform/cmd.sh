# A learned transform on a cache other than its training data: in one piece and appended to, keys and values together and apart, whole
# and in parts.
set -e
kvcodec dump-kv --model src/data/demo-model --text src/data/text/pride-and-prejudice.txt --chunk 256 --max-tokens 4096 --quiet -o train.h5 >/dev/null
kvcodec dump-kv --model src/data/demo-model --text src/LICENSE --chunk 160 --max-tokens 320 --quiet -o kv.h5 >/dev/null
kvcodec train-transform train.h5 --least-bits 0.5 --most-bits 1 -o joint.h5
kvcodec train-transform train.h5 --sides apart --layer-group 1 --quiet -o apart.h5 >/dev/null
kvcodec sensitivity --model src/data/demo-model --text src/data/text/pride-and-prejudice.txt --chunk 128 --max-documents 3 --noise-documents 1 --metric fisher --quiet -o fisher.h5 | sed -n 's/;.*//;1p'
kvcodec train-transform train.h5 --weights fisher.h5 --quiet -o weighted.h5 >/dev/null
for book in joint apart weighted; do
  echo "== $book"
  kvcodec encode kv.h5 --codec transform --book $book.h5 --bits 1 --block 64 -o $book-codes.h5 | tail -n 1
  kvcodec decode $book-codes.h5 --book $book.h5 -o $book-kv.h5 >/dev/null
  kvcodec eval-recon kv.h5 $book-kv.h5 --rate $book-codes.h5 | sed -n '/^all/p;/^entropy/,$p'
  kvcodec info $book-codes.h5 | sed -n '/^stream/,/^document/p' | cut -d" " -f1 | tr "\n" " "
  echo
  # Parts equal the same parts of the whole.
  kvcodec decode $book-codes.h5 --book $book.h5 --documents 1 --tokens 70:80 --layers 1-2 -o part.h5 --overwrite >/dev/null
  kvcodec decode $book-kv.h5 -o nothing.h5 2>/dev/null && exit 1
  kvcodec eval-recon $book-kv.h5 part.h5 | grep '^all'
  kvcodec attend $book-codes.h5 --book $book.h5 --queries kv.h5 --quiet -o out.h5 --overwrite | tail -n 1 | cut -d' ' -f1
done
echo "== appended"
kvcodec encode kv.h5 --codec transform --book joint.h5 --no-adapt --bits 1 --block 64 -o whole.h5 >/dev/null
kvcodec encode kv.h5 --codec transform --book joint.h5 --no-adapt --bits 1 --block 64 --documents 0 -o first.h5 >/dev/null
kvcodec encode kv.h5 --append first.h5 --book joint.h5 --documents 1 -o grown.h5 >/dev/null
for codes in whole grown; do kvcodec decode $codes.h5 --book joint.h5 -o $codes-kv.h5 >/dev/null; done
kvcodec eval-recon whole-kv.h5 grown-kv.h5 | grep '^all'
echo "== predicted"
kvcodec dump-kv --model src/data/demo-model --text src/data/text/pride-and-prejudice.txt --chunk 256 --max-tokens 8192 --quiet -o more.h5 >/dev/null
kvcodec train-transform more.h5 --least-bits 0.05 --most-bits 1 --predict-tokens 2 --features 64 --model src/data/demo-model --quiet -o told.h5 | sed -n '/^Predicted/,/^$/p'
kvcodec train-transform more.h5 --least-bits 0.05 --most-bits 1 --quiet -o blind.h5 >/dev/null
for book in told blind; do
  kvcodec encode kv.h5 --codec transform --book $book.h5 --bits 0.4 --block 64 --quiet -o $book-codes.h5 >/dev/null
  kvcodec decode $book-codes.h5 --book $book.h5 -o $book-kv.h5 >/dev/null
  kvcodec eval-recon kv.h5 $book-kv.h5 --json | jq -r '.reconstructions[0].value.nmse'
done | awk '{ nmse[NR] = $1 } END { print "with ids the error falls to less than a half:", (nmse[1] < nmse[2] / 2 ? "yes" : "no " nmse[1] " " nmse[2]) }'
kvcodec decode told-codes.h5 --book told.h5 --documents 1 --tokens 70:80 --layers 1-2 -o part.h5 --overwrite >/dev/null
kvcodec eval-recon told-kv.h5 part.h5 | grep '^all'
# Appended tokens are coded with the classes of the file.
kvcodec encode kv.h5 --codec transform --book told.h5 --bits 0.4 --block 64 --documents 0 --quiet -o told-first.h5 >/dev/null
kvcodec encode kv.h5 --append told-first.h5 --book told.h5 --documents 1 --quiet -o told-grown.h5 >/dev/null
kvcodec decode told-grown.h5 --book told.h5 -o told-grown-kv.h5 >/dev/null
kvcodec eval-recon kv.h5 told-grown-kv.h5 --json | jq -r '.reconstructions[0].value.nmse < 0.05'
kvcodec eval-model --model src/data/demo-model --text src/LICENSE --chunk 128 --max-documents 2 --codec transform:book=told.h5,bits=0.4 --stream 16 --json | jq '.settings[0].ledger_bytes.ids'
make_kv --layers 4 --heads 2 --dim 64 --tokens 100 --rope-theta 10000 --no-ids -o no-ids.h5
make_kv --layers 4 --heads 2 --dim 64 --tokens 100 --rope-theta 10000 -o other-ids.h5
kvcodec encode no-ids.h5 --codec transform --book told.h5 -o no.h5 || echo $?
kvcodec encode other-ids.h5 --codec transform --book told.h5 -o no.h5 || echo $?
kvcodec train-transform other-ids.h5 --predict-tokens 2 --model src/data/demo-model -o no.h5 || echo $?
echo "== refused"
kvcodec encode kv.h5 --codec transform -o no.h5 || echo $?
kvcodec encode kv.h5 --codec transform --book joint.h5 --rung 99 -o no.h5 || echo $?
kvcodec encode kv.h5 --codec transform --book joint.h5 --layers 0-1 -o no.h5 || echo $?
kvcodec decode joint-codes.h5 --book apart.h5 -o no.h5 || echo $?
kvcodec train-transform kv.h5 -o no.h5 || echo $?
kvcodec train-transform train.h5 --layer-group 3 -o no.h5 || echo $?
kvcodec sensitivity --model src/data/demo-model --text src/LICENSE --chunk 64 --max-documents 1 --quiet -o scalar.h5 >/dev/null
kvcodec train-transform train.h5 --weights scalar.h5 --metric fisher -o no.h5 || echo $?
kvcodec train-transform train.h5 --weights fisher.h5 --metric fisher --rope keep -o no.h5 || echo $?
kvcodec train-transform train.h5 --metric scalar -o no.h5 || echo $?
kvcodec train-transform train.h5 --temper 0.5 -o no.h5 || echo $?
kvcodec train-transform train.h5 --weights fisher.h5 --metric scalar --temper 0.5 -o no.h5 || echo $?
kvcodec train-transform train.h5 --weights scalar.h5 --temper 0.5 -o no.h5 || echo $?
kvcodec train-transform train.h5 --weights fisher.h5 --rope keep -o turned.h5 >/dev/null
kvcodec train-transform train.h5 --predict-tokens 2 -o no.h5 || echo $?
kvcodec train-transform train.h5 --model src/data/demo-model -o no.h5 || echo $?
kvcodec train-transform train.h5 --sides both -o no.h5 || echo $?
echo "== of another kind"
make_kv --layers 4 --heads 2 --dim 16 --document a:0:2300 -o a.h5
kvcodec train-transform a.h5 --quiet -o of-a.h5 >/dev/null
for document in a b; do
  kvcodec encode data/kv.h5 --documents $document --codec transform --book of-a.h5 -o $document-codes.h5 2>&1 >/dev/null |
    sed 's/[0-9.]* bits per value/N bits per value/; s/took [0-9.]*:/took N:/'
done
