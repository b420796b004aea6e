# The byte counts of the paper's table, from real files: 16 m / (s (13 + 16)) for signals of m values, 8,192 atoms and s = 64, f16
# coefficients and 13-bit ids. Rows and dictionary are made up; the counts do not depend on them. 13-bit ids go with 4,097 to 8,192
# atoms: the fewest are used for long signals, whose dictionaries take long to make.
set -e
for shape in "512 4 1 8192" "1024 8 1 4097" "2048 8 2 4097" "4096 8 4 4097"; do
  set -- $shape
  make_kv --layers $3 --heads $2 --dim 128 --document a:0:16 -o kv.h5
  kvcodec train-dict kv.h5 --atoms $4 --sparsity 64 --layer-group $3 --start kaiming --optimizer gradient --batch 16 --steps 1 \
    --quiet -o dict.h5 --overwrite >/dev/null
  kvcodec encode kv.h5 --codec sparse --preset paper --no-pack --book dict.h5 --quiet -o codes.h5 --overwrite >/dev/null
  kvcodec pack-indices codes.h5 -o packed.h5 --overwrite --json | sed -n '/"after"/,$p' |
    sed -n "s/.*\"stream_bytes\": \([0-9]*\).*/m $1: \1 bytes of 16 tokens' codes/p; s/.*\"stream_ratio\": \([0-9.]*\)..*/  ratio \1/p" |
    cut -c -40
done
