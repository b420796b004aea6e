# The sources of documents, their names, and their stored parts.
set -e
model=src/data/demo-model
mkdir -p texts/sub texts/.hidden
echo "Keys and values." >texts/b.txt
echo "Twice as many keys and twice as many values." >texts/sub/a.txt
echo "not me" >texts/.hidden/c.txt
echo "not me" >texts/.d.txt
: >texts/empty.txt
kvcodec dump-kv --model "$model" --text texts -o folder.h5 | sed 's/  *[0-9.]* s .*//'
kvcodec info folder.h5 | grep -vE '^(source|file |  kvcodec)'
kvcodec dump-kv --model "$model" --text - --quiet -o stdin.h5 <texts/b.txt >/dev/null
kvcodec info stdin.h5 --json | tr -d ' \n' | sed 's/.*"documents"/"documents"/'
echo
kvcodec dump-kv --model "$model" --text texts --chunk 5 --documents texts/sub/a.txt --queries none --layers 1-2 --dtype f32 --quiet -o chunks.h5 >/dev/null
kvcodec info chunks.h5 | grep -E '^(layers|elements|tokens|queries|[0-9])'
# ids instead of text give the same, and so do those of a kv file
printf '5 6 7 8\n1 2 3\n' >ids.txt
kvcodec dump-kv --model "$model" --tokens ids.txt --dtype f32 -o ids.h5 >/dev/null
kvcodec dump-kv --model "$model" --tokens ids.h5 --dtype f32 -o again.h5 >/dev/null
kvcodec eval-recon ids.h5 again.h5 | grep ^all
kvcodec info again.h5 | grep -E '^[0-9]'
# before and after the rotary embedding: values agree, keys do not
kvcodec dump-kv --model "$model" --tokens ids.txt --dtype f32 --pre-rope -o pre.h5 >/dev/null
kvcodec info pre.h5 | grep ^keys
kvcodec eval-recon ids.h5 pre.h5
