# For cases of files on servers: starts far_server.py over the folder "served", which ends with the case. $url is its address; the file
# "log" has its requests. $server_options go to the server. The user's environment for servers is ignored.
python=$(for p in python3 /usr/bin/python3; do $p -c "import http.server, hmac, ssl" 2>/dev/null && echo $p && break; done) || true
if [ -z "$python" ]; then
  echo "there is no Python"
  exit 77
fi
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY AWS_SESSION_TOKEN AWS_DEFAULT_REGION AWS_ENDPOINT_URL_S3 AWS_CA_BUNDLE \
  CURL_CA_BUNDLE SSL_CERT_FILE
export no_proxy=127.0.0.1 AWS_ACCESS_KEY_ID=key AWS_SECRET_ACCESS_KEY=secret AWS_REGION=eu-central-1
mkdir -p served
rm -f port
: >log
$python src/test/cli/far_server.py served log $server_options >port &
server=$!
trap 'kill $server' EXIT
for i in $(seq 200); do
  [ -s port ] && break
  sleep 0.05
done
url=http://127.0.0.1:$(cat port)
export AWS_ENDPOINT_URL=$url

# without the port
plain() { sed "s/127.0.0.1:$(cat port)/SERVER/g"; }
# how many requests of a kind the log has, and empties it
requests() {
  grep -c "^$1 " log || true
  : >log
}
