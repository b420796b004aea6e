# Codes that grow equal those that are encoded at once, for every codec: with continued documents, and with new ones.
set -e
for codec in none kivi kvcomp sparse; do
  case $codec in
    none) options= book= ;;
    kivi) options="--preset paper --bits 2 --key-group 16 --window 32" book= ;;
    kvcomp) options="--sink 0 --entropy huffman --block 16 --window 20 --key-quant channel" book= ;;
    sparse) options="--sparsity 4" book="--book data/dict.h5" ;;
  esac
  kvcodec encode data/part-1.h5 --codec $codec $options $book -o first.h5 --overwrite --quiet >/dev/null
  kvcodec encode data/part-2.h5 --append first.h5 --continue $book -o grown.h5 --overwrite --quiet >/dev/null
  kvcodec encode data/whole.h5 --codec $codec $options $book -o whole.h5 --overwrite --quiet >/dev/null
  kvcodec decode grown.h5 $book -o grown-kv.h5 --overwrite >/dev/null
  kvcodec decode whole.h5 $book -o whole-kv.h5 --overwrite >/dev/null
  kvcodec eval-recon whole-kv.h5 grown-kv.h5 | sed -n 's/^all/'$codec':/p'
  kvcodec info grown.h5 --json | sed -n '/"streams"/,/"documents"/p' >grown.txt
  kvcodec info whole.h5 --json | sed -n '/"streams"/,/"documents"/p' >whole.txt
  # kvcomp continues with the book of the first part, which the whole would not have chosen: same values, other codes.
  [ $codec = kvcomp ] || cmp grown.txt whole.txt
  # in place
  kvcodec encode data/part-2.h5 --append first.h5 --continue $book -o first.h5 --overwrite --quiet >/dev/null
  kvcodec decode first.h5 $book -o first-kv.h5 --overwrite >/dev/null
  kvcodec eval-recon whole-kv.h5 first-kv.h5 --documents b | sed -n 's/^all/'$codec' in place:/p'
done
# Values beyond the range of the first documents are clipped, and counted.
make_kv --layers 1 --heads 1 --dim 16 --document a:0:64 -o quiet.h5
make_kv --layers 1 --heads 1 --dim 16 --document b:0:64 -o loud.h5
damage loud.h5 set /layers/0/key 5 60000
damage loud.h5 set /layers/0/value 7 -60000
kvcodec encode quiet.h5 --codec fp8 --sink 0 --center none --quiet -o fp8.h5 >/dev/null
kvcodec encode loud.h5 --append fp8.h5 -o grown-fp8.h5 2>&1 >/dev/null | grep clipped
kvcodec encode loud.h5 --append fp8.h5 --quiet --json | jq .clipped_values
kvcodec encode loud.h5 --codec fp8 --sink 0 --center none --quiet --json -o fp8.h5 --overwrite | jq .clipped_values
# Codecs that keep every bit keep those of 16-bit values: others are rounded, and it is said.
for codec in lossless none kivi q4+lossless; do
  kvcodec encode data/f32.h5 --codec $codec -o wide.h5 --overwrite 2>&1 >/dev/null | grep rounded || true
  kvcodec encode data/f32.h5 --codec $codec --quiet --json -o wide.h5 --overwrite | jq -r .rounded_to
done
kvcodec encode data/kv.h5 --codec lossless --quiet --json -o wide.h5 --overwrite | jq -r .rounded_to
