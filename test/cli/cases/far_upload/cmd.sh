# --to: the complete product is stored locally and on the server; an existing file is replaced only with --overwrite; a failed upload is
# repeated with --skip-existing; refusals.
. src/test/cli/refused.sh
. src/test/cli/far_server.sh
far() { refused "$@" 2>&1 | plain; }
make="make_kv --layers 2 --heads 2 --dim 16 --document a:0:100 --document b:0:50"
$make -o kv.h5
encode="encode kv.h5 --codec fp8 --rope keep"

kvcodec $encode -o codes.h5 --to $url/files/new/codes.h5 >/dev/null
cmp codes.h5 served/new/codes.h5 && echo sent
kvcodec info $url/files/new/codes.h5 --json | jq -r '.history[-1]'
echo "there already:"
far $encode -o again.h5 --to $url/files/new/codes.h5
far $encode -o again.h5 --to $url/files/new/codes.h5
kvcodec $encode -o again.h5 --overwrite --to $url/files/new/codes.h5 >/dev/null && echo replaced
echo "refused, and then sent:"
far $encode -o late.h5 --to $url/denied/late.h5
kvcodec $encode -o late.h5 --to $url/busy2/late.h5 --skip-existing
cmp late.h5 served/late.h5 && echo sent
far $encode -o tell.h5 --to $url/no-if/tell.h5
echo "S3:"
kvcodec cat codes.h5 -o joined.h5 --to s3://bucket/joined.h5 >/dev/null
cmp joined.h5 served/bucket/joined.h5 && echo sent
AWS_SESSION_TOKEN=other far cat codes.h5 -o other.h5 --to s3://bucket/other.h5
AWS_SECRET_ACCESS_KEY=other far cat codes.h5 -o third.h5 --to s3://bucket/third.h5
kvcodec split codes.h5 --size 1 -o 'part-{}.h5' --to 's3://bucket/part-{}.h5' >/dev/null
kvcodec cat s3://bucket/part-1.h5 s3://bucket/part-2.h5 -o both.h5 >/dev/null
kvcodec ls both.h5
echo "nonsense:"
far $encode -o $url/files/x.h5
far $encode -o "s3://bucket/x.h5"
far $encode -o - --to $url/files/x.h5
far $encode -o x.h5 --to served/x.h5
far split codes.h5 --size 1 -o 'part-{}.h5' --to $url/files/part.h5
far select codes.h5 --queries kv.h5 --to $url/files/part.h5
ls served served/bucket served/new
