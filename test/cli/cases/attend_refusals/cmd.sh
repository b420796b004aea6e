# attend refuses requests that are impossible or make no sense.
. src/test/cli/refused.sh
no() { refused "$@" | sed "s:$SOURCE:SOURCE:g; s/([0-9a-f]* stored, [0-9a-f]* found)/(...)/"; }
model=src/data/demo-model
dump() { kvcodec dump-kv --model $model --quiet "$@" >/dev/null; }
kvcodec encode data/demo.h5 --codec none -o none.h5 >/dev/null
no attend none.h5
no attend none.h5 --queries
no attend - --queries - <data/kv.h5
no attend none.h5 --queries none.h5
no attend data/none.h5 --queries data/kv.h5
no attend data/none.h5 --queries data/demo.h5
no attend none.h5 --queries data/demo.h5 --layers 4
no attend none.h5 --queries data/demo.h5 --documents 3
no attend none.h5 --queries data/demo.h5 --book data/dict.h5
no attend none.h5 --queries data/demo.h5 --tokens 0:5
no attend none.h5 --queries data/demo.h5 -o - --json
no attend none.h5 --queries data/demo.h5 -o none.h5

# Keys before their rotation give no scores.
dump --text "$SOURCE/LICENSE" --chunk 64 --max-tokens 192 --pre-rope -o pre.h5
kvcodec encode pre.h5 --codec none -o pre-codes.h5 >/dev/null
no attend pre-codes.h5 --queries data/demo.h5
no attend pre-codes.h5 --queries pre.h5

# Another text, other positions, layers without queries.
dump --text src/README.md --chunk 64 --max-tokens 64 -o other.h5
no attend none.h5 --queries other.h5
dump --text "$SOURCE/LICENSE" --chunk 64 --max-tokens 192 --layers 0,1 -o two-layers.h5
no attend none.h5 --queries two-layers.h5
kvcodec attend none.h5 --queries two-layers.h5 --layers 0-1 >/dev/null && echo "two of four layers: fine"
dump --text "$SOURCE/LICENSE" --chunk 32 --max-tokens 192 -o shorter.h5
no attend none.h5 --queries shorter.h5
dump --text "$SOURCE/LICENSE" --chunk 64 --max-tokens 192 --queries every:40 -o first.h5
kvcodec decode none.h5 --tokens 40: -o end.h5 >/dev/null
kvcodec encode end.h5 --codec none -o end-codes.h5 >/dev/null
no attend end-codes.h5 --queries first.h5

# A damaged stream is named.
cp none.h5 bad.h5 && damage bad.h5 flip-part 1 5
no attend bad.h5 --queries data/demo.h5 -o x.h5
cp data/demo.h5 bad.h5 && damage bad.h5 flip /layers/1/query
no attend none.h5 --queries bad.h5 -o x.h5

# The size of batches does not depend on the memory.
make_kv --layers 8 --heads 64 --dim 128 --tokens 16 --queries 2 --document a:0:16 -o wide.h5
kvcodec train-dict wide.h5 --atoms 8 --sparsity 1 --layer-group 8 --epochs 1 --quiet -o dict.h5 >/dev/null
kvcodec encode wide.h5 --codec sparse --preset paper --no-pack --book dict.h5 --sparsity 1 --quiet -o wide-codes.h5 >/dev/null
no attend wide-codes.h5 --queries wide.h5 --book dict.h5 --memory 64M
kvcodec attend wide-codes.h5 --queries wide.h5 --book dict.h5 --memory 4G >/dev/null && echo "with more memory: fine"
ls
