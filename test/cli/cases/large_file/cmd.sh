# A 6 GiB cache goes through every step with --memory 1G within 1.5 GiB. Needs 14 GB of disk and a quarter of an hour.
set -e
check="peak_memory 1536 kvcodec"
make_kv --layers 32 --heads 8 --dim 128 --document short:0:8192 --document long:0:40960 -o kv.h5
[ "$(stat -c %s kv.h5)" -ge 6442450944 ] && echo "6 GiB"
$check train-dict kv.h5 --max-tokens 2048 --atoms 512 --sparsity 4 --layer-group 4 --batch 256 --steps 8 --memory 1G -o dict.h5 >/dev/null
for codec in "kivi" "sparse --book dict.h5"; do
  set -- $codec
  book=${3:+--book $3}
  $check encode kv.h5 --codec $codec --memory 1G -o codes.h5 >/dev/null
  $check pack-indices codes.h5 --memory 1G -o packed.h5 >/dev/null
  rm codes.h5
  $check decode packed.h5 $book --memory 1G -o recon.h5 >/dev/null
  $check eval-recon kv.h5 recon.h5 --rate packed.h5 --memory 1G | grep -E '^(recon|all|packed)'
  rm recon.h5 packed.h5
done
$check encode kv.h5 --codec none --memory 1G -o codes.h5 >/dev/null
$check decode codes.h5 --documents long --tokens 40000: --memory 1G -o part.h5 >/dev/null
$check eval-recon kv.h5 part.h5 --memory 1G | grep -E '^(part|all)'
rm -f ./*.h5
