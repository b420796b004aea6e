# Forward passes multiply in bf16 if the processor can, near the result of f32, and give the reason otherwise.
. src/test/cli/refused.sh
model=src/data/demo-model
dump() { kvcodec dump-kv --model $model --text src/LICENSE --chunk 64 --max-tokens 256 --dtype f32 --quiet "$@" >/dev/null; }
nll() { kvcodec eval-model --model $model --text src/LICENSE --chunk 64 --max-documents 4 --codec none --quiet --json "$@" | jq .uncompressed.nll.mean; }
dump -o f32.h5
dump --compute f32 -o again.h5
kvcodec eval-recon f32.h5 again.h5 --json | jq '.reconstructions[0] | [.key.nmse, .value.nmse] | all(. == 0)'
if dump --compute bf16 -o bf16.h5 2>why; then
  kvcodec eval-recon f32.h5 bf16.h5 --json | jq '.reconstructions[0] | [.key.nmse, .value.nmse] | all(. > 0 and . < 1e-3)'
  echo "[$(nll), $(nll --compute bf16)]" | jq '.[0] - .[1] | fabs < 0.01'
else
  grep -q 'products cannot be made in bf16: this \(processor\|build\) ' why && echo true
  nll --compute bf16 2>&1 >/dev/null | grep -c 'products cannot be made in bf16' >/dev/null && echo true
fi
refused dump-kv --model $model --text src/LICENSE --compute int8 -o x.h5
