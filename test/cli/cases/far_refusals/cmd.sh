# Errors of a server, each reported in one sentence; names that are not valid URLs.
. src/test/cli/refused.sh
. src/test/cli/far_server.sh
far() { refused "$@" 2>&1 | plain; }
documents=
for i in $(seq 40); do documents="$documents --document d$i:0:200"; done
make_kv --layers 4 --heads 2 --dim 64 $documents -o served/kv.h5
echo "no file of HDF5" >served/text.txt
: >served/empty.h5

for how in busy denied whole changes replaced shrinks short wrong silent; do
  echo "$how:"
  far ls $url/$how/kv.h5
done
echo "hangs:"
export KVCODEC_TIMEOUT=1
: >log
far info $url/hangs/kv.h5 | sed 's/after [0-9]* milliseconds.*received/after .. with 0 bytes received/; s/time: .*(tried/time: .. (tried/'
unset KVCODEC_TIMEOUT
echo "not there, empty, of another kind, no server:"
far info $url/files/none.h5
far info $url/files/empty.h5
far info $url/files/text.txt
far encode $url/files/kv.h5 --codec q4 --append $url/files/kv.h5
far info http:///kv.h5
far info "http://127.0.0.1:1/kv.h5?secret=1" | sed 's/reached: .*/reached: ../'
far info "http://me:secret@127.0.0.1:$(cat port)/files/none.h5?secret=1"

echo "S3:"
far info s3://bucket
far info s3://bucket/none.h5
AWS_SECRET_ACCESS_KEY=other far info s3://bucket/none.h5
AWS_ACCESS_KEY_ID= far info s3://bucket/none.h5
AWS_ACCESS_KEY_ID= AWS_SECRET_ACCESS_KEY= far info s3://bucket/none.h5
AWS_REGION=elsewhere far info s3://bucket/none.h5
AWS_ENDPOINT_URL=minio far info s3://bucket/none.h5
