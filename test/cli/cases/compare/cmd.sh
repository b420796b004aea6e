# The experiment compare, over few settings: a second make finds nothing to do, a changed setting only repeats its own part.
set -e
for tool in make jq; do
  command -v $tool >/dev/null || {
    echo "there is no $tool"
    exit 77
  }
done
compare() {
  make -s -C src/data/experiments compare KVCODEC=kvcodec OUT="$PWD/out" COMPARE_TEXT="$SOURCE/LICENSE" COMPARE_TRAIN="$SOURCE/LICENSE" \
    COMPARE_CHUNK=100 COMPARE_DOCUMENTS=4 COMPARE_LENGTH=100 COMPARE_QUESTIONS=1 DICT_OPTIONS="--atoms 64 --sparsity 4 --layer-group 4 --epochs 1" \
    CODECS="none kivi fp8 sparse" COMPARE_SETTINGS="kivi-2@kivi:bits=$1,window=0,sink=0 sparse-4@sparse:preset=paper,book=$PWD/out/compare/dict.h5,sparsity=4" \
    NEEDS_BOOK=sparse 2>&1
}
stamps() { find out -name '*.json' -o -name '*.h5' -o -name '*.html' | sort | xargs stat -c '%n %Y %Z %i'; }
compare 2 | grep -oE '^(setting|reconstruction|none|fp8|[a-z]+-[0-9]+) ' | sort | uniq -c | sed 's/^ *//'
stamps >first
compare 2 >/dev/null
stamps >second
cmp first second && echo "nothing was made again"
compare 3 >/dev/null
stamps >third
diff first third | sed -n 's/^> \([^ ]*\) .*/\1/p'
ls out/compare
# All settings in one run of the model except for the null row, which is in the same table: there nothing is lost.
make -s -C src/data/experiments compare KVCODEC=kvcodec OUT="$PWD/together" COMPARE_TEXT="$SOURCE/LICENSE" COMPARE_CHUNK=100 COMPARE_PREFIX=60 \
  COMPARE_DOCUMENTS=4 COMPARE_QUESTIONS=0 COMPARE_RECON=0 COMPARE_TOGETHER=all CODECS="none kivi" \
  COMPARE_SETTINGS="null@none:dtype=f32 kivi-2@kivi:bits=2,window=0,sink=0" 2>/dev/null >table
awk '$1 == "null" { print ($3 < 1e-5 && $3 > -1e-5 && $5 < 1e-5 ? "nothing is lost in the null row" : $0) }
  $1 == "kivi-2" { print ($5 > 0.01 ? "2 bits lose something" : $0) }' table
find together -name '*.json' -o -name '*.h5' | sort
# The table in Markdown.
results="together/compare/model/null.json together/compare/model/all.json"
src/data/experiments/markdown-table.sh $results |
  sed 's/`null` | [^|]*|.*/`null` | …/; s/\(`kivi-2` | [^|]*|\).*/\1 …/; s/[0-9.]* ± [0-9.]* nats/N ± N nats/'
