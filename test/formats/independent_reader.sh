#!/bin/sh
# Checks kvcodec's files with the reader that was written from formats/FORMAT.md.
#   independent_reader.sh PART <kvcodec> <make_kv> <folder to work in>
# PART is `files` (caches, indices, outputs, selections, sensitivities) or what codes are read of: `plain` (codecs without books), `kvcomp`, `sparse`,
# `rvq`, `transform`. Exit status 77: there is no Python with h5py here.
#
# A start of Python costs as much as reading a small file: pairs of codes and what kvcodec decodes them to are kept, and read in one go.
# Packing and types other than f32 are common to all codecs and options: `typed` has them, once for each codec and kind of ids.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
part=$1
kvcodec=$2
make_kv=$3
rm -rf "$4"
mkdir -p "$4"
cd "$4"

for python in /usr/bin/python3 python3; do
  if "$python" -c 'import h5py, numpy' 2>/dev/null; then break; fi
  python=
done
if [ -z "$python" ]; then
  echo "skipped: no Python with h5py and numpy"
  exit 77
fi
reader() { "$python" "$here/independent_reader.py" "$@"; }

run() { "$kvcodec" "$@" --quiet >/dev/null; }

fail() {
  echo "$*"
  exit 1
}

# Several documents, of many tokens, of few and of none; one dimension whose codes do not fill bytes; each 16-bit type and f32; no document.
make_caches() {
  "$make_kv" --layers 4 --heads 2 --dim 20 --document a:0:300 --document b:0:41 --document none:0:0 --document c:0:7 \
    -o kv.h5
  "$make_kv" --layers 1 --heads 4 --dim 128 --tokens 150 --documents 2 --dtype f32 -o wide.h5
  "$make_kv" --layers 2 --heads 1 --dim 64 --tokens 200 --dtype f16 -o half.h5
  "$make_kv" --layers 1 --heads 1 --dim 8 --documents 0 -o empty.h5
}

# Layers of several shapes.
make_shaped() {
  "$make_kv" --layers 5 --heads 2 --q-heads 6 --dim 36 --shape 2:36:20 --shape 1:36:in:32 --shape of:1 --shape none --shape 2:20:20 \
    --document a:0:300 --document none:0:0 --document b:0:41 "$@" -o shaped.h5
}

# Two kinds of layers, one behind the other in turns, and layers that keep nothing.
make_kinds() {
  "$make_kv" --layers 7 --heads 2 --dim 32 --shape none --shape 2:20:20 --shape 1:32:32 --shape 2:20:20 --shape none --shape 1:32:32 \
    --shape 2:20:20 --document a:0:2000 --document none:0:0 --document b:0:341 -o kinds.h5
}

# Layers that leave out tokens.
make_partial() {
  "$make_kv" --layers 3 --heads 2 --dim 20 --rope-theta 10000 --window 16 --window 0 --window 130 --document a:0:300 --document none:0:0 \
    --document b:0:41 --document c:0:9 "$@" -o partial.h5
}

# A document so long that places are stored.
make_long() { "$make_kv" --layers 1 --heads 1 --dim 16 --tokens 9000 -o long.h5; }

number=0 # of codes made so far
book=    # option with the book
dictionaries=
pairs=   # codes and what they decode to, not read yet

coded() { # <name of the kv file> <codec and options...>: makes $codes and $recon
  kv=$1
  shift
  number=$((number + 1))
  codes=$number-codes.h5
  recon=$number-recon.h5
  # shellcheck disable=SC2086
  run encode "$kv.h5" "$@" $book -o $codes
  # shellcheck disable=SC2086
  run decode $codes $book --dtype f32 -o $recon
  pairs="$pairs $codes $recon"
}

typed() { # likewise; packed too, and decoded to the type of the source and to f16
  coded "$@"
  run pack-indices $codes -o $number-packed.h5
  # shellcheck disable=SC2086
  run decode $number-packed.h5 $book -o $number-source.h5
  # shellcheck disable=SC2086
  run decode $number-packed.h5 $book --dtype f16 -o $number-half.h5
  pairs="$pairs $number-packed.h5 $recon $number-packed.h5 $number-source.h5 $number-packed.h5 $number-half.h5"
}

read_pairs() { # before the book changes, and at the end
  # shellcheck disable=SC2086
  reader decode $book $pairs
  pairs=
}

long() { # <codec and options...>
  coded long "$@"
  # shellcheck disable=SC2086
  reader decode $book $codes $recon >said
  pairs=
  grep -Eq ' [1-9][0-9]* rows of places' said || fail "no places: $(cat said)"
}

differ() { # <codes> <kv>: the reader notices that these are not the values
  # shellcheck disable=SC2086
  if reader decode $book "$1" "$2" >/dev/null 2>said; then fail "the reader does not notice that $1 is not $2"; fi
  grep -q ' values differ$' said || fail "$1 and $2 do not only differ in values: $(cat said)"
}

files() {
  make_caches
  # More than one chunk.
  "$make_kv" --layers 1 --heads 8 --dim 128 --tokens 700 --documents 2 -o large.h5
  # Queries, and what they get.
  "$make_kv" --layers 3 --heads 2 --q-heads 6 --dim 20 --tokens 40 --documents 3 --queries 7 -o asking.h5
  run encode asking.h5 --codec kvcomp --block 8 -o asked.h5
  run attend asked.h5 --queries asking.h5 --layers 0,2 --documents 1-2 -o outputs.h5
  run index asking.h5 --prompt 20 --batch 8 --batch-clusters 3 --clusters 4 --sink 5 -o index.h5
  run index asked.h5 --metric l2 --layers 0,2 -o index-2.h5
  run select asked.h5 --queries asking.h5 --by clusters --index index.h5 --budget 9 --dense-layers none -o selection.h5
  run decode asked.h5 --select selection.h5 -o selected.h5
  run sensitivity --model "$here/../../data/demo-model" --text "$here/../../LICENSE" --chunk 200 --max-documents 2 --metric fisher -o fisher.h5
  reader check kv.h5 wide.h5 half.h5 empty.h5 large.h5 asking.h5 outputs.h5 index.h5 index-2.h5 selected.h5 fisher.h5
  run decode asked.h5 -o all.h5
  reader part all.h5 selected.h5
  # Layers of several shapes, one that uses another's keys and values, one without, and values in keys.
  make_shaped --queries 5
  reader check shaped.h5
  # State of recurrent layers, and one that was replaced in place.
  echo "1 2 3 4 5 6 7 8 9 10 11 12" >ids
  run dump-kv --model "$here/../golden/model/qwen3_5-1" --tokens ids -o recurrent.h5
  run encode recurrent.h5 --codec q4 -o recurrent-codes.h5
  reader check recurrent.h5 recurrent-codes.h5
  make_partial --queries 5
  run encode partial.h5 --codec kivi --window 8 -o partial-codes.h5
  run decode partial-codes.h5 -o partial-all.h5
  run decode partial-codes.h5 --tokens 3: -o partial-some.h5
  run decode partial-codes.h5 --select 0-3,40,290-299 -o partial-chosen.h5
  reader check partial.h5 partial-codes.h5 partial-some.h5 partial-chosen.h5
  reader part partial-all.h5 partial-some.h5
  reader part partial-all.h5 partial-chosen.h5
  coded large --codec none
  read_pairs
}

plain() {
  make_caches
  "$make_kv" --layers 1 --heads 3 --dim 33 --tokens 150 --documents 2 -o odd.h5
  "$make_kv" --layers 1 --heads 3 --dim 1 --tokens 150 --dtype f16 -o thin.h5
  typed kv --codec kivi
  lossy=$recon
  differ $codes kv.h5
  for kv in wide half empty; do coded $kv --codec kivi; done
  for bits in 1 3 8; do coded kv --codec kivi --bits $bits --key-group 16 --value-group 6 --window 40; done
  coded kv --codec kivi --scale-type f32
  for kv in kv empty; do coded $kv --codec kivi --sink 3 --window 20 --bits 3; done
  coded kv --codec kivi --scale-type bf16 --storage f16
  typed kv --codec none
  differ $codes "$lossy"
  for kv in wide half empty; do coded $kv --codec none; done
  typed kv --codec selfindex
  reader check $codes
  differ $codes "$lossy"
  for kv in wide half empty; do coded $kv --codec selfindex; done
  coded kv --codec selfindex --center median --key-levels signed --exact-tokens 3
  coded kv --codec selfindex --exact-tokens 0 --storage f16
  coded kv --codec selfindex --store 16bit
  typed kv --codec q4
  differ $codes "$lossy"
  for kv in half empty; do coded $kv --codec q4; done
  coded kv --codec q4 --rotate hadamard --bits 3 --group 7
  coded half --codec q4 --rotate hadamard
  for kv in kv half odd thin empty; do coded $kv --codec q4 --bits 5 --rotate hadamard; done
  for kv in kv half odd thin empty; do coded $kv --codec q4 --bits 3 --rotate none --sink 3 --window 5; done
  typed kv --codec fp8
  differ $codes "$lossy"
  for kv in half empty; do coded $kv --codec fp8; done
  coded half --codec fp8 --headroom 1 --storage bf16
  typed kv --codec lossless
  differ $codes "$lossy"
  for kv in half odd thin empty; do coded $kv --codec lossless; done
  for codec in none lossless; do coded wide --codec $codec; done
  for type in q8_0 q5_1 iq4_nl; do
    order=neighbours
    [ $type != q5_1 ] || order=halves
    run export half.h5 --to llama --key-pairs $order --type $type -o $type.bin
    run import $type.bin --heads 1 --key-pairs $order -o $type.h5
    coded $type --codec lossless
    run export $codes --to llama -o $number.bin
    cmp $type.bin $number.bin || fail "$type: other bytes"
  done
  for form in "4 32 f16" "5 64 bf16" "3 64 f16" "6 64 f32"; do
    set -- $form
    run export half.h5 --to mlx --bits $1 --group $2 --type $3 -o mlx-$1.safetensors
    run import mlx-$1.safetensors -o mlx-$1.h5
    coded mlx-$1 --codec lossless
    "$kvcodec" info $codes --json | grep -q "\"value-blocks\": \"mlx-$1-$2-$3\"" || fail "mlx, $form: not stored as groups"
    run export $codes --to mlx -o $number.safetensors
    cmp mlx-$1.safetensors $number.safetensors || fail "mlx, $form: other bytes"
  done
  coded half --codec lossless --storage bf16 --block 33
  make_shaped
  for codec in none kivi q4 fp8 lossless kvcomp; do typed shaped --codec $codec; done
  coded shaped --codec kivi --layers 1,4
  make_partial
  for codec in none kivi q4 fp8 lossless kvcomp; do typed partial --codec $codec; done
  coded partial --codec kivi --bits 3 --rope undo --window 4
  coded partial --codec kvcomp --block 8 --sink 2
  read_pairs
  # Keys before the rotary embedding.
  "$make_kv" --layers 2 --heads 3 --dim 20 --tokens 150 --documents 2 --rope-theta 10000 -o turned.h5
  "$make_kv" --layers 1 --heads 1 --dim 64 --tokens 300 --dtype f16 --rope-theta 500000 \
    --rope-scaling '{"type":"linear","factor":4.0}' -o stretched.h5
  coded turned --codec q4 --rope keep
  kept=$recon
  for codec in none kivi kvcomp q4; do
    typed turned --codec $codec --rope undo
    coded stretched --codec $codec --rope undo
  done
  coded turned --codec q4 --rope undo
  differ $codes "$kept"
  read_pairs
  # Keys by one codec, values by another.
  for pair in kivi+q4 lossless+kivi kvcomp+selfindex fp8+none; do
    typed kv --codec $pair
    reader check $codes
    differ $codes "$lossy"
    for kv in wide half empty; do coded $kv --codec $pair; done
  done
  coded kv --codec kivi:bits=3,window=0+kivi:bits=4,sink=3
  typed turned --codec kivi+kvcomp --rope undo
  typed shaped --codec kvcomp+q4
  coded partial --codec q4+lossless
  read_pairs
  train kv --atoms 100 --sparsity 5
  typed kv --codec sparse+kivi
  coded kv --codec q4+sparse --embed-book
  read_pairs
  book=
  make_long
  long --codec lossless
}

kvcomp() {
  make_caches
  "$make_kv" --layers 1 --heads 3 --dim 33 --tokens 150 --documents 2 -o odd.h5
  "$make_kv" --layers 1 --heads 3 --dim 1 --tokens 150 --dtype f16 -o thin.h5
  typed kv --codec kvcomp
  typed half --codec kvcomp
  differ $codes half.h5
  for kv in wide odd thin empty; do coded $kv --codec kvcomp; done
  for kv in half odd; do
    for entropy in rans auto; do coded $kv --codec kvcomp --entropy $entropy; done
    coded $kv --codec kvcomp --key-quant block --unit-heads
    coded $kv --codec kvcomp --key-quant block --key-rel 0.3 --value-rel 0.4 --entropy auto --block 16
    coded $kv --codec kvcomp --max-error 0.05
    coded $kv --codec kvcomp --max-error 0.05 --sink 2 --block 16
    coded $kv --codec kvcomp --sink 2000
    coded $kv --codec kvcomp --key-rel 0.004 --value-rel 0.004 # steps so small that many values stay exact
    coded $kv --codec kvcomp --key-rel 0.004 --value-rel 0.004 --entropy rans --unit-heads
    coded $kv --codec kvcomp --block 33
    coded $kv --codec kvcomp --preset paper --block 16 --window 20
    coded $kv --codec kvcomp --no-key-origins --window 3 --sink 2
  done
  coded half --codec kvcomp --storage bf16 --max-rel-error 0.01
  coded kv --codec kvcomp --block 4 --entropy rans
  coded kv --codec kvcomp --block 3 # blocks too small for any
  read_pairs
  make_long
  long --codec kvcomp
  long --codec kvcomp --key-quant block --unit-heads --entropy rans --block 40

  # Books made from one token, then tokens that they do not suit: exact values and raw blocks.
  "$make_kv" --layers 1 --heads 6 --dim 4 --document a:0:1 -o begin.h5
  "$make_kv" --layers 1 --heads 6 --dim 4 --document a:1:300 --document b:0:100 -o rest.h5
  "$make_kv" --layers 1 --heads 6 --dim 4 --document a:0:300 --document b:0:100 -o whole.h5
  for options in "" "--unit-heads --key-quant block" "--entropy rans" "--entropy none --unit-heads"; do
    # shellcheck disable=SC2086
    run encode begin.h5 --codec kvcomp --block 16 --max-error 0.03 $options --overwrite -o first.h5
    run encode rest.h5 --append first.h5 --continue --overwrite -o codes.h5
    run decode codes.h5 --dtype f32 --overwrite -o recon.h5
    reader decode codes.h5 recon.h5 >said
    grep -Eq ' [1-9][0-9]* raw blocks, [1-9][0-9]* coded ones, [1-9][0-9]* exact values' said ||
      fail "no raw block, coded block or exact value: $(cat said)"
    run eval-recon whole.h5 recon.h5 --rate codes.h5
  done
}

train() { # <name of the kv file> <options...>: makes $dictionary and sets $book
  kv=$1
  shift
  number=$((number + 1))
  dictionary=$number-dict.h5
  dictionaries="$dictionaries $dictionary"
  run train-dict "$kv.h5" --batch 64 --epochs 1 "$@" -o $dictionary
  book="--book $dictionary"
}

sort_afterwards() { # the codes made last
  run pack-indices --sorted $codes -o $number-sorted.h5
  # shellcheck disable=SC2086
  run decode $number-sorted.h5 $book --dtype f32 -o $number-sorted-recon.h5
  pairs="$pairs $number-sorted.h5 $number-sorted-recon.h5"
}

# Codes of one length and of many, plain, packed and sorted.
some_codes() { # <name of the kv file>
  typed "$1" --codec sparse
  sort_afterwards
  coded "$1" --codec sparse --coefficients i8 --error-target 0.4
  coded "$1" --codec sparse --error-target 0.5 --sort-ids
}

all_codes() { # <name of the kv file>: every type of the coefficients, and with the book inside
  some_codes "$1"
  typed "$1" --codec sparse --error-target 0.5
  coded "$1" --codec sparse --embed-book --pack
  typed "$1" --codec sparse --coefficients f16 --sort-ids
}

sparse() {
  make_caches
  dictionaries=
  train kv --atoms 100 --sparsity 5 --atom-type i8 --layer-group 2
  all_codes kv
  read_pairs
  train kv --atoms 100 --sparsity 5 --atom-type f32 --layer-group 2 --dict-scope group
  some_codes kv
  read_pairs
  train kv --atoms 100 --sparsity 5 --atom-type f32 --signal head --normalize signal --center none
  some_codes kv
  read_pairs
  train kv --atoms 100 --sparsity 5 --atom-type i8 --normalize none --layer-group 4
  some_codes kv
  read_pairs
  train wide --atoms 300 --sparsity 9 --atom-type i8
  some_codes wide
  read_pairs
  make_kinds
  train kinds --atoms 60 --sparsity 4 --dict-scope layer
  coded kinds --codec sparse
  read_pairs
  train kv --atoms 60 --sparsity 5 --dict-scope layer
  some_codes kv
  read_pairs
  train half --atoms 64 --sparsity 7 --signal head # ids of 6 bits, all of them used
  all_codes half
  read_pairs
  differ $codes half.h5
  make_long
  train long --atoms 20 --sparsity 3
  long --codec sparse --error-target 0.5
  long --codec sparse --error-target 0.5 --sort-ids
  long --codec sparse --sort-ids
  "$make_kv" --layers 1 --heads 1 --dim 8 --tokens 100 -o small.h5
  train small --atoms 20 --sparsity 3
  typed empty --codec sparse
  read_pairs
  make_weighed
  train told --weights weights.h5 --atoms 50 --sparsity 5 --layer-group 2
  some_codes told
  read_pairs
  # shellcheck disable=SC2086
  reader check $dictionaries
}

# A cache of the demo model, and what errors in it cost.
make_weighed() {
  run dump-kv --model "$here/../../data/demo-model" --text "$here/../../data/text/pride-and-prejudice.txt" --chunk 100 --max-tokens 400 -o told.h5
  run sensitivity --model "$here/../../data/demo-model" --text "$here/../../LICENSE" --chunk 100 --max-documents 1 -o weights.h5
}

# Codebooks: of one and two parts, of every type of entries, ids of 8 and 16 bits, some of them packed to odd widths.
codebooks() { # <name of the kv file> <options of encode> -- <options of train-rvq>
  kv=$1
  encode=$2
  shift 3
  book=
  number=$((number + 1))
  run train-rvq "$kv.h5" --epochs 2 --refits 1 "$@" -o $number-codebooks.h5
  all_codebooks="$all_codebooks $number-codebooks.h5"
  book="--book $number-codebooks.h5"
  # shellcheck disable=SC2086
  typed "$kv" --codec rvq $encode
  read_pairs
}

rvq() {
  make_caches
  all_codebooks=
  codebooks kv "--window 10" -- --entries-value 20 --entries-low 300 --entries-high 17
  codebooks kv "--window 0 --sink 0 --beam 1" -- --split none --entry-type bf16 --method simvq --entries-value 40
  codebooks half "--window 30 --embed-book --pack" -- --split rope --high-dims 10 --entry-type f32 --codebooks-value 3
  differ $codes half.h5
  make_weighed
  codebooks told "--window 30" -- --weights weights.h5
  make_kinds
  codebooks kinds "--window 20" -- --entries-value 20 --entries-low 30 --entries-high 17
  # shellcheck disable=SC2086
  reader check $all_codebooks
}

learned() { # <name of the kv file> <options of train-transform...>: makes $transform and sets $book
  kv=$1
  shift
  number=$((number + 1))
  transform=$number-transform.h5
  transforms="$transforms $transform"
  run train-transform "$kv.h5" "$@" -o $transform
  book="--book $transform"
}

holds() { # <codes> <recon> <what the reader must have come across>
  # shellcheck disable=SC2086
  reader decode $book "$1" "$2" >said
  grep -q " [1-9][0-9]* $3" said || fail "no $3: $(cat said)"
}

# Books of all layers, of two, of one with the sides apart, and of weighted errors; steps so fine that levels have low bits, and so coarse that no component
# of some layers lives; blocks of all lengths mod 8, whose runs do not fill groups of lanes.
transform() {
  make_caches
  transforms=
  # Of the document `a` of kv, later on; b and c have other means, which levels without a frequency come from.
  "$make_kv" --layers 4 --heads 2 --dim 20 --document a:1000:3300 -o train.h5
  # Some tokens are so loud that they are kept exactly.
  cp kv.h5 loud.h5
  "$python" -c '
import h5py
with h5py.File("loud.h5", "r+") as file:
    for layer in file["/layers"].values():
        for side in ("key", "value"):
            values = layer[side][:]
            values[[0, 5, 6, 170, 299, 340]] *= 64
            layer[side][:] = values
            del layer[side].attrs["digests"]  # they are those of what was there'

  learned train
  typed kv --codec transform
  read_pairs
  differ $codes kv.h5
  coded kv --codec transform --rung 0 --window 30 --block 16
  coded kv --codec transform --bits 2 --sink 0 --block 33 --storage f16
  coded kv --codec transform --bits 1.2 --sink 7 --window 3 --block 7 --embed-book
  coded kv --codec transform --window 400
  coded kv --codec transform --no-adapt --block 64
  coded loud --codec transform --block 64
  holds $codes $recon 'exact tokens'
  read_pairs

  learned train --layer-group 2 --most-bits 10 --least-bits 6 --rate-distortion 0 --unbias 1
  coded kv --codec transform --bits 9 --block 50
  holds $codes $recon 'low bits'
  holds $codes $recon 'escaped levels'
  coded kv --codec transform --layers 2-3 --bits 6
  read_pairs

  learned train --layer-group 1 --sides apart --most-bits 0.1 --least-bits 0.02
  coded kv --codec transform --rung 0
  read_pairs

  make_kinds
  learned kinds
  coded kinds --codec transform --bits 1.5
  coded kinds --codec transform --layers 2,5 --sink 0
  read_pairs

  # Predicted from ids, of which those of a text are.
  run dump-kv --model "$here/../../data/demo-model" --text "$here/../../data/text/pride-and-prejudice.txt" --chunk 300 --max-tokens 2400 -o text.h5
  run dump-kv --model "$here/../../data/demo-model" --text "$here/../../LICENSE" --chunk 150 --max-tokens 400 -o told.h5
  learned text --predict-tokens 3 --features 20 --model "$here/../../data/demo-model"
  coded told --codec transform --bits 0.5 --block 40 --sink 2
  holds $codes $recon 'predicted tokens'
  coded told --codec transform --rung 0 --window 20 --sink 0
  holds $codes $recon 'first tokens'
  coded told --codec transform --bits 0.5 --importance queries --block 100
  holds $codes $recon 'tokens of other rungs'
  coded told --codec transform --bits 0.7 --importance queries --importance-power 1.5 --no-adapt --sink 3 --window 9
  read_pairs

  run sensitivity --model "$here/../../data/demo-model" --text "$here/../../LICENSE" --chunk 200 --max-documents 2 -o weights.h5
  reader check weights.h5
  "$make_kv" --layers 4 --heads 2 --dim 64 --tokens 2200 --dtype f32 -o model.h5
  learned model --weights weights.h5 --max-tokens 2100
  coded model --codec transform
  read_pairs

  make_long
  learned long
  long --codec transform
  long --codec transform --block 40 --window 1000
  # shellcheck disable=SC2086
  reader check $transforms
}

case $part in
  files | plain | kvcomp | sparse | rvq | transform) $part ;;
  *) fail "independent_reader.sh: '$part' is no part" ;;
esac
