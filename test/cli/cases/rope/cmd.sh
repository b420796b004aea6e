# Keys before the rotary embedding: only commands that encode or train need an option for it.
set -e
. src/test/cli/refused.sh
shape="--layers 2 --heads 2 --dim 16 --rope-theta 10000"
make_kv $shape --document a:0:300 --document b:0:120 -o part-1.h5
make_kv $shape --document b:120:500 --document c:0:77 -o part-2.h5
make_kv $shape --document a:0:300 --document b:0:500 --document c:0:77 --queries 5 -o whole.h5

# Only the rounding of turned keys is lost, and values are unchanged.
kvcodec encode whole.h5 --codec none --rope undo -o none.h5 >/dev/null
kvcodec decode none.h5 --dtype f32 -o none-kv.h5 >/dev/null
kvcodec eval-recon whole.h5 none-kv.h5 | grep '^all'

# Codes that grow equal those of the whole, and parts decode to the same values as the whole.
for codec in none: kivi:bits=2,key-group=16,window=32,; do
  kvcodec encode part-1.h5 --codec ${codec%?} --rope undo -o grown.h5 --overwrite --quiet >/dev/null
  kvcodec encode part-2.h5 --append grown.h5 --continue -o grown.h5 --overwrite --quiet >/dev/null
  kvcodec encode whole.h5 --codec ${codec}rope=undo -o codes.h5 --overwrite >/dev/null
  for file in grown codes; do kvcodec info $file.h5 --json | sed -n '/"streams"/,/"documents"/p' >$file.txt; done
  cmp grown.txt codes.txt
  kvcodec decode codes.h5 --dtype f32 -o decoded.h5 --overwrite >/dev/null
  for part in "--documents b --tokens 130:190" "--layers 1 --tokens 499:"; do
    kvcodec decode grown.h5 --dtype f32 $part -o part.h5 --overwrite >/dev/null
    kvcodec eval-recon decoded.h5 part.h5 | grep '^all'
  done
  kvcodec attend codes.h5 --queries whole.h5 --check --json | grep -m 1 '"multiplies"'
done
kvcodec info codes.h5 | grep -o '^parameters.*rope undo' | sed 's/.*rope/rope/'

# At the same bits a model's keys have smaller errors.
kvcodec encode data/demo.h5 --codec kvcomp --sink 0 -o kept.h5 >/dev/null
kvcodec encode data/demo.h5 --codec kvcomp --sink 0 --rope undo -o undone.h5 >/dev/null
for file in kept undone; do
  kvcodec decode $file.h5 -o $file-kv.h5 >/dev/null
  kvcodec eval-recon data/demo.h5 $file-kv.h5 --json | grep -m 1 '"nmse"' >$file.nmse
done
paste kept.nmse undone.nmse | awk -F '[:,\t]+' '{ print ($4 < 0.9 * $2 ? "nearer" : "not nearer: " $0) }'
kvcodec attend undone.h5 --queries data/demo.h5 --json | grep -m 1 '"multiplies"'
kvcodec eval-model --model src/data/demo-model --text src/LICENSE --chunk 200 --max-documents 2 --codec kvcomp:preset=paper,rope=undo \
  --codec kvcomp:preset=paper --codec undone.h5 --json | grep '"nll_rise"' -A 1 | grep -c mean

# Books record their training data, and codes follow them.
kvcodec train-dict whole.h5 --atoms 64 --sparsity 4 --epochs 1 --quiet --rope undo -o dict.h5 >/dev/null
kvcodec train-rvq whole.h5 --entries-value 16 --entries-low 16 --entries-high 16 --epochs 1 --quiet --rope undo -o books.h5 >/dev/null
kvcodec encode whole.h5 --codec sparse --preset paper --no-pack --book dict.h5 --quiet -o sparse.h5 >/dev/null
kvcodec encode whole.h5 --codec rvq:sink=4,book=books.h5,rope=undo --quiet -o rvq.h5 >/dev/null
for file in dict books sparse rvq; do kvcodec info $file.h5 | grep -o '^parameters.*rope undo' | sed 's/.*rope/rope/'; done
kvcodec train-dict whole.h5 --resume dict.h5 --epochs 2 --quiet --rope undo -o more.h5 >/dev/null
kvcodec info more.h5 | grep -o '^parameters.*rope undo' | sed 's/.*rope/rope/'

set +e
refused encode whole.h5 --codec sparse --book dict.h5 --rope keep -o x.h5
refused encode data/kv.h5 --codec sparse --book data/dict.h5 --rope undo -o x.h5
refused train-dict whole.h5 --resume dict.h5 --rope keep -o x.h5
refused train-rvq whole.h5 --rope undo --split rope -o x.h5
refused train-dict data/kv.h5 --rope undo -o x.h5
refused encode data/kv.h5 --codec kivi --rope undo -o x.h5
refused encode whole.h5 --codec selfindex --rope undo -o x.h5
refused encode whole.h5 --codec lossless --rope undo -o x.h5
refused encode whole.h5 --codec kvcomp:rope=undo,max-logit-error=1 -o x.h5
refused encode whole.h5 --codec kvcomp:rope=undo --rope keep -o x.h5
refused encode whole.h5 --codec kivi --rope back -o x.h5
refused encode part-2.h5 --append grown.h5 --rope undo -o x.h5
refused eval-model --model src/data/demo-model --text src/LICENSE --codec undone.h5:rope=keep
kvcodec dump-kv --model src/data/demo-model --text src/LICENSE --chunk 64 --max-tokens 64 --pre-rope --quiet -o before.h5 >/dev/null
refused encode before.h5 --codec kivi --rope undo -o x.h5
[ ! -e x.h5 ] || echo "x.h5 was written"
# Keys from before the embedding are turned on their way to other programs, by their positions.
for state in '' --pre-rope; do
  kvcodec dump-kv --model src/data/demo-model --text src/LICENSE --chunk 64 --max-tokens 64 --dtype f32 $state --quiet -o dumped$state.h5 >/dev/null
done
for format in transformers numpy.npz; do
  kvcodec export dumped--pre-rope.h5 --to ${format%.npz} --type f32 -o turned.$format --json 2>/dev/null | jq -c .notes
  kvcodec import turned.$format -o turned.h5 --overwrite >/dev/null
  kvcodec info turned.h5 | grep ^keys
done
kvcodec export dumped--pre-rope.h5 --to transformers --type f32 -o turned.transformers --overwrite --quiet >/dev/null
kvcodec import turned.transformers -o turned.h5 --overwrite >/dev/null
kvcodec eval-recon dumped.h5 turned.h5 --json | jq -c '.reconstructions[0] | [.key.snr_db == null or .key.snr_db > 100, .value.max_error]'
kvcodec encode dumped--pre-rope.h5 --codec none --quiet -o codes.h5 --overwrite >/dev/null
kvcodec decode codes.h5 --tokens 20:40 --quiet -o part.h5 --overwrite >/dev/null
kvcodec export part.h5 --to transformers --quiet -o part.transformers >/dev/null
kvcodec import part.transformers -o part.h5 --overwrite >/dev/null
kvcodec eval-recon dumped.h5 part.h5 --json | jq -c '.reconstructions[0] | [.tokens, .key.mse, .value.mse]'
