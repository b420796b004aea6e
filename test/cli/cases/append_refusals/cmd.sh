# --append refuses impossible requests before anything is written.
. src/test/cli/refused.sh
refused encode data/part-2.h5 --append data/kivi.h5 --codec kivi -o x.h5
refused encode data/part-2.h5 --append data/kivi.h5 --bits 4 -o x.h5
refused encode data/part-2.h5 --append data/kivi.h5 --layers 0-1 -o x.h5
refused encode data/wide.h5 --append data/kivi.h5 -o x.h5
refused encode data/f16.h5 --append data/kivi.h5 -o x.h5
refused encode data/three-layers.h5 --append data/kivi.h5 -o x.h5
refused encode data/part-2.h5 --append data/sparse.h5 -o x.h5
cat data/kivi.h5 >own.h5
refused encode data/kv.h5 --append own.h5 -o own.h5 --quiet
cmp own.h5 data/kivi.h5
ls
