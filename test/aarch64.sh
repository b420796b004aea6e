#!/bin/sh
# Builds lib and its unit tests for aarch64, where kernels are scalar, and runs them under qemu; ends with their
# number. On Debian 12, x86-64.
# usage: sh test/aarch64.sh [FOLDER]      FOLDER (build-aarch64 if not given) keeps what is downloaded and built
#
# Installs g++-aarch64-linux-gnu and qemu-user, if they are missing. The arm64 libraries (OpenBLAS, fmt, PCRE2,
# xxHash, utf8proc, and what they need) and doctest are only unpacked into FOLDER: this machine's own packages
# know nothing of them. With two cores a first run takes about 25 minutes.
set -eu
cd "$(dirname "$0")/.."
mkdir -p "${1:-build-aarch64}"
folder=$(cd "${1:-build-aarch64}" && pwd)
root=$folder/root
cross=aarch64-linux-gnu

if ! command -v $cross-g++ >/dev/null || ! command -v qemu-aarch64 >/dev/null; then
  echo "installing: g++-$cross qemu-user"
  sudo=
  [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 g++-$cross qemu-user >/dev/null
fi

# A separate apt that believes that the compiler's libraries are installed: they come with the cross compiler.
if [ ! -e "$root/complete" ]; then
  wanted="libopenblas-openmp-dev libfmt-dev libpcre2-dev libxxhash-dev libutf8proc-dev doctest-dev"
  echo "unpacking into $root: $wanted"
  apt=$folder/apt
  rm -rf "$root" "$apt"
  mkdir -p "$root" "$apt/state/lists/partial" "$apt/cache/archives/partial"
  for package in libc6 libc-dev libgcc-s1 libgomp1 libstdc++6; do
    printf 'Package: %s\nStatus: install ok installed\nArchitecture: arm64\nVersion: 999\nMaintainer: none\nDescription: of the cross compiler\n\n' $package
  done >"$apt/status"
  own_apt() {
    apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$apt/state" \
      -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" -o APT::Install-Recommends=false "$@"
  }
  own_apt update
  own_apt -y --download-only install $wanted >/dev/null
  for package in "$apt"/cache/archives/*.deb; do dpkg -x "$package" "$root"; done
  touch "$root/complete"
fi

libraries=$root/usr/lib/$cross
cat >"$folder/toolchain.cmake" <<END
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER $cross-g++)
set(CMAKE_LIBRARY_ARCHITECTURE $cross)
set(CMAKE_FIND_ROOT_PATH $root)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/$cross)
# OpenBLAS finds its dependencies through the program's path.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,--disable-new-dtags,-rpath,$libraries,-rpath,$libraries/openblas-openmp,-rpath-link,$libraries")
END
export PKG_CONFIG_SYSROOT_DIR="$root" PKG_CONFIG_LIBDIR="$libraries/pkgconfig:$root/usr/share/pkgconfig"
cmake -S . -B "$folder/build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$folder/toolchain.cmake" -DCMAKE_BUILD_TYPE=Release \
  -DKVCODEC_WERROR=ON -DKVCODEC_CUDA=OFF -DKVCODEC_HDF5=OFF >/dev/null
cmake --build "$folder/build" --target test_lib

# Shares of the test cases run side by side: a case that none of them ran counts as skipped.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
tests="qemu-aarch64 -L /usr/$cross $folder/build/test/test_lib"
total=$($tests --count --no-version | sed -n 's/.*: *\([0-9][0-9]*\)$/\1/p')
shares=$(nproc)
share=$(((total + shares - 1) / shares))
processes=
for i in $(seq "$shares"); do
  $tests --duration=true --first=$(((i - 1) * share + 1)) --last=$((i * share)) >"$folder/tests.$i.log" 2>&1 &
  processes="$processes $!"
done
status=0
for process in $processes; do wait "$process" || status=1; done
[ $status = 0 ] || grep -h -A20 'ERROR' "$folder"/tests.*.log || true
echo "tests that took more than a minute under qemu:"
grep -hE '^[0-9]{2,}\.[0-9]+ s: ' "$folder"/tests.*.log | awk '$1 > 60' | sort -rn || true
# doctest counts tests outside a share as passed: only those with a time were run.
cat "$folder"/tests.*.log | tr -d '|' | awk -v total="$total" '
  /^[0-9]+[.][0-9]+ s: / { ++ran }
  /^\[doctest\] test cases:/ { failed += $7 }
  END { printf "%d passed, %d failed, %d skipped\n", ran - failed, failed, total - ran }'
exit $status
