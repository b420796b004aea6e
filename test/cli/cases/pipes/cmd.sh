# Standard input and output in place of files, with only the product on standard output.
set -e
kvcodec encode - --codec kivi --preset paper --window 32 --quiet -o - <data/kv.h5 | kvcodec decode - -o - | kvcodec eval-recon data/kv.h5 - | grep ^all
kvcodec encode data/kv.h5 --codec kivi --preset paper --window 32 --quiet -o codes.h5 >/dev/null
kvcodec decode codes.h5 -o recon.h5 >/dev/null
kvcodec eval-recon data/kv.h5 recon.h5 | grep ^all
kvcodec info - <codes.h5 | head -n 3
kvcodec eval-recon - recon.h5 <data/kv.h5 | grep ^all
