# The largest values of f16: what decode writes by default is finite, though codecs' errors go beyond them. A narrower type than the cache's
# is refused, and the message says what can hold the value.
. src/test/cli/refused.sh
make_kv --layers 1 --heads 2 --dim 32 --tokens 150 --dtype f16 -o kv.h5
for index in 0 7 63 64 2000 9599; do
  damage kv.h5 set /layers/0/key $index 65504
  damage kv.h5 set /layers/0/value $index -65504
done
for codec in kivi:bits=2 kivi:bits=8 q4 selfindex fp8 kvcomp lossless; do
  echo "$codec: $(kvcodec encode kv.h5 --codec $codec --verify --quiet -o codes.h5 --overwrite >/dev/null && echo encoded)" \
    "$(kvcodec decode codes.h5 --quiet -o decoded.h5 --overwrite >/dev/null && echo decoded)"
  kvcodec eval-recon kv.h5 decoded.h5 --json | jq -c '[.reconstructions[0] | .key, .value | .max_error < 22000]'
done
make_kv --layers 1 --heads 2 --dim 32 --tokens 150 -o wide.h5
damage wide.h5 set /layers/0/value 72 100000
kvcodec encode wide.h5 --codec lossless --quiet -o wide-codes.h5 >/dev/null
refused decode wide-codes.h5 --dtype f16 -o no.h5
kvcodec decode wide-codes.h5 --dtype f32 --quiet -o decoded.h5 --overwrite | tail -n 1 | cut -d' ' -f1
