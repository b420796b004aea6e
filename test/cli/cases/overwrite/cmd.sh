# An existing output stays unless --overwrite is given, and whenever an error occurs.
echo precious >out.h5
kvcodec encode data/kv.h5 --codec none -o out.h5
echo "status $?"
cat out.h5
cp data/kv.h5 broken.h5
damage broken.h5 set /layers/3/value 5000 nan
kvcodec encode broken.h5 --codec none -o out.h5 --overwrite
echo "status $?"
cat out.h5
kvcodec encode data/kv.h5 --codec none -o out.h5 --overwrite >/dev/null
echo "status $?"
kvcodec decode out.h5 -o out.h5 --force >/dev/null
echo "status $?"
kvcodec info out.h5 | head -n 1
ls -A
# A command does not replace its inputs, whatever the file's name, unless --force is given.
. src/test/cli/refused.sh
cp data/kv.h5 cache.h5
cp data/none.h5 codes.h5
ln -s cache.h5 link.h5
mkdir there
refused encode cache.h5 --codec none -o cache.h5 --overwrite
refused encode cache.h5 --codec none -o cache.h5
refused encode link.h5 --codec none -o there/../cache.h5 --overwrite
refused encode cache.h5 --codec none -o link.h5 --overwrite
refused decode codes.h5 -o codes.h5 --overwrite
refused train-dict cache.h5 --atoms 8 --sparsity 2 -o cache.h5 --overwrite
refused index cache.h5 -o cache.h5 --overwrite
cp data/kv.h5 text.txt
refused dump-kv --model src/data/demo-model --text text.txt -o text.txt --overwrite
mkdir model
cp src/data/demo-model/*.json model
refused dump-kv --model model --text src/LICENSE -o model/config.json --overwrite
cmp cache.h5 data/kv.h5
cmp codes.h5 data/none.h5
# An input that the product contains completely may be replaced.
kvcodec pack-indices codes.h5 -o codes.h5 --overwrite >/dev/null
echo "status $?"
kvcodec encode cache.h5 --codec none -o cache.h5 --force >/dev/null
echo "status $?"
kvcodec info cache.h5 | head -n 1
