# Sparse codes of every type of coefficients as sorted blocks, made directly and rewritten; other files are refused.
. src/test/cli/refused.sh
set -e
book=data/dict.h5
kvcodec train-dict data/kv.h5 --atoms 64 --sparsity 4 --epochs 1 --atom-type f32 --quiet -o f32-dict.h5 >/dev/null
kvcodec info f32-dict.h5 | grep ^parameters | grep -o 'atom-type [a-z0-9]*'

for type in f16 i8; do
  kvcodec encode data/kv.h5 --codec sparse --preset paper --no-pack --book $book --coefficients $type -o $type.h5 >/dev/null
  kvcodec encode data/kv.h5 --codec sparse --preset paper --no-pack --book $book --coefficients $type --sort-ids -o $type-sorted.h5 >/dev/null
  kvcodec pack-indices --sorted $type.h5 -o rewritten.h5 --overwrite --json | grep '"sorted"'
  for file in $type $type-sorted rewritten; do
    kvcodec decode $file.h5 --book $book -o $file-kv.h5 --overwrite >/dev/null
    kvcodec eval-recon $type-kv.h5 $file-kv.h5 | grep ^all | sed "s/^all/$file of $type:/" | tr -s ' '
  done
done

# And back: with ids that rise, plain, and from there packed. Sorted codes stay so without an option.
kvcodec pack-indices i8-sorted.h5 -o still.h5 --json | grep -E '"(packed|sorted)"'
kvcodec pack-indices i8-sorted.h5 --unpack -o plain.h5 --json | grep -E '"(packed|sorted)"'
kvcodec pack-indices plain.h5 -o packed.h5 --json | grep -E '"(packed|sorted)"'
kvcodec pack-indices plain.h5 --sorted -o again.h5 >/dev/null
for file in still packed plain again; do
  kvcodec decode $file.h5 --book $book -o $file-kv.h5 >/dev/null
  kvcodec eval-recon i8-kv.h5 $file-kv.h5 | grep ^all | sed "s/^all/$file:/" | tr -s ' '
done

# First tokens that are kept exactly are copied.
kvcodec encode data/kv.h5 --codec sparse --no-pack --no-sort-ids --sink 3 --book $book -o firsts.h5 >/dev/null
kvcodec pack-indices firsts.h5 --sorted -o firsts-sorted.h5 >/dev/null
kvcodec pack-indices firsts-sorted.h5 --unpack -o firsts-plain.h5 >/dev/null
for file in firsts firsts-sorted firsts-plain; do
  kvcodec decode $file.h5 --book $book -o $file-kv.h5 >/dev/null
  kvcodec eval-recon firsts-kv.h5 $file-kv.h5 | grep ^all | sed "s/^all/$file:/" | tr -s ' '
done

# Coefficients in eight bits, over atoms in f32.
kvcodec encode data/kv.h5 --codec sparse --preset paper --no-pack --book f32-dict.h5 --coefficients i8 --sort-ids -o f32-i8.h5 >/dev/null
kvcodec info f32-i8.h5 | grep ^parameters
kvcodec decode f32-i8.h5 --book f32-dict.h5 -o f32-i8-kv.h5 --json | grep '"tokens"'

set +e
refused pack-indices i8.h5 --unpack --sorted -o x.h5
refused pack-indices data/kivi.h5 --sorted -o x.h5
parameters='{"sparsity": 4, "error-target": 0.0, "coefficients": "i8", "sort-ids": true, "sink": 0, "atoms": 64, "signals": 1, "per-head": false}'
damaged() {
  cp ${3:-i8}-sorted.h5 bad.h5
  damage bad.h5 attribute / parameters "$(echo "$parameters" | sed "s/$1/$2/; s/i8/${3:-i8}/")"
}
damaged nothing nothing
kvcodec decode bad.h5 --book $book -o same.h5 >/dev/null && kvcodec eval-recon i8-kv.h5 same.h5 | grep -c ^all
damaged '"sparsity": 4' '"sparsity": 60000'
refused pack-indices bad.h5 -o x.h5
refused decode bad.h5 --book $book -o x.h5
damaged '"sparsity": 4' '"sparsity": 65537'
refused pack-indices bad.h5 -o x.h5
damaged '"signals": 1' '"signals": 2147483648'
refused pack-indices bad.h5 -o x.h5
refused decode bad.h5 --book $book -o x.h5
damaged '"signals": 1, "per-head": false' '"signals": 3, "per-head": true' f16
refused pack-indices bad.h5 -o x.h5
damaged '"sink": 0' '"sink": -1'
refused pack-indices bad.h5 -o x.h5
damaged '"sink": 0' '"sink": 1'
refused pack-indices bad.h5 -o x.h5
damaged '"atoms": 64' '"atoms": 100'
refused decode bad.h5 --book $book -o x.h5
cp i8.h5 bad.h5
damage bad.h5 layout 1 '"index_bound":64' '"index_bound":100'
refused pack-indices bad.h5 --sorted -o x.h5
cp i8.h5 bad.h5
damage bad.h5 layout 2 '"index_bound":64' '"index_bound":100'
refused pack-indices bad.h5 --sorted -o x.h5
ls x.h5 2>/dev/null || true

# Options without effect are refused.
kvcodec encode data/whole.h5 --codec sparse --preset paper --no-pack --book $book --rounding-error 0.1 -o x.h5 2>&1 || echo "exit $?"
