# The same bytes for one thread and two, from text to reconstruction. History leaves --threads and --memory out.
set -e
for n in 1 2; do
  mkdir $n
  cd $n
  run() { kvcodec "$@" --threads $n --memory ${n}00M --quiet >/dev/null; }
  run dump-kv --model "$SOURCE/data/demo-model" --text "$SOURCE/LICENSE" --chunk 48 --max-tokens 480 -o kv.h5
  run train-dict kv.h5 --atoms 96 --sparsity 4 --layer-group 2 --epochs 2 --batch 64 -o dict.h5
  run encode kv.h5 --codec sparse --preset paper --no-pack --book dict.h5 --sparsity 8 -o sparse.h5
  run pack-indices sparse.h5 -o packed.h5
  run decode packed.h5 --book dict.h5 -o recon.h5
  run encode kv.h5 --codec kivi --preset paper --window 16 --key-group 16 -o kivi.h5
  run encode kv.h5 --codec kvcomp --preset paper --block 32 --window 40 -o kvcomp.h5
  run decode kvcomp.h5 -o kvcomp-kv.h5
  run encode kv.h5 --codec selfindex --preset paper --exact-tokens 8 -o selfindex.h5
  run decode selfindex.h5 -o selfindex-kv.h5
  run encode kv.h5 --codec none -o none.h5
  run attend packed.h5 --queries kv.h5 --book dict.h5 -o sparse-outputs.h5
  run attend kvcomp.h5 --queries kv.h5 --check -o kvcomp-outputs.h5
  kvcodec eval-recon kv.h5 recon.h5 --rate packed.h5 --threads $n >eval.txt
  cd ..
done
for file in $(ls 1); do cmp 1/$file 2/$file && echo "$file: same bytes"; done
