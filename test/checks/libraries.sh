#!/usr/bin/env bash
# Checks that a program loads no library from the current directory, and is built with the compiler's and linker's protections.
# usage: libraries.sh PROGRAM                 exit 1 and a line per fault
#        libraries.sh --installed BUILD       the same for the program that BUILD installs
#        libraries.sh --self-test PROGRAM     shows that faults are found
# KVCODEC_OPTIMIZED=0 in the environment: the program was built without optimizer, so it cannot check buffers for the C library.
set -euo pipefail

# Elements of the search path inside the program, one per line; an empty one is the current directory.
search_path() { readelf -d "$1" | sed -n 's/.*(R\(UN\)\?PATH).*\[\(.*\)\]/\2/p' | tr ':' '\n'; }

check_path() { # of standard input
  local element fault=0
  while IFS= read -r element; do
    [[ $element == /* || $element == '$ORIGIN'* ]] && continue
    echo "the program looks for libraries in '$element', which depends on the current directory"
    fault=1
  done
  return $fault
}

# Runs the program with every library that it may load replaced by a file that no loader accepts.
check_run() {
  local program=$1 place name status=0
  place=$(mktemp -d)
  for name in $(readelf -d "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p') libcuda.so.1 libcublas.so.12 libcublas.so.13; do
    echo "no library" >"$place/$name"
  done
  (cd "$place" && env -u LD_LIBRARY_PATH "$program" --version >/dev/null) || status=1
  rm -rf "$place"
  ((status == 0)) || echo "$program takes libraries from the current directory"
  return $status
}

check_hardened() {
  local fault=0 symbols
  # Whole answers, not `readelf | grep -q`: grep would exit at the first match, and the pipe would fail with readelf.
  if [[ $(readelf -d "$1") != *BIND_NOW* || $(readelf -lW "$1") != *GNU_RELRO* || $(readelf -h "$1") != *"DYN ("* ]]; then
    echo "$1 is not position-independent with all relocations read-only"
    fault=1
  fi
  symbols=$(readelf -W --dyn-syms "$1")
  [[ $symbols != *__asan_* ]] || return $fault  # a sanitizer takes the place of these checks
  if [[ $symbols != *__stack_chk_fail* ]]; then
    echo "$1 does not check its stack"
    fault=1
  fi
  if [[ ${KVCODEC_OPTIMIZED:-1} == 1 && $symbols != *_chk@* ]]; then
    echo "$1 does not check the buffers that it gives to the C library"
    fault=1
  fi
  return $fault
}

check() {
  local fault=0
  search_path "$1" | check_path || fault=1
  check_run "$1" || fault=1
  check_hardened "$1" || fault=1
  return $fault
}

command -v readelf >/dev/null || { echo "skipped: there is no readelf" && exit 77; }
case $1 in
  --self-test)
    if printf '/usr/lib\n\n' | check_path >/dev/null; then echo "an empty element is not found" && exit 1; fi
    if printf 'lib\n' | check_path >/dev/null; then echo "a relative element is not found" && exit 1; fi
    printf '/usr/lib\n' | check_path
    bare=$(mktemp)
    trap 'rm -f "$bare"' EXIT
    echo 'int main(void) { return 0; }' | "${CC:-cc}" -x c -fno-stack-protector -no-pie -Wl,-z,norelro - -o "$bare"
    found=$(KVCODEC_OPTIMIZED=1 check_hardened "$bare") && echo "a program without protection is not found" && exit 1
    (($(wc -l <<<"$found") == 3)) || { echo "of what a program lacks there was found: $found" && exit 1; }
    ;;
  --installed)
    prefix=$(mktemp -d)
    trap 'rm -rf "$prefix"' EXIT
    cmake --install "$2" --prefix "$prefix" >"$prefix/log" || { cat "$prefix/log" && exit 1; }
    check "$prefix/bin/kvcodec"
    ;;
  *) check "$1" ;;
esac
