# Reads that would never end: pipes without a writer, and less memory than libraries request again and again.
. src/test/cli/refused.sh
program=$(command -v kvcodec)
kvcodec() { timeout 60 "$program" "$@"; }
mkfifo pipe
cp -r src/data/demo-model m && chmod -R u+w m && rm m/model.safetensors && mkfifo m/model.safetensors
refused dump-kv --model src/data/demo-model --text pipe -o x.h5
refused dump-kv --model src/data/demo-model --tokens pipe -o x.h5
refused dump-kv --model m --text src/LICENSE -o x.h5
refused encode pipe --codec none -o x.h5
refused decode data/sparse.h5 --book pipe -o x.h5
refused info pipe
refused import pipe -o x.h5
refused import --from numpy pipe -o x.h5
kvcodec check pipe
echo "  status $?"
(
  ulimit -v 200000
  refused dump-kv --model src/data/demo-model --text src/LICENSE -o x.h5
)
[ ! -e x.h5 ] || echo "something was written"
