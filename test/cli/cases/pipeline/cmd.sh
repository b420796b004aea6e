# The whole chain on the demo model, step by step.
set -e
kvcodec dump-kv --model src/data/demo-model --text src/LICENSE --chunk 128 --max-tokens 1024 -o kv.h5
kvcodec train-dict kv.h5 --atoms 128 --sparsity 8 -o dict.h5
kvcodec encode kv.h5 --codec sparse --preset paper --no-pack --book dict.h5 --sparsity 8 -o codes.h5
kvcodec pack-indices codes.h5 -o packed.h5
kvcodec decode packed.h5 --book dict.h5 -o recon.h5
kvcodec eval-recon kv.h5 recon.h5 --rate packed.h5
kvcodec decode codes.h5 --book dict.h5 -o recon-plain.h5 >/dev/null
kvcodec eval-recon recon.h5 recon-plain.h5 | grep ^all
kvcodec pack-indices packed.h5 --unpack -o unpacked.h5 >/dev/null
kvcodec info unpacked.h5 | sed -n '/^stream/,/^document/p' >unpacked.txt
kvcodec info codes.h5 | sed -n '/^stream/,/^document/p' | cmp - unpacked.txt
