# Documents, token ranges and layers decode alone, to the same values as in the whole, for every codec.
set -e
for codec in none kivi sparse; do
  book=
  [ $codec != sparse ] || book="--book data/dict.h5"
  kvcodec decode data/$codec.h5 $book --dtype f32 -o whole.h5 --overwrite >/dev/null
  for part in "--documents b" "--documents 2,0" "--tokens 30:97" "--tokens 250:" "--documents a --tokens :1 --layers 1,3"; do
    kvcodec decode data/$codec.h5 $book --dtype f32 $part -o part.h5 --overwrite --json | tr -d ' \n' | sed 's/,"seconds.*//'
    echo
    kvcodec eval-recon whole.h5 part.h5 | sed -n '1p; /^all/p'
  done
done
