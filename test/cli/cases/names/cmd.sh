# Names of documents with commas, and of files that look like options.
make_kv --layers 1 --heads 2 --dim 16 --document a:0:5 --document a,b.txt:0:6 --document b.txt:0:7 --document 1:0:8 -o kv.h5
kvcodec encode kv.h5 --codec none -o codes.h5 >/dev/null
chosen() { # chosen LIST: how many tokens they have
  kvcodec decode codes.h5 --documents "$1" -o part.h5 --overwrite --json | grep '"tokens"'
}
chosen a,b.txt
chosen 'a\,b.txt'
chosen 'a\,b.txt,b.txt'
chosen b.txt,a
chosen 1
chosen 1-2
. src/test/cli/refused.sh
refused decode codes.h5 --documents 'a\,a' -o x.h5
kvcodec decode codes.h5 -o ./--overwrite >/dev/null
kvcodec info -- ./--overwrite | head -n 1 | cut -d , -f 1
cd data && kvcodec info -- kv.h5 | head -n 1 | cut -d , -f 1 && cd ..
ls
