# --device cuda where there is no device: exit status 4, before any work.
. src/test/cli/refused.sh
if [ -e /dev/nvidiactl ]; then
  echo "this machine has a CUDA device"
  exit 77
fi
for command in "dump-kv --model missing --text missing -o x.h5" "train-dict missing -o x.h5" "encode missing --codec none -o x.h5" \
  "decode missing -o x.h5" "pack-indices missing -o x.h5" "info missing" "eval-recon missing missing"; do
  refused $command --device cuda
done
kvcodec info data/kv.h5 --device auto | head -n 1
kvcodec info data/kv.h5 --device cpu | head -n 1
