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
