# An output that exists is left alone unless --overwrite says otherwise, and whenever something goes wrong.
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
kvcodec decode out.h5 -o out.h5 --overwrite >/dev/null
echo "status $?"
kvcodec info out.h5 | head -n 1
ls -A
