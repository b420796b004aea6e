# Text and token ids that a model cannot run.
. src/test/cli/refused.sh
model=src/data/demo-model
run() {
  refused dump-kv --model "$model" "$@" -o x.h5
}
run
run --text missing.txt
printf 'caf\303\251 \351\0' >binary.txt && run --text src/LICENSE --text binary.txt --chunk 512
run --tokens data
run --text src/LICENSE
run --text src/LICENSE --chunk 2000
run --text src/LICENSE --chunk 0
run --text src/LICENSE --tokens ids.txt
mkdir empty && run --text empty
: >nothing.txt && run --quiet --text nothing.txt
echo "1 2 three" >ids.txt && run --tokens ids.txt
printf '1 2 \033[31mthree' >ids.txt && run --tokens ids.txt
printf '\223NUMPY\1\0v\0{}\n1' >ids.npy && run --tokens ids.npy
run --text ids.npy
run --text data/part-2.h5
printf '1 2\0' >ids.bin && run --tokens ids.bin
printf '1 2\n\n5 4096\n' >ids.txt && run --tokens ids.txt
echo "1 2 3" >ids.txt && run --tokens ids.txt --queries first:3
run --tokens ids.txt --queries last:0
run --tokens ids.txt --layers 9
run --tokens ids.txt --dtype f64
run --tokens data/part-2.h5
printf 'caf\303\251 \351t\351' >latin1.txt
kvcodec dump-kv --model "$model" --text latin1.txt -o latin1.h5 2>&1 >/dev/null
kvcodec dump-kv --model "$model" --text latin1.txt --quiet --overwrite -o latin1.h5 2>&1 >/dev/null
refused dump-kv --text src/LICENSE -o x.h5
ls
