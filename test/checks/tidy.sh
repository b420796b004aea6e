#!/usr/bin/env bash
# clang-tidy 14 over the product's sources that changed; of tests that changed, whether each compiles by itself.
# usage: tidy.sh BUILD [COMMIT]     exit 1 and its complaints; BUILD is a build folder configured with clang (preset clang)
#        tidy.sh --self-test        shows that a defect is found
#
# Changed files are those that differ from COMMIT: by default, where the branch left origin/main; on main itself, the newest commit that is
# a day older than the last one, or else the one before the last. For a changed header, a source that includes it is checked.
# TIDY_SECONDS (480) is the time limit; sources changed last come first, and those that were not reached, or not finished, are named.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"

base() {
  local found day
  if found=$(git merge-base HEAD origin/main 2>/dev/null) && [[ $found != $(git rev-parse HEAD) ]]; then
    echo "$found"
    return
  fi
  day=$(($(git log -1 --format=%ct) - 24 * 3600))
  found=$(git rev-list -1 --before="$day" HEAD)
  [[ -n $found ]] || found=$(git rev-parse --verify -q HEAD~1) || found=$(git hash-object -t tree /dev/null)
  echo "$found"
}

folders=(lib formats cli cuda test)

# Changed sources, the latest first; uncommitted changes count as the latest.
changed() {
  { git diff --name-only HEAD -- "${folders[@]}"
    git log --format= --name-only "$1..HEAD" -- "${folders[@]}" 2>/dev/null || git ls-files -- "${folders[@]}"
  } | awk 'NF && !seen[$0]++' | while IFS= read -r file; do [[ ! -f $file ]] || echo "$file"; done
}

# The sources to check for the files on standard input: for a header the source of its name, or else the first that includes it.
sources() {
  local file source
  while IFS= read -r file; do
    case $file in
      *.cpp) echo "$file" ;;
      *.hpp)
        source=${file%.hpp}.cpp
        # Possibly no source includes it: the search then fails, which is not an error.
        [[ -f $source ]] || source=$(grep -rlF --include='*.cpp' "#include \"$file\"" "${folders[@]}" | sort | sed -n 1p) || true
        [[ -z $source ]] || echo "$source"
        ;;
    esac
  done | awk '!seen[$0]++'
}

# run BUILD: checks the sources on standard input, as many at a time as there are processors, until the time is over.
run() {
  build=$(cd "$1" && pwd) end=$(($(date +%s) + ${TIDY_SECONDS:-480})) xargs -r -n 1 -P "$(nproc)" bash -c '
    if ! grep -qF "$PWD/$0\"" "$build/compile_commands.json"; then echo "tidy.sh: $0 is not compiled in $build"; exit 0; fi
    left=$((end - $(date +%s)))
    if ((left <= 0)); then echo "tidy.sh: no time for $0"; exit 0; fi
    echo "tidy.sh: $0"
    # Builds put tests together, where an include of one serves all; clang-tidy wants some check.
    case $0 in test/*) checks=-checks=-*,clang-diagnostic-*,misc-definitions-in-headers ;; esac
    timeout "$left" clang-tidy-14 -quiet -p "$build" ${checks:-} "$0" 2>/dev/null || status=$?
    if ((${status:-0} == 124)); then echo "tidy.sh: no time for all of $0"; exit 0; fi
    exit "${status:-0}"'
}

check() { changed "${2:-$(base)}" | sources | run "$1"; }

# Makes a small repository with an old defect, one in a header that the last commit changed, and an uncommitted one.
self_test() {
  local rules said
  rules=$PWD/.clang-tidy
  dir=$(mktemp -d)  # not local: the trap runs outside
  trap 'rm -rf "$dir"' EXIT
  cd "$dir"
  mkdir -p lib test build
  cp "$rules" .
  printf '#include "lib/changed.hpp"\nint includes() { return *defect(); }\n' >lib/includes.cpp
  printf 'inline int* defect() { static int i; return &i; }\n' >lib/changed.hpp
  printf 'inline int nobody() { return 1; }\n' >lib/alone.hpp  # no source includes it: that is no error
  printf 'int* old_defect() { return 0; }\n' >lib/old.cpp
  printf 'int* none() { return nullptr; }\n' >lib/edited.cpp
  printf 'int* not_of_a_test() { return nullptr; }\n' >test/of.cpp
  { local file separator='['
    for file in lib/includes lib/old lib/edited test/of; do
      printf '%s{"directory": "%s", "file": "%s/%s.cpp", "command": "clang++ -std=c++20 -I. -c %s.cpp"}' "$separator" "$dir" "$dir" $file $file
      separator=','
    done
    echo ']'
  } >build/compile_commands.json
  git init -q
  as() { GIT_COMMITTER_DATE="$1" git -c user.name=test -c user.email=test@localhost commit -qm "$2" --date "$1"; }
  git add lib test .clang-tidy
  as "2020-01-01T00:00:00Z" first
  printf 'inline int* defect() { return 0; }\n' >lib/changed.hpp
  printf 'inline int nobody() { return 2; }\n' >lib/alone.hpp
  git add lib
  as "2020-01-03T00:00:00Z" second
  printf 'int* none() { return 0; }\n' >lib/edited.cpp
  printf 'int* style() { return 0; }\nint missing() { return not_included(); }\n' >test/of.cpp
  if said=$(check build 2>&1); then echo "self-test: nothing was found"; echo "$said"; exit 1; fi
  [[ $said == *lib/changed.hpp:1:* ]] || { echo "self-test: the defect of a changed header was not found"; echo "$said"; exit 1; }
  [[ $said == *lib/edited.cpp:1:* ]] || { echo "self-test: the defect that is not committed was not found"; echo "$said"; exit 1; }
  [[ $said != *lib/old.cpp* ]] || { echo "self-test: what did not change was looked at"; echo "$said"; exit 1; }
  [[ $said == *test/of.cpp:2:* ]] || { echo "self-test: a test that does not compile by itself was not found"; echo "$said"; exit 1; }
  [[ $said != *test/of.cpp:1:* ]] || { echo "self-test: the style of a test was looked at"; echo "$said"; exit 1; }
  said=$(TIDY_SECONDS=0 check build 2>&1) || { echo "self-test: sources without time failed"; echo "$said"; exit 1; }
  [[ $said == *"no time for lib/edited.cpp"* ]] || { echo "self-test: sources without time are not named"; echo "$said"; exit 1; }
  mkdir slow
  printf '#!/bin/sh\nexec sleep 60\n' >slow/clang-tidy-14
  chmod +x slow/clang-tidy-14
  said=$(PATH=$dir/slow:$PATH TIDY_SECONDS=5 check build 2>&1) || { echo "self-test: a source that takes long failed"; echo "$said"; exit 1; }
  [[ $said == *"no time for all of lib/edited.cpp"* ]] || { echo "self-test: a source that takes long is not stopped"; echo "$said"; exit 1; }
  echo "self-test: defects in what changed were found"
}

case ${1:?usage: tidy.sh BUILD [COMMIT] | --self-test} in
  --self-test) self_test ;;
  *) check "$@" ;;
esac
