# One standard input cannot be two files, one standard output cannot be product and result.
. src/test/cli/refused.sh
refused eval-recon - - <data/kv.h5
refused encode data/kv.h5 --codec none -o - --json
refused decode data/sparse.h5 --book - -o x.h5
refused info -
kvcodec info data/kv.h5 >/dev/full
echo "status $?"
kvcodec encode data/kv.h5 --codec none -o - >/dev/full
echo "status $?"
# If the reader exits, the command ends silently.
kvcodec encode data/kv.h5 --codec none -o - | true
ls
