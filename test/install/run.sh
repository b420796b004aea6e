#!/usr/bin/env bash
# Installs a build into a fresh folder, and builds and runs a program there without access to the sources.
# usage: run.sh SOURCE BUILD WORK        77 where the program's libraries are not built
set -euo pipefail
source=$(realpath "$1") build=$(realpath "$2") work=$3
for library in kvcodec kvcodec_lib kvcodec_formats; do
  [[ -e $build/$library || -e $build/lib$library.a ]] || { echo "$library is not built"; exit 77; }
done
rm -rf "$work"
mkdir -p "$work"
work=$(realpath "$work")
cmake --install "$build" --prefix "$work/prefix" >"$work/install.log"
cd "$work/prefix"
bad=0
for file in bin/kvcodec include/kvcodec.h include/kvcodec/lib/codec/encoded.hpp include/kvcodec/kvcodec/version.hpp share/man/man1/kvcodec-encode.1 share/man/man7/kvcodec-tutorial.7 \
  share/doc/kvcodec/LICENSE share/bash-completion/completions/kvcodec share/zsh/site-functions/_kvcodec \
  share/fish/vendor_completions.d/kvcodec.fish share/kvcodec/python/kvfiles/__init__.py share/kvcodec/quickstart-chain.sh share/kvcodec/demo-model/config.json; do
  [[ -s $file ]] || { echo "$file is not installed"; bad=1; }
done
((bad == 0))
# The list of licences has each library that the build says it links, and each whose headers it says it read, as this machine has them.
if command -v dpkg-query >/dev/null && [[ -e $build/build.ninja ]]; then
  { sed -n '/^build kvcodec:/,/^$/s/ LINK_LIBRARIES = //p' "$build/build.ninja" | tr ' ' '\n'
    ninja -C "$build" -t deps | awk '/^[^ ]/ { ours = /^CMakeFiles\/kvcodec_(lib|formats|cli|no_mpi)\.dir\// } ours && /^ / { print $1 }'
  } | grep '^/usr/' | grep -v '^/usr/local/' | sort -u >"$work/used"
  { xargs dpkg-query -S <"$work/used" 2>/dev/null || true; } | sed 's/[:,].*//' | sort -u | grep -Ev '^(libc6|linux-libc|libcrypt|libstdc|gcc-|$)' |
    xargs dpkg-query -W -f '${source:Package} ${source:Version}\n' | sort -u >"$work/libraries"
  (($(wc -l <"$work/libraries") >= 3)) || { echo "the build says too little of its libraries:" && cat "$work/libraries" && exit 1; }
  while read -r library version; do
    sed -n "/^Files: third-party\/${library//+/\\+}\/\*$/,/^$/p" share/doc/kvcodec/copyright >"$work/paragraph"
    grep -qxF "Version: $version" "$work/paragraph" && grep -q '^License: .' "$work/paragraph" && ! grep -q ': unknown$' "$work/paragraph" ||
      { echo "share/doc/kvcodec/copyright lacks $library $version, its holders or its licence"; bad=1; }
  done <"$work/libraries"
  ((bad == 0))
fi
# The completion of bash is a script, and offers what the page of a command does.
bash -c '
  complete() { :; }
  source share/bash-completion/completions/kvcodec
  COMP_WORDS=(kvcodec encode --rope "") COMP_CWORD=3; _kvcodec; echo "${COMPREPLY[*]}"
  COMP_WORDS=(kvcodec enc) COMP_CWORD=1; _kvcodec; echo "${COMPREPLY[*]}"
  COMP_WORDS=(kvcodec encode --total) COMP_CWORD=2; _kvcodec; echo "${COMPREPLY[*]}"' >"$work/completed"
diff "$work/completed" - <<'TEXT'
keep undo
encode
--total-bits
TEXT
# From a copy: nothing may lead back to the sources.
cp "$source/test/install/CMakeLists.txt" "$source/test/install/"{buffer,twin}.cpp "$work/"
cmake -S "$work" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Release >"$work/configure.log"
cmake --build "$work/build" >"$work/build.log" || { cat "$work/build.log"; exit 1; }
! grep -qE -- "-(I|isystem) ?$source( |\$)" "$work/build/CMakeFiles/buffer.dir/flags.make" || { echo "the program is built with headers of the sources"; exit 1; }
if [[ -e $build/cuda/CMakeFiles/kvcodec_cuda.dir/engine.cpp.o ]]; then
  [[ -x $work/build/twin ]] || { echo "device parts were built, but kvcodec::cuda is not exported"; exit 1; }
fi
said=$("$work/build/buffer")
echo "$said"
[[ $said =~ ^[1-4]\.[0-9]+\ bits\ per\ value,\ [12][0-9]\.[0-9]\ dB$ ]]

# The library in C.
library=$(dirname "$(find "$PWD" -name libkvcodec.so)")
${CC:-cc} -std=c99 -Wall -Wextra -Werror -I include "$source/cli/library/example.c" -L "$library" -Wl,-rpath,"$library" -lkvcodec -lm -o "$work/example"
bin/kvcodec dump-kv --model share/kvcodec/demo-model --text share/doc/kvcodec/LICENSE --chunk 64 --max-tokens 64 --quiet -o "$work/kv.h5" >/dev/null
[[ $("$work/example" "$work/kv.h5") == *": 64 tokens, by no codec"$'\n'"layer 0: "* ]] || { echo "the example of the library does not read a cache"; exit 1; }
