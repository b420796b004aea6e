#!/usr/bin/env bash
# Runs the commands in EXAMPLES of the manual pages, those of a page one after the other in a folder that has the files they name: small
# ones, of the demo model, which stands for every model and every book.
# usage: examples.sh ROOT PROGRAM_FOLDER WORK_FOLDER [PAGE…]
# Fails if a command fails, and says how many ran and how many were left out. PAGE as in man/kvcodec-info.1; all by default.
#
# Left out are examples of which a line has one of these words:
left_out='\.gguf|slot\.bin|sglang|ssh |h5py|--rotated|\.py |longer\.h5'  # models, caches, machines and programs that are not there
left_out+='|Qwen3|--total-bits 3|--sparsity 128|sensitivity --model L|make '  # a wider model, a larger cache, longer texts, minutes
left_out+='|--task recall|--preset paper|--learn |--atoms 8192|held-out'  # many seconds or tokens; cases of test/cli have them
set -euo pipefail
root=$1 programs=$2 work=$3
shift 3
pages=("${@/#/$root/}")
(($# > 0)) || pages=("$root"/man/*.[157])
export PATH=$programs:$PATH LC_ALL=C OMP_WAIT_POLICY=passive
rm -rf "$work"
mkdir -p "$work/pool/data/text" "$work"/pool/{docs/new,train}
cd "$work/pool"

for model in data/demo-model DIR Llama-3.2-1B Llama-3.2-3B Llama-3.1-8B; do ln -s "$root/data/demo-model" $model; done
texts=("$root"/data/text/{moby-dick,pride-and-prejudice,technical,code}.txt)
for text in "${texts[@]}"; do head -c 5000 "$text" >"data/text/${text##*/}"; done
for file in docs/a.txt docs/new/b.txt book.txt; do tail -c 2000 "${texts[0]}" >$file; done
head -c 6000 "${texts[1]}" | split -b 2000 -d - train/
for i in {0..109}; do
  name=wiki/$i
  case $i in 0) name=a.txt ;; 1) name=b.txt ;; esac
  printf '{"id": "%s", "text": "Chapter %d", "metadata": {"source": "wiki"}}\n' $name $i
done >corpus.jsonl
echo wiki/7 | tee train.txt >withdrawn.txt

quietly() { "$@" >>../pool.log 2>&1 || { echo "examples.sh: $* failed:"; tail -n 3 ../pool.log; exit 1; }; }
quietly kvcodec dump-kv --model DIR --text corpus.jsonl -o corpus.h5
quietly kvcodec dump-kv --model DIR --text data/text/moby-dick.txt --chunk 160 --max-tokens 640 -o kv.h5
quietly kvcodec dump-kv --model DIR --text docs/new -o today.h5
quietly kvcodec train-dict kv.h5 --atoms 256 --sparsity 8 --epochs 1 -o dict.h5
quietly kvcodec dump-kv --model DIR --text train -o train.h5
quietly kvcodec train-transform train.h5 -o transform.h5
quietly kvcodec sensitivity --model DIR --text book.txt --chunk 128 --max-documents 2 -o sensitivity.h5
quietly kvcodec encode kv.h5 --codec sparse --book dict.h5 --embed-book -o codes.h5
quietly kvcodec encode kv.h5 --codec sparse --book dict.h5 -o all.h5
quietly kvcodec encode corpus.h5 --codec kivi -o corpus.codes.h5
for codec in kivi none; do
  quietly kvcodec encode kv.h5 --codec $codec -o $codec.h5
  quietly kvcodec decode $codec.h5 -o $codec-kv.h5
done
quietly kvcodec decode codes.h5 -o recon.h5
quietly kvcodec select codes.h5 --queries kv.h5 -o selection.h5
quietly kvcodec index kv.h5 -o index.h5
quietly kvcodec split corpus.h5 --parts 2 -o 'shard-{}.h5'
quietly kvcodec export kv.h5 --documents 0 --to transformers -o cache.safetensors
cp transform.h5 book.h5 && cp all.h5 sparse.h5 && cp recon.h5 sparse-kv.h5 && cp kv.h5 kv-of-1B.h5

# examples PAGE: its commands, a separator (octal 36) behind each example
examples() {
  awk '
    function put() { if (text ~ /(^|\n|[ (])kvcodec /) printf "%s\036", text; text = "" }
    { line = $0; gsub(/\\e/, "\\", line); gsub(/\\\(dq/, "\"", line) }
    /^\.Sh / { on = $2 == "EXAMPLES" }
    on && /^\.Dl / { sub(/^\.Dl /, "", line); text = line; put() }
    on && /^\.Ed/ { inside = 0; put() }
    inside { text = text (text == "" ? "" : "\n") line }
    on && /^\.Bd -literal/ { inside = 1 }' "$1"
}

# An output that is there from an example before is made anew.
prelude='kvcodec() { before=; for word; do if [ "$before" = -o ]; then rm -f "$word"; fi; before=$word; done; command kvcodec "$@"; }'
ran=0 out=0 failed=0
for page in "${pages[@]}"; do
  name=${page##*/}
  rm -rf ../run
  cp -r . ../run
  while IFS= read -r -d $'\036' example; do
    if grep -qE -e "$left_out" <<<"$example"; then out=$((out + 1)); continue; fi
    ran=$((ran + 1))
    (cd ../run && bash -eo pipefail -c "$prelude"$'\n'"$example") >../output 2>../messages </dev/null ||
      { failed=1; printf '%s: an example fails:\n%s\n' "$name" "$example"; tail -n 3 ../messages; }
  done < <(examples "$page")
done
echo "$ran examples ran, $out were left out"
exit $failed
