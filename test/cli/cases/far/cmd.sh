# Commands read files on a server like local files, with three requests for one document of an archive; S3's signatures are valid;
# temporary errors of the server do not show.
. src/test/cli/far_server.sh
set -e
same() { # NAME COMMAND...: with the file here and there
  name=$1
  shift
  "$@" served/$name >here 2>&1
  "$@" $url/files/$name >there 2>&1
  sed "s|$url/files/|served/|g" there | cmp here - && echo "$1 $2: the same, $(requests GET) requests"
}
# An archive of 120 documents, 9 MB, as cat writes it from four shards, and the same cache whole.
documents=
for i in $(seq 30); do documents="$documents --document d$i:0:$((150 + i))"; done
make_kv --layers 4 --heads 2 --dim 64 $documents -o served/kv.h5
kvcodec encode served/kv.h5 --codec q4 --rope keep --center none -o served/codes.h5 >/dev/null
all=
for shard in d e f g; do
  for i in $(seq 30); do all="$all --document $shard$i:0:$((150 + i))"; done
done
make_kv --layers 4 --heads 2 --dim 64 $all -o whole.h5
kvcodec encode whole.h5 --codec q4 --rope keep --center none -o whole-codes.h5 >/dev/null
kvcodec split whole-codes.h5 --parts 4 -o 'shard-{}.h5' >/dev/null
kvcodec cat shard-*.h5 -o served/archive.h5 >/dev/null

echo "one document:"
kvcodec decode served/archive.h5 --documents 77 -o here.h5 >/dev/null
kvcodec decode $url/files/archive.h5 --documents 77 -o there.h5 --json | jq '.physical_reads, .physical_bytes_read < 500000'
awk '{ sum += $5 } END { print "by the log of the server:", NR, (sum < 500000) }' log
: >log
equal() { # KV KV
  kvcodec eval-recon $1 $2 --quiet | tail -1
}
equal here.h5 there.h5
for name in archive.h5 kv.h5 codes.h5; do
  for command in "info" "ls" "check"; do same $name kvcodec $command; done
done
kvcodec cat $url/files/archive.h5 --documents 7,77 -o two.h5 >/dev/null
kvcodec cat served/archive.h5 --documents 7,77 -o two-here.h5 >/dev/null
kvcodec ls two.h5 >there
kvcodec ls two-here.h5 | cmp - there && echo "cat: $(requests GET) requests"
kvcodec decode $url/files/codes.h5 -o all.h5 >/dev/null
kvcodec eval-recon $url/files/kv.h5 all.h5 --rate $url/files/codes.h5 --quiet | tail -1 >there
kvcodec eval-recon served/kv.h5 all.h5 --rate served/codes.h5 --quiet | tail -1 | cmp - there && echo "eval-recon: the same"
kvcodec info all.h5 --json | jq -r '.history[-1]' | plain
: >log

echo "on the way:"
for how in busy2 cut moved; do
  kvcodec decode $url/$how/archive.h5 --documents 77 -o there.h5 --overwrite >/dev/null
  equal here.h5 there.h5
done

echo "S3:"
mkdir -p "served/bucket/a folder"
cp served/archive.h5 "served/bucket/a folder/ü+1~.h5"
: >log
kvcodec decode "s3://bucket/a folder/ü+1~.h5" --documents 77 -o there.h5 --overwrite --json | jq .physical_reads
cut -d' ' -f1,2,4 log
equal here.h5 there.h5
AWS_ACCESS_KEY_ID= AWS_SECRET_ACCESS_KEY= kvcodec ls s3://public/archive.h5 | wc -l
