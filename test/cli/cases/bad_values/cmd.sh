# NaN and infinity in keys and values: named by layer, token, head and dimension.
. src/test/cli/refused.sh
check() { # check DATASET INDEX VALUE
  cp data/kv.h5 bad.h5
  damage bad.h5 set $1 $2 $3
  for codec in none kivi kvcomp; do
    refused encode bad.h5 --codec $codec -o x.h5
  done
  refused encode bad.h5 --codec sparse --book data/dict.h5 --sparsity 4 -o x.h5
  refused train-dict bad.h5 --atoms 64 --sparsity 4 -o x.h5
  refused eval-recon bad.h5 data/kv.h5
}
check /layers/0/key 0 nan
check /layers/3/value 16031 inf
ls
