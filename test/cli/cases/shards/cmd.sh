# Shares of one cache, coded separately and joined, equal the result of one command: streams, tables that documents share, values.
set -e
make_kv --layers 2 --heads 2 --dim 32 --queries 2 --document a:0:300 --document b:0:20 --document none:0:0 --document c:0:150 --document d:0:90 \
  --document e:0:40 -o kv.h5
for codec in none kivi kvcomp q4 fp8 lossless selfindex; do
  kvcodec encode kv.h5 --codec "$codec" --quiet -o whole.h5 --overwrite >/dev/null
  for i in 1 2 3; do kvcodec encode kv.h5 --codec "$codec" --shard $i/3 --quiet -o shard-$i.h5 --overwrite >/dev/null; done
  kvcodec cat shard-1.h5 shard-2.h5 shard-3.h5 -o joined.h5 --overwrite >/dev/null
  for file in whole joined; do
    kvcodec decode $file.h5 -o $file-kv.h5 --overwrite >/dev/null
    kvcodec info $file.h5 --json | sed -n '/"streams"/,/"documents"/p' >$file.txt
  done
  cmp whole.txt joined.txt
  echo "$codec: $(kvcodec eval-recon whole-kv.h5 joined-kv.h5 --json | grep -o '"max_error": [0-9.e-]*' | sort -u)"
  kvcodec check joined.h5
done
for i in 1 2 3; do kvcodec ls shard-$i.h5; done

# more shares than documents: some are empty, and are joined all the same
for i in 1 2 3 4 5 6 7 8; do kvcodec encode kv.h5 --codec kvcomp --shard $i/8 --quiet -o many-$i.h5 >/dev/null; done
kvcodec cat many-?.h5 -o many.h5
kvcodec check many-*.h5 many.h5 | sort -u | grep -v good || echo all good

# repeated: an existing output stays, and an incomplete one or one of another command is only refused
kvcodec encode kv.h5 --codec none --shard 1/2 -o again.h5 --skip-existing >/dev/null
cp -p again.h5 before.h5
kvcodec encode kv.h5 --codec none --shard 1/2 -o again.h5 --skip-existing
kvcodec encode kv.h5 --codec none --shard 1/2 -o again.h5 --skip-existing --quiet --json | grep -v '"schema"\|version'
cmp again.h5 before.h5
# This also works for a very long command line, and with found options.
all=$(printf 'a,%.0s' $(seq 3000))b
for options in '--codec none' '--codec kvcomp --total-bits 8'; do
  kvcodec encode kv.h5 $options --documents "$all" --quiet -o long.h5 --skip-existing >/dev/null
  kvcodec encode kv.h5 $options --documents "$all" -o long.h5 --skip-existing
  rm long.h5
done
set +e # refusals fail, and say so themselves
. src/test/cli/refused.sh
refused encode kv.h5 --codec none --shard 2/2 -o again.h5 --skip-existing
touch kv.h5
refused encode kv.h5 --codec none --shard 1/2 -o again.h5 --skip-existing
touch again.h5
kvcodec encode kv.h5 --append again.h5 -o longer.h5 >/dev/null
sleep 0.02
touch again.h5
refused encode kv.h5 --append again.h5 -o longer.h5 --skip-existing
damage again.h5 flip-part 1 0
refused encode kv.h5 --codec none --shard 1/2 -o again.h5 --skip-existing
kvcodec encode kv.h5 --codec none --shard 1/2 -o again.h5 --skip-existing --overwrite >/dev/null
cmp again.h5 before.h5

# clusters are those of one run, whose random numbers follow from a document's number in it
kvcodec index kv.h5 --clusters 4 --sink 2 -o index.h5 >/dev/null
kvcodec index kv.h5 --clusters 4 --sink 2 --shard 2/2 -o index-2.h5 >/dev/null
kvcodec encode kv.h5 --codec none --quiet -o all.h5 >/dev/null
for index in index index-2; do
  kvcodec select all.h5 --queries kv.h5 --by clusters --index $index.h5 --documents b,c,d,e --budget 20 --dense-layers none --json --quiet |
    grep -E '"(recall|mass|output_error|tokens)"' >$index.txt
done
cmp index.txt index-2.txt && wc -l <index.txt
