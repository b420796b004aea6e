# The tables, and that JSON holds the same.
set -e
kvcodec decode data/kivi.h5 -o kivi.h5 >/dev/null
kvcodec decode data/none.h5 -o none.h5 >/dev/null
kvcodec decode data/none.h5 --documents a -o part.h5 >/dev/null
kvcodec eval-recon data/kv.h5 kivi.h5 --rate data/kivi.h5 --per-head --per-dim
kvcodec decode data/kvcomp.h5 -o kvcomp.h5 >/dev/null
kvcodec eval-recon data/kv.h5 kvcomp.h5 --rate data/kvcomp.h5 | sed -n '/keys ---/,$p'
kvcodec eval-recon data/kv.h5 kvcomp.h5 --rate data/kvcomp.h5 --json | grep -A 13 '"exempt_values"'
kvcodec eval-recon data/kv.h5 kivi.h5 none.h5 --rate data/kivi.h5 --rate data/none.h5
kvcodec eval-recon data/kv.h5 kivi.h5 part.h5
kvcodec eval-recon data/kv.h5 none.h5 --rate data/kivi.h5 --json | grep -E '"(nmse|snr_db|cosine_mean)"' | sort | uniq -c
# A layer that holds none of the tokens is not compared.
make_kv --layers 2 --heads 1 --dim 16 --window 0 --window 8 --document a:0:40 -o windows.h5
make_kv --layers 2 --heads 1 --dim 16 --window 0 --window 8 --document a:0:20 -o begin-kv.h5
kvcodec encode begin-kv.h5 --codec q4 --quiet -o begin-codes.h5 >/dev/null
kvcodec decode begin-codes.h5 --quiet -o begin.h5 >/dev/null
kvcodec eval-recon windows.h5 begin.h5 | grep ' 1  '
kvcodec eval-recon windows.h5 begin.h5 --json | jq -c '.reconstructions[0] | .key.layers[1], .value.layers[1].snr_db' | sed 's/"heads".*//'
kvcodec decode begin-codes.h5 --layers 1 --quiet -o nothing.h5 >/dev/null
kvcodec eval-recon windows.h5 begin.h5 nothing.h5
