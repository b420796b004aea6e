# Refusals of documents that cannot be joined, divided or named.
. src/test/cli/refused.sh
kvcodec encode data/part-1.h5 --codec fp8 --quiet -o fp8-1.h5 >/dev/null
kvcodec encode data/part-2.h5 --codec fp8 --quiet -o fp8-2.h5 >/dev/null
kvcodec encode data/kv.h5 --codec kivi --preset paper --bits 4 --key-group 16 --window 32 -o kivi-4.h5 >/dev/null
echo x >kept.h5
refused cat data/none.h5 data/kivi.h5 --quiet -o x.h5
refused cat data/kivi.h5 kivi-4.h5 --quiet -o x.h5
refused cat data/none.h5 data/kv.h5 -o x.h5
refused cat fp8-1.h5 fp8-2.h5 --replace --quiet -o x.h5
refused cat data/kv.h5 data/wide.h5 --replace --quiet -o x.h5
refused cat data/kv.h5 data/f32.h5 --replace --quiet -o x.h5
refused cat data/kv.h5 data/three-layers.h5 --replace --quiet -o x.h5
refused cat data/part-1.h5 data/part-2.h5 -o x.h5
refused cat data/dict.h5 -o x.h5
refused cat data/kv.h5 nowhere.h5 -o x.h5
refused cat -o x.h5
refused cat -T nowhere -o x.h5
refused cat data/kv.h5 -o kept.h5
refused cat data/kv.h5 data/kv.h5 --documents 6 -o x.h5
cp data/kv.h5 own.h5
refused cat own.h5 data/kv.h5 -o own.h5 --overwrite
refused rm own.h5 -o x.h5
refused rm own.h5 --documents a
refused rm own.h5 --documents a -o own.h5 --overwrite
refused rm own.h5 --documents a -o x.h5 --in-place
refused rm own.h5 --documents 'x*' --in-place
echo nobody >names
refused rm own.h5 --documents @names --in-place
refused ls own.h5 --documents @nowhere
echo @names >nested
refused ls own.h5 --documents @nested
refused ls data/dict.h5
refused ls
refused split own.h5 -o 'x-{}.h5'
refused split own.h5 --size 1 -o x.h5
refused split own.h5 --size 1 --parts 2 -o 'x-{}.h5'
refused split own.h5 --list train -o 'x-{}.h5'
refused split own.h5 --list a=0 --list a=1 -o 'x-{}.h5'
refused split own.h5 --list a=0 --list ./a=1 -o '{}.h5'
refused encode own.h5 --codec none --shard 0/2 -o x.h5
refused encode own.h5 --codec none --shard 3/2 -o x.h5
refused encode own.h5 --codec none --shard 2 -o x.h5
refused encode own.h5 --append data/none.h5 --shard 1/2 -o x.h5
cmp own.h5 data/kv.h5
ls x* 2>/dev/null || true
cat kept.h5
