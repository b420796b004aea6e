# A server is trusted only with a valid certificate; the environment gives the trusted certificates.
. src/test/cli/refused.sh
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 -keyout key -out certificate 2>openssl.err || {
  echo "there is no openssl that makes certificates"
  exit 77
}
server_options="--tls certificate key"
. src/test/cli/far_server.sh
url=https://127.0.0.1:$(cat port)
make_kv --layers 1 --heads 1 --dim 16 --document a:0:100 -o served/kv.h5
far() { refused "$@" 2>&1 | plain | sed 's/server: .*/server: ../'; }
far info $url/files/kv.h5
far encode served/kv.h5 --codec none -o none.h5 --to $url/files/none.h5
ls served
CURL_CA_BUNDLE=certificate kvcodec info $url/files/kv.h5 | grep ^tokens
AWS_CA_BUNDLE=certificate AWS_ENDPOINT_URL=$url kvcodec info s3://public/kv.h5 | grep ^tokens
CURL_CA_BUNDLE=none far info $url/files/kv.h5
