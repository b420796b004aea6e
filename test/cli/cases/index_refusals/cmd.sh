# Refusals of index, select --by clusters, attend --select and decode --select.
. src/test/cli/refused.sh
{
kvcodec encode data/demo.h5 --codec none -o none.h5 >/dev/null || exit 1
kvcodec index data/demo.h5 -o index.h5 >/dev/null || exit 1
kvcodec index data/part-1.h5 --layers 0-2 -o part.h5 >/dev/null || exit 1
refused index data/demo.h5
refused index data/demo.h5 -o index.h5
refused index index.h5 -o x.h5
refused index data/demo.h5 --metric manhattan -o x.h5
refused index data/demo.h5 --clusters -1 -o x.h5
refused index data/demo.h5 --layers 7 -o x.h5
refused index data/kv.h5 --book data/dict.h5 -o x.h5
refused index data/sparse.h5 -o x.h5
refused index data/demo.h5 --append index.h5 --metric l2 -o x.h5
refused index data/demo.h5 --append index.h5 --seed 3 -o x.h5
refused index data/kv.h5 --append index.h5 -o x.h5
refused index data/demo.h5 --append data/demo.h5 -o x.h5
kvcodec decode data/none.h5 --documents b --tokens 50: -o gap.h5 >/dev/null
kvcodec index data/part-1.h5 --prompt 40 --documents b --batch 1000 -o b.h5 >/dev/null
refused index gap.h5 --append b.h5 --continue -o x.h5
kvcodec index data/part-1.h5 --documents b --batch 60 -o b-120.h5 >/dev/null
refused index data/kv.h5 --documents b --append b-120.h5 -o x.h5
kvcodec decode data/none.h5 --documents b --tokens :100 -o begin.h5 >/dev/null
refused index begin.h5 --append b-120.h5 --continue -o x.h5
refused index data/kv.h5 --append b-120.h5 --continue --replace -o x.h5
refused index data/kv.h5 --replace -o x.h5
refused select none.h5 --queries data/demo.h5 --by clusters
refused select none.h5 --queries data/demo.h5 --index index.h5
refused select none.h5 --queries data/demo.h5 --by clusters --index part.h5
refused select none.h5 --queries data/demo.h5 --by clusters --index data/demo.h5
kvcodec index data/demo.h5 --layers 0 --documents 0 -o small.h5 >/dev/null
refused select none.h5 --queries data/demo.h5 --by clusters --index small.h5
refused select none.h5 --queries data/demo.h5 --by clusters --index small.h5 --layers 0
kvcodec select none.h5 --queries data/demo.h5 --by oracle --budget 20 --layers 0,1 --documents 0 -o selection.h5 >/dev/null
refused attend none.h5 --queries data/demo.h5 --select selection.h5 --check
refused attend none.h5 --queries data/demo.h5 --select selection.h5
refused attend none.h5 --queries data/demo.h5 --select selection.h5 --layers 0,1
refused attend none.h5 --queries data/demo.h5 --select index.h5
refused decode none.h5 --select selection.h5 --tokens 0:3 -o x.h5
refused decode none.h5 --select selection.h5 --layers 3 -o x.h5
refused decode none.h5 --select 5000-6000 -o x.h5
refused decode none.h5 --select nowhere.h5 -o x.h5
refused decode data/none.h5 --select selection.h5 -o x.h5
kvcodec decode none.h5 --documents 0 --tokens 0:40 -o short.h5 >/dev/null
kvcodec encode short.h5 --codec none -o short-codes.h5 >/dev/null
refused decode short-codes.h5 --select selection.h5 -o x.h5
} | sed "s:$SOURCE:SOURCE:g"
