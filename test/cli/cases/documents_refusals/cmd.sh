# Documents, layers and ranges that are not there.
. src/test/cli/refused.sh
refused decode data/none.h5 --documents 3 -o x.h5
refused decode data/none.h5 --documents 1-9 -o x.h5
refused decode data/none.h5 --documents 2-1 -o x.h5
refused decode data/none.h5 --documents d -o x.h5
refused decode data/none.h5 --layers 4 -o x.h5
refused decode data/none.h5 --layers two -o x.h5
refused decode data/none.h5 --tokens 300: -o x.h5
refused decode data/none.h5 --tokens 5 -o x.h5
refused decode data/none.h5 --tokens 5:5 -o x.h5
refused encode data/kv.h5 --codec none --layers 2,5 -o x.h5
refused encode data/three-layers.h5 --codec none --layers 3 -o x.h5
refused encode data/three-layers.h5 --codec sparse --book data/dict-2.h5 --sparsity 2 -o x.h5
refused encode data/kv.h5 --codec sparse --book data/dict-2.h5 --sparsity 2 --layers 1-2 -o x.h5
refused eval-recon data/kv.h5 data/wide.h5
refused eval-recon data/kv.h5 data/part-2.h5
refused eval-recon data/three-layers.h5 data/kv.h5
ls
