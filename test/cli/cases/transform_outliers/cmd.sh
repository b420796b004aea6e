# Tokens unlike all others, which the codec transform keeps exactly: a file's classes are fitted to the others. Bits that it spends beyond
# those of the book's classes lower the error.
make_kv --layers 2 --heads 2 --dim 16 --document a:0:2300 -o train.h5
# Of noise, whose components are all alike, vectors in few bits would mix more than the outliers do.
kvcodec train-transform train.h5 --vector-error 0.01 --quiet -o book.h5 >/dev/null
for size in 10000 1000000; do
  for apart in 100 500; do
    make_kv --layers 2 --heads 2 --dim 16 --document a:0:1000 -o kv.h5
    for token in $(seq 7 $apart 999); do
      for layer in 0 1; do
        for side in key value; do damage kv.h5 set /layers/$layer/$side $((token * 32 + 5)) $size; done
      done
    done
    for adapt in "" --no-adapt; do
      kvcodec encode kv.h5 --codec transform --book book.h5 --rope keep --bits 1 $adapt --quiet --json -o codes.h5 --overwrite | jq .stream_bytes
    done | awk -v what="1 in $apart of $size" '{ bytes[NR] = $1 }
      END { print what ":", (bytes[1] < bytes[2] * 1.05 ? "about as large" : bytes[1] " bytes, not " bytes[2]) }'
  done
done
