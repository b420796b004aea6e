# Typing errors: the probably intended word, exit status 2, nothing on standard output.
. src/test/cli/refused.sh
refused
refused encod
refused dump_kv
refused frobnicate
refused --quiet encode
refused encode kv.h5 --codec sparse --sparsty 8 -o x.h5
refused encode kv.h5 --sparsity 8 -o x.h5
refused encode kv.h5 --codec none --bits 2 -o x.h5
refused encode kv.h5 --codec spars -o x.h5
refused encode kv.h5 --codec kivy -o x.h5
refused encode kv.h5 --codec kivi,bits=2 -o x.h5
refused encode kv.h5 --codec kivi:bit=2 -o x.h5
refused encode kv.h5 --codec kivi:label=x -o x.h5
refused encode kv.h5 --codec kivi:bits=2 --bits 2 -o x.h5
refused encode kv.h5 --codec kivi:bits=2,bits=2 -o x.h5
refused eval-model --model src/data/demo-model --text t --codec kivy
refused encode kv.h5 --codec kivi --bits two -o x.h5
refused encode kv.h5 --codec kivi --bits 9 -o x.h5
refused encode kv.h5 --codec kivi --bits
refused encode kv.h5 --codec kivi --bits 2 --bits 4 -o x.h5
refused encode kv.h5 -o x.h5
refused encode --codec none -o x.h5
refused encode a.h5 b.h5 --codec none -o x.h5
refused decode c.h5 --dtyp f32 -o x.h5
refused decode c.h5 --dtype f99 -o x.h5
refused decode c.h5 --xyzzy -o x.h5
refused decode c.h5 -x -o x.h5
refused decode c.h5 -o x.h5 --threads -1
refused decode c.h5 -o x.h5 --threads 0
refused decode c.h5 -o --overwrite
refused decode c.h5 --book --json -o x.h5
refused decode c.h5 -o x.h5 --memory lots
refused decode c.h5 -o x.h5 --memory 1M
refused pack-indices c.h5 --layers 0 -o x.h5
refused train-dict kv.h5 --atom 64 -o x.h5
refused eval-recon kv.h5
refused eval-recon kv.h5 a.h5 b.h5 --rate a-codes.h5
