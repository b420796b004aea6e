#!/bin/sh
# Holds kvcodec's files against the reader that was written from formats/FORMAT.md.
#   independent_reader.sh <kvcodec> <make_kv> <folder to work in>
# Exit status 77: there is no Python with h5py here.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
kvcodec=$1
make_kv=$2
rm -rf "$3"
mkdir -p "$3"
cd "$3"

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

# Types, several documents, an empty cache; more than one chunk; a dimension whose codes do not fill bytes.
"$make_kv" --layers 4 --heads 2 --dim 20 --tokens 300 --documents 3 -o kv.h5
"$make_kv" --layers 1 --heads 8 --dim 128 --tokens 1500 --documents 2 --dtype f32 -o large.h5
"$make_kv" --layers 2 --heads 1 --dim 64 --tokens 200 --dtype f16 -o half.h5
"$make_kv" --layers 1 --heads 1 --dim 8 --documents 0 -o empty.h5
reader check kv.h5 large.h5 half.h5 empty.h5

check() { # <name of the kv file> <codec and options...>
  kv=$1
  shift
  run encode "$kv.h5" "$@" --overwrite -o codes.h5
  run pack-indices codes.h5 --overwrite -o packed.h5
  run decode codes.h5 $book --dtype f32 --overwrite -o recon.h5
  run decode packed.h5 $book --overwrite -o recon-as-source.h5
  run decode packed.h5 $book --dtype f16 --overwrite -o recon-half.h5
  reader decode $book codes.h5 recon.h5 packed.h5 recon.h5 packed.h5 recon-as-source.h5 codes.h5 recon-half.h5
}

# Queries, and what they get.
"$make_kv" --layers 3 --heads 2 --q-heads 6 --dim 20 --tokens 40 --documents 3 --queries 7 -o asking.h5
run encode asking.h5 --codec kvcomp --block 8 -o asked.h5
run attend asked.h5 --queries asking.h5 --layers 0,2 --documents 1-2 -o outputs.h5
reader check asking.h5 outputs.h5
run index asking.h5 --prompt 20 --batch 8 --batch-clusters 3 --clusters 4 --sink 5 -o index.h5
run index asked.h5 --metric l2 --layers 0,2 -o index-2.h5
run select asked.h5 --queries asking.h5 --by clusters --index index.h5 --budget 9 -o selection.h5
run decode asked.h5 --select selection.h5 -o selected.h5
reader check index.h5 index-2.h5 selected.h5
run decode asked.h5 -o all.h5
reader part all.h5 selected.h5

book=
for kv in kv large half empty; do
  check $kv --codec none
  check $kv --codec kivi
done
if reader decode codes.h5 kv.h5 2>/dev/null; then
  echo "the reader does not notice that values differ"
  exit 1
fi
for kv in kv large half empty; do check $kv --codec selfindex; done
check kv --codec selfindex --center median --key-levels signed --full-tokens 3
check kv --codec selfindex --full-tokens 0 --storage f16
check kv --codec selfindex --store 16bit
for kv in kv half empty; do
  check $kv --codec q4
  check $kv --codec fp8
done
check kv --codec q4 --rotate hadamard --bits 3 --group 7
check half --codec q4 --rotate hadamard
check half --codec fp8 --headroom 1 --storage bf16
for bits in 1 3 8; do check kv --codec kivi --bits $bits --group 16 --value-group 6 --residual 40; done
check kv --codec kivi --scale-type f32
check kv --codec kivi --scale-type bf16 --storage f16

"$make_kv" --layers 1 --heads 3 --dim 33 --tokens 150 --documents 2 -o odd.h5
"$make_kv" --layers 1 --heads 3 --dim 1 --tokens 150 --dtype f16 -o thin.h5
for kv in kv large odd thin empty; do check $kv --codec kvcomp; done
if reader decode codes.h5 kv.h5 2>/dev/null; then
  echo "the reader does not notice another cache than that of kvcomp's codes"
  exit 1
fi
check half --codec kvcomp
for kv in kv half odd thin empty; do
  check $kv --codec q4 --bits 5 --rotate hadamard
  check $kv --codec lossless
done
check half --codec lossless --storage bf16 --block 33
if reader decode codes.h5 kv.h5 2>/dev/null; then
  echo "the reader does not notice another cache than that of lossless codes"
  exit 1
fi
pairs= # codes and what kvcodec decodes them to, read in one go
kvcomp() { # <name of the kv file> <options...>
  kv=$1
  shift
  name=kvcomp-$(echo "$kv$*" | tr ' ' '_')
  run encode "$kv.h5" --codec kvcomp "$@" -o "$name.h5"
  run decode "$name.h5" --dtype f32 -o "$name-recon.h5"
  pairs="$pairs $name.h5 $name-recon.h5"
}
for kv in half odd; do
  for entropy in rans none auto; do kvcomp $kv --entropy $entropy; done
  kvcomp $kv --key-quant block --unit-heads
  kvcomp $kv --key-quant block --key-rel 0.3 --value-rel 0.4 --entropy auto --block 16
  kvcomp $kv --max-error 0.05
  kvcomp $kv --key-rel 0.004 --value-rel 0.004 # steps so small that many values stay exact
  kvcomp $kv --key-rel 0.004 --value-rel 0.004 --entropy rans --unit-heads
  kvcomp $kv --block 33
done
kvcomp half --storage bf16 --max-rel-error 0.01
kvcomp kv --block 4 --entropy rans
kvcomp kv --block 3 # blocks too small for any
# shellcheck disable=SC2086
reader decode $pairs

# Books made from one token, then tokens that they do not suit: exact values and raw blocks.
"$make_kv" --layers 1 --heads 6 --dim 4 --document a:0:1 -o begin.h5
"$make_kv" --layers 1 --heads 6 --dim 4 --document a:1:300 --document b:0:100 -o rest.h5
"$make_kv" --layers 1 --heads 6 --dim 4 --document a:0:300 --document b:0:100 -o whole.h5
for options in "" "--unit-heads --key-quant block" "--entropy rans" "--entropy none --unit-heads"; do
  # shellcheck disable=SC2086
  run encode begin.h5 --codec kvcomp --block 16 --max-error 0.03 $options --overwrite -o first.h5
  run encode rest.h5 --append first.h5 --overwrite -o codes.h5
  run decode codes.h5 --dtype f32 --overwrite -o recon.h5
  reader decode codes.h5 recon.h5 >said
  grep -Eq ' [1-9][0-9]* raw blocks, [1-9][0-9]* coded ones, [1-9][0-9]* exact values' said || {
    echo "no raw block, coded block or exact value: $(cat said)"
    exit 1
  }
  run eval-recon whole.h5 recon.h5 --rate codes.h5
done

train() { # <name of the kv file> <options...>
  kv=$1
  shift
  run train-dict "$kv.h5" --batch 64 --epochs 1 "$@" --overwrite -o dict.h5
  reader check dict.h5
}

book="--book dict.h5"
sparse() { # <name of the kv file>: codes of one length and of many, plain and packed (by `check`), with the book inside
  check "$1" --codec sparse $book
  check "$1" --codec sparse $book --error-target 0.5
  check "$1" --codec sparse $book --embed-book --pack
  check "$1" --codec sparse $book --coefficients i4
  check "$1" --codec sparse $book --coefficients i8 --error-target 0.4
  check "$1" --codec sparse $book --coefficients fp8 --sort-ids
  check "$1" --codec sparse $book --coefficients e3m4
  check "$1" --codec sparse $book --error-target 0.5 --sort-ids
  for coefficients in f16 i4; do # sorted afterwards
    run encode "$1.h5" --codec sparse $book --coefficients $coefficients --overwrite -o codes.h5
    run pack-indices --sorted codes.h5 --overwrite -o packed.h5
    run decode packed.h5 $book --dtype f32 --overwrite -o recon.h5
    reader decode $book packed.h5 recon.h5
  done
}
for options in "--layer-group 2" "--layer-group 2 --dict-scope group" "--signal head --normalize signal --center none" "--normalize none --layer-group 4"; do
  for type in i8 f32; do
    train kv --atoms 100 --sparsity 5 --atom-type $type $options
    sparse kv
  done
done
train large --atoms 300 --sparsity 9 --atom-type i8
sparse large
train kv --atoms 60 --sparsity 5 --dict-scope layer
sparse kv
train half --atoms 64 --sparsity 7 --signal head  # ids of 6 bits, all of them used
sparse half
if reader decode $book codes.h5 half.h5 2>/dev/null; then
  echo "the reader does not notice that values of sparse codes differ"
  exit 1
fi
"$make_kv" --layers 1 --heads 1 --dim 8 --tokens 100 -o small.h5
train small --atoms 20 --sparsity 3
check empty --codec sparse $book

# Codebooks: of one and two parts, of every type of entries, ids of 8 and 16 bits, some of them packed to odd widths.
codebooks() { # <name of the kv file> <options of encode> -- <options of train-rvq>
  kv=$1
  encode=$2
  shift 3
  run train-rvq "$kv.h5" --epochs 2 --refits 1 "$@" --overwrite -o codebooks.h5
  reader check codebooks.h5
  book="--book codebooks.h5"
  check "$kv" --codec rvq $book $encode
}
codebooks kv "--window 10" -- --entries-value 20 --entries-low 300 --entries-high 17
codebooks kv "--window 0 --sink 0 --beam 1" -- --split none --entry-type bf16 --method simvq --entries-value 40
codebooks half "--window 30 --embed-book --pack" -- --split rope --high-dims 10 --entry-type f32 --codebooks-value 3
if reader decode $book codes.h5 half.h5 2>/dev/null; then
  echo "the reader does not notice that values of rvq codes differ"
  exit 1
fi
book=
check empty --codec none
if reader decode codes.h5 kv.h5 2>/dev/null; then
  echo "the reader does not notice another cache"
  exit 1
fi
