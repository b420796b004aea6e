# While another program reads a file, a part of what is added stays in its journal; a note says so, and the next command completes it.
if ! python3 -c pass 2>/dev/null; then
  echo "there is no Python"
  exit 77
fi
set -e
hold() { # FILE
  python3 src/test/cli/cases/append_held/hold.py "$1" &
  until [ -e held ]; do sleep 0.05; done
}
release() {
  rm held
  wait
}
kvcodec encode data/part-1.h5 --codec kivi -o codes.h5 >/dev/null
hold codes.h5
kvcodec encode data/part-2.h5 --append codes.h5 --continue --json | grep -o '"in_journal": true'
ls codes.h5*
kvcodec ls codes.h5
ls codes.h5*
release
kvcodec ls codes.h5
ls codes.h5*
kvcodec check codes.h5

for name in a b; do
  { echo "Text $name."; head -n 6 src/LICENSE; } >$name.txt
done
kvcodec dump-kv --model src/data/demo-model --text a.txt -o kv.h5 --quiet >/dev/null
hold kv.h5
kvcodec dump-kv --model src/data/demo-model --text b.txt --append kv.h5 --json --quiet | grep -o '"in_journal": true'
ls kv.h5*
release
kvcodec compact kv.h5 --quiet >/dev/null
ls kv.h5*
kvcodec ls kv.h5 | wc -l
