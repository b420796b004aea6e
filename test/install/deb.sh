#!/usr/bin/env bash
# Checks the .deb of a build: their size, what lintian says, and that the program works, installed by itself where nothing else is.
# usage: deb.sh BUILD [ROOT]        as root; needs lintian and debootstrap. ROOT: a folder for a bare Debian 12, kept for the next time
set -euo pipefail
source=$(realpath "$(dirname "$0")/../..") build=$(realpath "$1") root=${2:-}
if [[ ! $root ]]; then
  root=$(mktemp -d)
  trap 'rm -rf "$root"' EXIT
fi
program=$(echo "$build"/dist/kvcodec_*.deb)
(($(stat -c %s "$program") < 15000000)) || { echo "$program has 15 MB or more"; exit 1; }
lintian --allow-root --tag-display-limit 0 --fail-on error "$build"/dist/*.deb

[[ -e $root/usr/bin/dpkg ]] || debootstrap --variant=minbase bookworm "$root" >"$build/debootstrap.log" || { cat "$build/debootstrap.log"; exit 1; }
rm -rf "$root/try"
mkdir "$root/try"
cp -r "$program" "$source/data/demo-model" "$source/data/text/moby-dick.txt" "$root/try/"
# A static program needs nothing; for any other, apt fetches what the package names.
chroot "$root" sh -eu -c '
  ! command -v c++ || { echo "this Debian is not bare"; exit 1; }
  dpkg -i /try/kvcodec_*.deb || { apt-get update -qq; apt-get install -f -y -qq --no-install-recommends; }
  cd /try
  kvcodec --help >help
  kvcodec dump-kv --model demo-model --text moby-dick.txt --chunk 512 --max-tokens 1024 --quiet -o kv.h5
  kvcodec encode kv.h5 --codec q4 --quiet -o codes.h5
  kvcodec decode codes.h5 --quiet -o restored.h5
  kvcodec eval-recon kv.h5 restored.h5 --rate codes.h5 | grep bits/value
  dpkg --purge kvcodec
  for left in /usr/bin/kvcodec /usr/share/doc/kvcodec; do
    [ ! -e $left ] || { echo "dpkg leaves $left behind"; exit 1; }
  done'
rm -r "$root/try"
