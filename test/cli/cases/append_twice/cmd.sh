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
  kvcodec encode more.h5 --append codes.h5 --continue -o codes.h5 --overwrite --json | sed -n '/stored_before/,/]/p; /"tokens"/p'
done
# Other tokens under a stored name: refused, or put in its place in one step. A part of a stored document is another document.
set +e # refusals fail, and say so themselves
. src/test/cli/refused.sh
make_kv --layers 2 --heads 2 --dim 16 --document b:0:300 --document h:0:10 -o other.h5
make_kv --layers 2 --heads 2 --dim 16 --document g:150:160 -o further.h5
cp codes.h5 before.h5
refused encode other.h5 --append codes.h5
refused encode further.h5 --append codes.h5
refused encode other.h5 --append codes.h5 --continue
refused encode other.h5 --append codes.h5 --continue --replace
refused encode other.h5 --codec kivi --replace -o x.h5
cmp codes.h5 before.h5
kvcodec encode other.h5 --append codes.h5 --replace --json | jq -c '[.replaced, .stored_before, .tokens]'
kvcodec encode other.h5 --append codes.h5 --replace --quiet --json | jq -c '[.replaced, .stored_before, .tokens]'
kvcodec ls codes.h5 --documents b,h --json | jq -c '[.files[].documents[] | [.name, .tokens]]'
kvcodec check codes.h5
# The others decode as before, and the new ones as they do alone.
for file in before codes; do kvcodec decode $file.h5 --documents a,c,d,e,f,g -o $file-kv.h5 --quiet >/dev/null; done
kvcodec eval-recon before-kv.h5 codes-kv.h5 | grep ^all
kvcodec encode other.h5 --codec kivi --quiet -o alone.h5 >/dev/null
for file in alone codes; do kvcodec decode $file.h5 --documents b,h -o $file-kv.h5 --quiet --overwrite >/dev/null; done
kvcodec eval-recon alone-kv.h5 codes-kv.h5 | grep ^all
ls -A | grep -c tmp || true
