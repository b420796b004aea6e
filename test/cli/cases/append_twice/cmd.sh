# Simultaneous runs that add to the same codes lose nothing, and a repeated run adds nothing.
set -e
for name in a b c d e f; do make_kv --layers 2 --heads 2 --dim 16 --document $name:0:400 -o $name.h5; done
for round in 1 2 3; do
  kvcodec encode a.h5 --codec kivi -o codes.h5 --overwrite >/dev/null
  for name in b c d e f; do
    kvcodec encode $name.h5 --append codes.h5 -o codes.h5 --overwrite --quiet >/dev/null &
  done
  wait
  echo "round $round: $(kvcodec info codes.h5 --json | grep -c '"name": "[a-f]"') documents"
done
kvcodec decode codes.h5 --documents 3 -o one.h5 >/dev/null
ls -A
# Again: an existing document, a new one, and the later part of one.
make_kv --layers 2 --heads 2 --dim 16 --document b:0:400 --document g:0:100 -o again.h5
kvcodec encode again.h5 --append codes.h5 -o codes.h5 --overwrite | sed 's/ *[^ ]* s$//'
make_kv --layers 2 --heads 2 --dim 16 --document g:100:150 -o more.h5
for run in 1 2; do
  kvcodec encode more.h5 --append codes.h5 -o codes.h5 --overwrite --json | sed -n '/stored_before/,/]/p; /"tokens"/p'
done
# Another document of that name is new.
make_kv --layers 2 --heads 2 --dim 16 --document b:0:300 -o other.h5
damage other.h5 set /tokens 5 1
kvcodec encode other.h5 --append codes.h5 -o codes.h5 --overwrite >/dev/null
kvcodec info codes.h5 --json | grep -c '"name": "[a-g]"'
