#!/usr/bin/env bash
# Holds the sources to the layers of lib/README.md: who may include whom.
# usage: includes.sh ROOT          exit 1 and a line per violation
#        includes.sh --self-test   shows that violations are found
set -euo pipefail

# Folders of lib from the bottom up; a folder includes itself and what stands on an earlier line.
levels=(
  "core"
  "linalg"
  "model"
  "kmeans entropy quant"
  "sparse rvq kvcomp signvq cluster transform"
  "attention metrics"
  "engine"
  "codec"
  "pipeline"
)

declare -A level_of
for i in "${!levels[@]}"; do
  for folder in ${levels[i]}; do level_of[$folder]=$i; done
done

# The two checks of one include set `why`, or leave it empty. No processes: there are thousands of includes.

# violates FROM-FILE INCLUDED-PATH
violates() {
  local from=$1 to=$2 from_part=${1%%/*} to_part=${2%%/*}
  [[ $to == kvcodec/version.hpp ]] && return  # generated; a constant
  case $from_part in
    lib)
      if [[ $to_part != lib ]]; then why="lib includes only lib"; return; fi
      local from_dir=${from#*/} to_dir=${to#*/}
      from_dir=${from_dir%%/*} to_dir=${to_dir%%/*}
      [[ $from_dir == "$to_dir" ]] && return
      local from_level=${level_of[$from_dir]:--1} to_level=${level_of[$to_dir]:--1}
      if ((from_level < 0)); then why="lib/$from_dir is not in the list of layers (test/checks/includes.sh)"; return; fi
      if ((to_level < 0)); then why="lib/$to_dir is not in the list of layers (test/checks/includes.sh)"; return; fi
      ((to_level < from_level)) || why="lib/$from_dir may include only what stands below it"
      ;;
    formats) [[ $to_part == lib || $to_part == formats ]] || why="formats includes only lib and formats" ;;
    cuda) [[ $to_part == lib || $to_part == cuda ]] || why="cuda includes only lib and cuda" ;;
    cli)
      if [[ $to_part == cuda ]]; then
        [[ $to == cuda/engine.hpp ]] || why="of cuda others see cuda/engine.hpp only"
        return
      fi
      [[ $to_part == lib || $to_part == formats || $to_part == cli ]] || why="cli does not include $to_part"
      ;;
    test)  # test/cuda and test/bench/cuda look inside, and know all layers
      [[ $to_part != cuda || $to == cuda/engine.hpp || $from == test/cuda/* || $from == test/bench/cuda/* ]] ||
        why="of cuda others see cuda/engine.hpp only"
      ;;
  esac
}

# foreign FROM-FILE HEADER: headers of libraries that a layer must not know.
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
  mkdir -p "$dir"/{lib/{core,sparse,codec,quant},formats,cuda/omp,cli,test/{cuda,unit}}
  echo '#include "lib/codec/codec.hpp"' >"$dir/lib/core/up.cpp"        # upwards
  echo '#include "lib/pipeline/attend.hpp"' >"$dir/lib/codec/driver.cpp"  # codecs know nobody who drives them
  echo '#include "lib/rvq/rvq.hpp"' >"$dir/lib/sparse/sideways.cpp"    # same line of the list
  echo '#include "formats/kv_file.hpp"' >"$dir/lib/codec/file.cpp"     # lib knows no file
  echo '#include <hdf5.h>' >"$dir/lib/quant/hdf5.cpp"
  echo 'int f() { printf("x"); }' >"$dir/lib/quant/prints.cpp"
  echo '#include "cuda/runtime/device.hpp"' >"$dir/formats/device.cpp"
  echo '#include "formats/kv_file.hpp"' >"$dir/cuda/file.cpp"
  echo '#include <hdf5.h>' >"$dir/cli/hdf5.cpp"
  echo '#include "cuda/omp/omp.hpp"' | tee "$dir/cli/twin.cpp" >"$dir/test/unit/twin.cpp"  # not through the engine
  echo '#include "cuda/engine.hpp"' >"$dir/cli/good.cpp"
  echo '#include "cuda/omp/omp.hpp"' | tee "$dir/cuda/omp/good.cpp" >"$dir/test/cuda/good.cpp"
  printf '#include "lib/core/error.hpp"\n#include <vector>\n' >"$dir/lib/sparse/good.cpp"
  expected=11
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
