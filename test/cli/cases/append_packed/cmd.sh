# Packed ids can grow too.
set -e
kvcodec encode data/part-1.h5 --codec sparse --preset paper --book data/dict.h5 --sparsity 4 --pack -o first.h5 >/dev/null
kvcodec encode data/part-2.h5 --append first.h5 --continue --book data/dict.h5 -o grown.h5 >/dev/null
kvcodec encode data/whole.h5 --codec sparse --preset paper --book data/dict.h5 --sparsity 4 --pack -o whole.h5 >/dev/null
kvcodec decode grown.h5 --book data/dict.h5 -o grown-kv.h5 >/dev/null
kvcodec decode whole.h5 --book data/dict.h5 -o whole-kv.h5 >/dev/null
kvcodec eval-recon whole-kv.h5 grown-kv.h5 | grep ^all
kvcodec info grown.h5 --json | grep -A100 '"ledger_bytes"' | grep '"ids": '
kvcodec info whole.h5 --json | grep -A100 '"ledger_bytes"' | grep '"ids": '
