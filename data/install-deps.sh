#!/bin/sh
# Installs what building and testing kvcodec needs on Debian 12 (and its relatives), and nothing that is there already.
# usage: sh data/install-deps.sh [build|package|test|ci|mpi]   package adds what packages for other machines need, test what tests use,
#                                                              ci what the checks of the sources use, mpi what -DKVCODEC_MPI=ON needs
set -eu

build="g++ cmake ninja-build pkg-config libopenblas-openmp-dev libhdf5-dev libcli11-dev libfmt-dev nlohmann-json3-dev
       libpcre2-dev libxxhash-dev zlib1g-dev libutf8proc-dev libdnnl-dev libcurl4-openssl-dev doctest-dev"
package="gfortran python3-wheel dpkg-dev file patchelf"
mpi="libopenmpi-dev openmpi-bin"
test="python3-wheel python3-venv python3-h5py openssl hdf5-tools mandoc make jq $mpi"
# By version: another one has other warnings, and lays sources out otherwise.
ci="clang-14 libomp-14-dev libclang-rt-14-dev llvm-14 clang-tidy-14 clang-format-14 git"

case "${1:-build}" in
  build) wanted=$build ;;
  package) wanted="$build $package" ;;
  test) wanted="$build $test" ;;
  ci) wanted="$build $test $ci" ;;
  mpi) wanted="$build $mpi" ;;
  *) echo "install-deps.sh: '$1': 'build', 'package', 'test', 'ci' or 'mpi' expected" >&2; exit 2 ;;
esac

command -v dpkg-query >/dev/null 2>&1 || {
  echo "install-deps.sh: this is not a Debian system; please install what corresponds to:" $wanted >&2
  exit 1
}

missing=
for package in $wanted; do
  status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null) || status=
  [ "$status" = "install ok installed" ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

sudo=
if [ "$(id -u)" != 0 ]; then
  sudo=sudo
  command -v sudo >/dev/null 2>&1 || {
    echo "install-deps.sh: no root and no sudo; as root, please run: apt-get install$missing" >&2
    exit 1
  }
fi
echo "installing:$missing"
# A package source of somebody else's that is out of order need not keep Debian's own from working.
$sudo apt-get update -qq || echo "install-deps.sh: apt-get update failed; going on with the package lists there are" >&2
# A fresh machine may still be running its own updates: wait for the lock rather than fail.
$sudo env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 $missing >/dev/null
