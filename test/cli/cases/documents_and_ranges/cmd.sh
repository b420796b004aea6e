# Documents, token ranges and layers decode alone, to the same values as in the whole, for every codec; and the whole is near the
# original in every layer.
set -e
kvcodec encode data/kv.h5 --codec sparse --preset paper --no-pack --book data/dict-2.h5 --sparsity 6 -o pairs.h5 >/dev/null # two layers a code
for codec in none kivi kvcomp selfindex sparse pairs; do
  book= codes=data/$codec.h5
  case $codec in
    sparse) book="--book data/dict.h5" ;;
    pairs) book="--book data/dict-2.h5" codes=pairs.h5 ;;
  esac
  kvcodec decode $codes $book --dtype f32 -o whole.h5 --overwrite >/dev/null
  kvcodec eval-recon data/kv.h5 whole.h5 --json | awk -F '[:,]' -v codec=$codec '
    /"nmse"/ && $2 > worst { worst = $2 } END { print codec ": " (worst < 0.9 ? "near the original" : "worst NMSE " worst) }'
  for part in "--documents b" "--documents 2,0" "--tokens 30:97" "--tokens 250:" "--documents a --tokens :1 --layers 1,3"; do
    kvcodec decode $codes $book --dtype f32 $part -o part.h5 --overwrite --json | tr -d ' \n' | sed 's/,"seconds.*//'
    echo
    kvcodec eval-recon whole.h5 part.h5 | sed -n '1p; /^all/p'
  done
done
