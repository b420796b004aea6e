#!/usr/bin/env bash
# Checks the sources against the layers of lib/README.md: which rooms may include which.
# usage: includes.sh ROOT          exit 1 and a line per violation
#        includes.sh --self-test   shows that violations are found
set -euo pipefail

# Rooms from the bottom up; a room includes itself and what stands on an earlier line. A file is in the room with the longest name that is
# the beginning of its path. cuda is apart: it includes all of lib, and only its engine.hpp is seen from outside.
levels=(
  "lib/core"
  "lib/linalg"
  "lib/model lib/tokenizer"
  "lib/kmeans lib/entropy lib/quant"
  "lib/sparse lib/rvq lib/kvcomp lib/selfindex lib/cluster lib/transform"
  "lib/attention lib/metrics"
  "lib/engine"
  "lib/codec"
  "lib/sparse/codec lib/rvq/codec lib/kvcomp/codec lib/selfindex/codec lib/transform/codec"
  "lib/pipeline"
  "formats/io"
  "formats/hdf5"
  "formats/cache"
  "formats/models"
  "formats/results formats/interop"
  "cli/frame"
  "cli/codecs cli/reporting"
  "cli/inputs"
  "cli/search"
  "cli/encode"
  "cli/commands"
  "cli/library"
  "cli/main.cpp"
)

declare -A level_of room_of
for i in "${!levels[@]}"; do
  for room in ${levels[i]}; do level_of[$room]=$i; done
done

# find_room PATH: sets `room`; empty for a path outside of all rooms.
find_room() {
  if [[ ! -v room_of[$1] ]]; then
    room=$1
    while [[ ! -v level_of[$room] && $room == */* ]]; do room=${room%/*}; done
    [[ -v level_of[$room] ]] || room=
    room_of[$1]=$room
  fi
  room=${room_of[$1]}
}

# The two checks of one include set `why`, or leave it empty. They start no processes, because there are thousands of includes.

# violates FROM-FILE INCLUDED-PATH
violates() {
  local from=$1 to=$2 from_part=${1%%/*} to_part=${2%%/*} room from_room to_room
  [[ $to == kvcodec/* ]] && return  # generated
  case $from_part in
    lib) [[ $to_part == lib ]] || why="lib includes only lib" ;;
    formats) [[ $to_part == lib || $to_part == formats ]] || why="formats includes only lib and formats" ;;
    cuda) [[ $to_part == lib || $to_part == cuda ]] || why="cuda includes only lib and cuda" ;;
    cli) [[ $to_part == lib || $to_part == formats || $to_part == cli || $to == cuda/engine.hpp ]] || why="cli does not include $to" ;;
    test)  # test/cuda and test/bench/cuda look inside, as users of what is installed do, and know all layers
      [[ $to_part != cuda || $to == cuda/engine.hpp || $from =~ ^test/(cuda|bench/cuda|install)/ ]] ||
        why="of cuda others see cuda/engine.hpp only"
      ;;
  esac
  [[ -z $why && $from_part != cuda && $from_part != test && $to_part != cuda ]] || return 0
  find_room "$from"; from_room=$room
  find_room "$to"; to_room=$room
  if [[ -z $from_room ]]; then why="$from is in no room (test/checks/includes.sh)"; return; fi
  if [[ -z $to_room ]]; then why="$to is in no room (test/checks/includes.sh)"; return; fi
  [[ $from_room == "$to_room" ]] || ((level_of[$to_room] < level_of[$from_room])) || why="$from_room may include only what stands below it"
}

# foreign FROM-FILE HEADER: headers of libraries that a layer must not use.
foreign() {
  local from_part=${1%%/*} header=$2
  case $from_part in
    lib) [[ $header =~ ^(hdf5|H5|CLI/|nlohmann|cuda|iostream|cstdio|stdio|fstream|filesystem) ]] && why="lib knows no file, terminal, JSON or device" ;;
    cuda) [[ $header =~ ^(hdf5|H5|CLI/|nlohmann) ]] && why="cuda knows no file and no command line" ;;
    formats) [[ $header =~ ^(CLI/|cuda) ]] && why="formats knows no command line and no device" ;;
    cli) [[ $header =~ ^(hdf5|H5) ]] && why="only formats meets HDF5" ;;
  esac
  return 0
}

check_tree() {
  local root=$1 bad=0 file line target why
  cd "$root"
  while IFS= read -r line; do
    file=${line%%:*} why=
    [[ ${line#*:} =~ include[[:space:]]*(.*) ]]
    target=${BASH_REMATCH[1]}
    case $target in  # anything else is a computed include
      \"*) target=${target#\"}; violates "$file" "${target%%\"*}" ;;
      \<*) target=${target#<}; foreign "$file" "${target%%>*}" ;;
    esac
    [[ -z $why ]] || { echo "$file: includes ${target%%[\">]*}: $why"; bad=1; }
  done < <(grep -rHE '^[[:space:]]*#[[:space:]]*include' --include='*.hpp' --include='*.cpp' --include='*.h' --include='*.cu' --include='*.cuh' lib formats cuda cli test)
  # lib prints nothing and never exits.
  while IFS= read -r line; do
    echo "${line%%:*}: lib prints nothing and never exits: ${line#*:}"
    bad=1
  done < <(grep -rnE '(std::c(out|err)|[^a-z_:]f?printf *\(|fmt::print|[^a-z_]exit *\()' --include='*.hpp' --include='*.cpp' lib)
  return $bad
}

self_test() {
  local expected found
  dir=$(mktemp -d)  # not local: the trap runs outside
  trap 'rm -rf "$dir"' EXIT
  mkdir -p "$dir"/{lib/{core,sparse/codec,codec,quant,new},formats/{io,cache},cuda/omp,cli/{frame,commands},test/{cuda,lib}}
  echo '#include "lib/codec/codec.hpp"' >"$dir/lib/core/up.cpp"        # upwards
  echo '#include "lib/pipeline/attend.hpp"' >"$dir/lib/codec/driver.cpp"  # codecs know nobody who drives them
  echo '#include "lib/rvq/rvq.hpp"' >"$dir/lib/sparse/sideways.cpp"    # same line of the list
  echo '#include "lib/sparse/codec/codec.hpp"' >"$dir/lib/sparse/up.cpp"  # from a room to a room inside it that stands above
  echo '#include "lib/core/error.hpp"' >"$dir/lib/new/unknown.cpp"     # a room that the list does not have
  echo '#include "formats/cache/kv_file.hpp"' >"$dir/lib/codec/file.cpp"  # lib knows no file
  echo '#include <hdf5.h>' >"$dir/lib/quant/hdf5.cpp"
  echo 'int f() { printf("x"); }' >"$dir/lib/quant/prints.cpp"
  echo '#include "formats/cache/kv_file.hpp"' | tee "$dir/formats/io/up.cpp" >"$dir/cuda/file.cpp"
  echo '#include "cuda/runtime/device.hpp"' >"$dir/formats/io/device.cpp"
  echo '#include "cli/commands/encode.hpp"' >"$dir/cli/frame/up.cpp"
  echo '#include <hdf5.h>' >"$dir/cli/frame/hdf5.cpp"
  echo '#include "cuda/omp/omp.hpp"' | tee "$dir/cli/commands/twin.cpp" >"$dir/test/lib/twin.cpp"  # not through the engine
  echo '#include "cuda/engine.hpp"' >"$dir/cli/commands/good.cpp"
  echo '#include "cuda/omp/omp.hpp"' | tee "$dir/cuda/omp/good.cpp" >"$dir/test/cuda/good.cpp"
  printf '#include "lib/core/error.hpp"\n#include "lib/sparse/omp.hpp"\n#include <vector>\n' >"$dir/lib/sparse/codec/good.cpp"
  expected=15
  found=$( (check_tree "$dir" || true) | wc -l)
  if ((found != expected)); then
    echo "self-test: found $found of $expected violations"
    (check_tree "$dir" || true)
    exit 1
  fi
  echo "self-test: all $expected violations found"
}

if [[ ${1:-} == --self-test ]]; then
  self_test
else
  check_tree "${1:?usage: includes.sh ROOT | --self-test}"
fi
