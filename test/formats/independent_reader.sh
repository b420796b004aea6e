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

book=
for kv in kv large half empty; do
  check $kv --codec none
  check $kv --codec kivi
done
if reader decode codes.h5 kv.h5 2>/dev/null; then
  echo "the reader does not notice that values differ"
  exit 1
fi
for bits in 1 3 8; do check kv --codec kivi --bits $bits --group 16 --value-group 6 --residual 40; done
check kv --codec kivi --scale-type f32
check kv --codec kivi --scale-type bf16 --storage f16

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
}
for options in "--layer-group 2" "--signal head --normalize signal --center none" "--normalize none --layer-group 4"; do
  train kv --atoms 100 --sparsity 5 $options
  sparse kv
done
train large --atoms 300 --sparsity 9
sparse large
train half --atoms 64 --sparsity 7 --signal head  # ids of 6 bits, all of them used
sparse half
if reader decode $book codes.h5 half.h5 2>/dev/null; then
  echo "the reader does not notice that values of sparse codes differ"
  exit 1
fi
"$make_kv" --layers 1 --heads 1 --dim 8 --tokens 100 -o small.h5
train small --atoms 20 --sparsity 3
check empty --codec sparse $book
if reader decode $book codes.h5 kv.h5 2>/dev/null; then
  echo "the reader does not notice another cache"
  exit 1
fi
