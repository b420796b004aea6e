# --device cuda where there is no device: exit status 4, before any work.
. src/test/cli/refused.sh
if [ -e /dev/nvidiactl ]; then
  echo "this machine has a CUDA device"
  exit 77
fi
for command in "dump-kv --model missing --text missing -o x.h5" "train-dict missing -o x.h5" "encode missing --codec none -o x.h5" \
  "decode missing -o x.h5" "pack-indices missing -o x.h5" "info missing" "eval-recon missing missing" \
  "attend missing --queries missing" "select missing --queries missing" "index missing -o x.h5" "train-rvq missing -o x.h5" \
  "eval-model --model missing --text missing --codec none"; do
  refused $command --device cuda
done
kvcodec info data/kv.h5 --device auto | head -n 1
kvcodec info data/kv.h5 --device cpu | head -n 1
# auto is the CPU then, and says nothing.
for device in auto cpu; do
  kvcodec encode data/kv.h5 --codec kvcomp --preset paper --quiet --device $device -o codes.h5 >/dev/null
  mv codes.h5 $device.h5
done
cmp auto.h5 cpu.h5 && echo "auto is the CPU"
