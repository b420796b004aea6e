#!/bin/sh
# Installs what building and testing kvcodec needs on Debian 12 (and its relatives), and nothing that is there already.
# usage: sh data/install-deps.sh [build|test]      test adds what only tests use
set -eu

build="g++ cmake ninja-build pkg-config libopenblas-openmp-dev libhdf5-dev libcli11-dev libfmt-dev nlohmann-json3-dev
       libpcre2-dev libxxhash-dev libhwy-dev libutf8proc-dev doctest-dev"
test="python3-h5py hdf5-tools mandoc"

wanted=$build
[ "${1:-build}" = test ] && wanted="$build $test"

command -v dpkg-query >/dev/null 2>&1 || {
  echo "install-deps.sh: this is no Debian system; please install what corresponds to:" $wanted >&2
  exit 1
}

missing=
for package in $wanted; do
  status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null) || status=
  [ "$status" = "install ok installed" ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
echo "installing:$missing"
$sudo apt-get update -qq
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
