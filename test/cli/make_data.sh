#!/usr/bin/env bash
# Makes the small files that many cases share, once.
# usage: make_data.sh PROGRAM_FOLDERS DATA_FOLDER
set -eu
data=$2
SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export SOURCE_DATE_EPOCH=1700000000 LC_ALL=C PATH="$1:$PATH"
rm -rf "$data"
mkdir -p "$data"
cd "$data"

# Made-up caches: 4 layers, 2 heads of 16 dimensions. part-1 and part-2 are whole in two pieces: document b goes on in part-2.
shape="--layers 4 --heads 2 --dim 16"
make_kv $shape --document a:0:300 --document b:0:200 --document c:0:1 -o kv.h5
make_kv $shape --document a:0:300 --document b:0:120 -o part-1.h5
make_kv $shape --document b:120:500 --document c:0:77 -o part-2.h5
make_kv $shape --document a:0:300 --document b:0:500 --document c:0:77 -o whole.h5
make_kv $shape --document a:0:60 --dtype f16 -o f16.h5
make_kv $shape --document a:0:60 --dtype f32 -o f32.h5
make_kv $shape --document a:0:60 --only 0,1,2 -o three-layers.h5
make_kv --layers 4 --heads 2 --dim 32 --document a:0:60 -o wide.h5

# A real cache, of the demo model.
kvcodec dump-kv --model "$SOURCE/data/demo-model" --text "$SOURCE/LICENSE" --chunk 64 --max-tokens 192 --quiet -o demo.h5

# Dictionaries, and the same cache in every codec.
train="--sparsity 4 --epochs 1 --quiet"
kvcodec train-dict kv.h5 --atoms 64 $train -o dict.h5
kvcodec train-dict kv.h5 --atoms 64 --layer-group 2 $train -o dict-2.h5
kvcodec train-dict kv.h5 --atoms 64 --seed 7 $train -o other-dict.h5
kvcodec train-dict wide.h5 --atoms 64 $train -o wide-dict.h5
kvcodec encode kv.h5 --codec none -o none.h5
kvcodec encode kv.h5 --codec kivi --preset paper --bits 2 --key-group 16 --window 32 -o kivi.h5
kvcodec encode kv.h5 --codec kvcomp --key-quant channel --no-unit-heads --sink 0 --entropy huffman --block 16 -o kvcomp.h5
kvcodec encode kv.h5 --codec selfindex --preset paper --quiet -o selfindex.h5
kvcodec encode kv.h5 --codec sparse --preset paper --no-pack --book dict.h5 --sparsity 4 -o sparse.h5
