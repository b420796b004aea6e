# Outputs and errors are those that NumPy computes from the same files: for a codec that multiplies symbols, for layers coded
# together, and for codes of a part of each document.
set -e
python=$(for p in python3 /usr/bin/python3; do $p -c "import h5py, numpy" 2>/dev/null && echo $p && break; done) || true
if [ -z "$python" ]; then
  echo "there is no Python with h5py and NumPy"
  exit 77
fi
check() { # CODES
  kvcodec decode $1 --dtype f32 --overwrite -o recon.h5 >/dev/null
  kvcodec attend $1 --queries data/demo.h5 --json --overwrite -o out.h5 >report.json
  $python src/test/cli/cases/attend_numpy/compare.py data/demo.h5 recon.h5 out.h5 report.json
}
kvcodec encode data/demo.h5 --codec kvcomp --preset paper --block 16 --window 20 --key-rel 0.05 --quiet -o kvcomp.h5 >/dev/null
check kvcomp.h5
kvcodec train-dict data/demo.h5 --atoms 64 --layer-group 4 --sparsity 8 --epochs 1 --quiet -o dict.h5 >/dev/null
kvcodec encode data/demo.h5 --codec sparse --preset paper --no-pack --book dict.h5 --sparsity 8 --embed-book -o sparse.h5 >/dev/null
check sparse.h5
kvcodec decode kvcomp.h5 --tokens 10:40 -o part.h5 >/dev/null
kvcodec encode part.h5 --codec kvcomp --preset paper --block 7 --window 5 --quiet -o part-codes.h5 >/dev/null
check part-codes.h5

# Models with windows, soft caps, sinks and latent attention: outputs as NumPy computes them from what the file says of scores. A
# selection of all tokens that a query sees changes nothing, and there are as many as the window holds.
seq 1 60 | tr '\n' ' ' >ids
for model in gemma2-1 gemma3-1 gpt_oss-1 granite-1 deepseek_v3-1; do
  kvcodec dump-kv --model src/test/golden/model/$model --tokens ids --queries last:9 --dtype f32 --quiet --overwrite -o kv.h5 >/dev/null
  kvcodec encode kv.h5 --codec q4 --quiet --overwrite -o codes.h5 >/dev/null
  kvcodec decode codes.h5 --dtype f32 --overwrite -o recon.h5 >/dev/null
  kvcodec attend codes.h5 --queries kv.h5 --json --overwrite -o out.h5 >report.json
  echo "$model: $($python src/test/cli/cases/attend_numpy/compare.py kv.h5 recon.h5 out.h5 report.json)"
  kvcodec encode kv.h5 --codec none --quiet --overwrite -o none.h5 >/dev/null
  kvcodec select none.h5 --queries kv.h5 --by quest --ratio 1 --dense-layers none --json --overwrite -o all.h5 |
    jq -c '[.layers[] | select(.layer != "all") | [.visible, .recall, .mass, .output_error] | map(. * 1000 | round / 1000)]'
  kvcodec attend none.h5 --queries kv.h5 --select all.h5 --json | jq '[.layers[].relative_error] | max < 1e-6'
done
# Files that do not say it are read as before, with a note; tokens that a window hides are refused.
. src/test/cli/refused.sh
make_kv --layers 1 --heads 1 --q-heads 2 --dim 8 --tokens 30 --queries 2 --scores "" -o unknown.h5
kvcodec encode unknown.h5 --codec none -o unknown-codes.h5 --quiet >/dev/null
kvcodec select unknown-codes.h5 --queries unknown.h5 --by oracle --ratio 1 --dense-layers none -o selection.h5 2>&1 >/dev/null
make_kv --layers 1 --heads 1 --q-heads 2 --dim 8 --tokens 30 --queries 2 --scores '{"windows":[4]}' -o window.h5
set +e
refused attend unknown-codes.h5 --queries window.h5 --select selection.h5
