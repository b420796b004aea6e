# Codes that grow equal those that are encoded at once, for every codec: with continued documents, and with new ones.
set -e
for codec in none kivi kvcomp sparse; do
  case $codec in
    none) options= book= ;;
    kivi) options="--preset paper --bits 2 --key-group 16 --window 32" book= ;;
    kvcomp) options="--preset paper --block 16" book= ;;
    sparse) options="--sparsity 4" book="--book data/dict.h5" ;;
  esac
  kvcodec encode data/part-1.h5 --codec $codec $options $book -o first.h5 --overwrite --quiet >/dev/null
  kvcodec encode data/part-2.h5 --append first.h5 $book -o grown.h5 --overwrite --quiet >/dev/null
  kvcodec encode data/whole.h5 --codec $codec $options $book -o whole.h5 --overwrite --quiet >/dev/null
  kvcodec decode grown.h5 $book -o grown-kv.h5 --overwrite >/dev/null
  kvcodec decode whole.h5 $book -o whole-kv.h5 --overwrite >/dev/null
  kvcodec eval-recon whole-kv.h5 grown-kv.h5 | sed -n 's/^all/'$codec':/p'
  kvcodec info grown.h5 --json | sed -n '/"streams"/,/"documents"/p' >grown.txt
  kvcodec info whole.h5 --json | sed -n '/"streams"/,/"documents"/p' >whole.txt
  # kvcomp continues with the book of the first part, which the whole would not have chosen: same values, other codes.
  [ $codec = kvcomp ] || cmp grown.txt whole.txt
  # in place
  kvcodec encode data/part-2.h5 --append first.h5 $book -o first.h5 --overwrite --quiet >/dev/null
  kvcodec decode first.h5 $book -o first-kv.h5 --overwrite >/dev/null
  kvcodec eval-recon whole-kv.h5 first-kv.h5 --documents b | sed -n 's/^all/'$codec' in place:/p'
done
