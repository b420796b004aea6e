# Dictionaries with another width, another digest, a missing or superfluous one; more atoms per signal than possible.
. src/test/cli/refused.sh
refused encode data/kv.h5 --codec sparse --book data/wide-dict.h5 --sparsity 4 -o x.h5
refused encode data/kv.h5 --codec sparse --book data/dict.h5 --sparsity 65 -o x.h5
refused encode data/kv.h5 --codec sparse --book data/dict.h5 --sparsity 33 -o x.h5
refused encode data/kv.h5 --codec sparse -o x.h5
refused encode data/kv.h5 --codec sparse --book missing.h5 -o x.h5
refused encode data/kv.h5 --codec kivi --book data/dict.h5 -o x.h5
refused encode data/kv.h5 --codec none --embed-book -o x.h5
refused decode data/sparse.h5 -o x.h5
refused decode data/sparse.h5 --book data/other-dict.h5 -o x.h5
refused decode data/none.h5 --book data/dict.h5 -o x.h5
refused train-dict data/kv.h5 --atoms 64 --sparsity 33 -o x.h5
refused train-dict data/kv.h5 --atoms 8 --sparsity 9 -o x.h5
refused train-dict data/kv.h5 --atoms 64 --sparsity 4 --layer-group 3 -o x.h5
cp data/dict.h5 bad.h5 && damage bad.h5 set /key/atoms 0 3
refused encode data/kv.h5 --codec sparse --book bad.h5 --sparsity 4 -o x.h5
ls
