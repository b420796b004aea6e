# A book inside the codes: they decode without other files, and the ledger shows its size.
set -e
kvcodec encode data/kv.h5 --codec sparse --preset paper --no-pack --book data/dict.h5 --sparsity 4 --embed-book -o codes.h5 >/dev/null
kvcodec decode codes.h5 -o recon.h5 >/dev/null
kvcodec decode data/sparse.h5 --book data/dict.h5 -o apart.h5 >/dev/null
kvcodec eval-recon apart.h5 recon.h5 | grep ^all
kvcodec info codes.h5 | grep -E '^(book|cache|file  )'
kvcodec pack-indices codes.h5 -o packed.h5 >/dev/null
kvcodec decode packed.h5 -o recon.h5 --overwrite >/dev/null
kvcodec eval-recon apart.h5 recon.h5 | grep ^all
