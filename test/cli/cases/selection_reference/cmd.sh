# select and eval-model choose, as papers run their methods, what a NumPy program chooses that was written from the papers' texts alone:
# generated tokens beside the budget of Self-Indexing, and tokens that wait for their batch beside that of ClusterKV.
set -e
python=$(for p in python3 /usr/bin/python3; do $p -c "import h5py, numpy" 2>/dev/null && echo $p && break; done) || true
if [ -z "$python" ]; then
  echo "there is no Python with h5py and NumPy"
  exit 77
fi
reference() { $python src/data/experiments/selection-reference.py "$@"; }
dump() { kvcodec dump-kv --model src/data/demo-model --text src/data/text/moby-dick.txt --chunk 400 --quiet "$@" >/dev/null; }
dump --max-tokens 300 --queries last:32 -o prompt.h5
dump --max-tokens 400 --queries last:100 -o kv.h5
# The codes begin with the prompt, and go on with what was generated.
kvcodec encode prompt.h5 --codec selfindex --preset paper --quiet -o prompt-codes.h5 >/dev/null
kvcodec encode kv.h5 --codec none -o none.h5 >/dev/null
kvcodec decode none.h5 --tokens 300:400 -o rest.h5 >/dev/null
kvcodec encode rest.h5 --append prompt-codes.h5 --continue --quiet -o codes.h5 >/dev/null
kvcodec select codes.h5 --queries kv.h5 --setup paper --budget 96 --prompt 300 -o signs.h5 >/dev/null
reference signs signs.h5 kv.h5 prompt.h5 2>ties || cat ties
kvcodec index kv.h5 --prompt 300 --batch 32 --batch-clusters 2 --rounds 1000000 -o index.h5 >/dev/null
for budget in 24 96; do
  kvcodec select none.h5 --queries kv.h5 --by clusters --index index.h5 --setup paper --budget $budget --overwrite -o clusters.h5 >/dev/null
  reference clusters clusters.h5 kv.h5 300 index.h5 2>ties || cat ties
done
# attend reads the tokens beside the budget too, and counts them apart; a file without any of them has no list of them.
kvcodec attend none.h5 --queries kv.h5 --select clusters.h5 --json |
  jq -c '.layers[] | [.layer, .selected_tokens, .beside]'
kvcodec info signs.h5 | grep -c 'beside generated'
# Losses of a model under the same rules, of all queries of a continuation. One cluster for each batch: others depend on random starts.
kvcodec eval-model --model src/data/demo-model --text src/data/text/moby-dick.txt --chunk 400 --prefix 300 --max-documents 1 --dtype f32 \
  --setup paper --budget 96 --codec none:select=oracle --codec none:select=quest \
  --codec none:select=clusters,clusters=1,cluster-batch=32,batch-clusters=1 --codec none:select=signs --json >result.json
jq -c '.settings[].selected | [.tokens, .visible, .beside] | map(. * 10 | round / 10)' result.json
jq '.settings[].nll_rise.mean' result.json >rises
reference loss src/data/demo-model kv.h5 300 96 1 1 32 1 | paste - rises |
  awk '{ d = $2 - $3; print $1 ": " (d < 1e-5 && d > -1e-5 ? "the same loss" : $2 " by NumPy, " $3) }'
