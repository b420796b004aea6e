# Files with the wrong type or content.
. src/test/cli/refused.sh
refused encode missing.h5 --codec none -o x.h5
refused encode . --codec none -o x.h5
echo "not HDF5" >text.h5
refused encode text.h5 --codec none -o x.h5
refused encode data/none.h5 --codec none -o x.h5
refused decode data/kv.h5 -o x.h5
refused decode data/sparse.h5 --book data/kv.h5 -o x.h5
refused info text.h5
cp data/kv.h5 bad.h5 && damage bad.h5 truncate 20000
refused encode bad.h5 --codec none -o x.h5
cp data/kv.h5 bad.h5 && damage bad.h5 flip /layers/2/key
refused encode bad.h5 --codec none -o x.h5
cp data/kv.h5 bad.h5 && damage bad.h5 attribute / kvcodec_version 99
refused encode bad.h5 --codec none -o x.h5
cp data/kv.h5 bad.h5 && damage bad.h5 attribute / kvcodec_type picture
refused info bad.h5
cp data/kv.h5 bad.h5 && damage bad.h5 attribute / head_dim 17
refused encode bad.h5 --codec none -o x.h5
cp data/kv.h5 bad.h5 && damage bad.h5 attribute / rope_scaling '{"rope_type": '
refused encode bad.h5 --codec kivi --rope undo -o x.h5
kvcodec check bad.h5 || echo "  status $?"
cp data/kv.h5 bad.h5 && damage bad.h5 remove /layers/1/value
refused encode bad.h5 --codec none -o x.h5
cp data/kv.h5 bad.h5 && damage bad.h5 resize /layers/1/value 10
refused encode bad.h5 --codec none -o x.h5
cp data/none.h5 bad.h5 && damage bad.h5 attribute / codec magic
refused decode bad.h5 -o x.h5
cp data/kivi.h5 bad.h5 && damage bad.h5 flip-part 1 2
refused decode bad.h5 -o x.h5
# The intact part of a damaged file can be read.
kvcodec decode bad.h5 --documents b --json -o b.h5 | grep -v seconds
cp data/kivi.h5 bad.h5 && damage bad.h5 attribute / kvcodec_version 2
refused decode bad.h5 -o x.h5
ls
