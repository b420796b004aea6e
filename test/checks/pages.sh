#!/usr/bin/env bash
# Checks that the program's help, the manual pages and the README's tables agree.
# usage: pages.sh ROOT PROGRAM              exit 1 and a line per disagreement
#        pages.sh --self-test ROOT PROGRAM  shows that disagreements are found
#
# For each command that `kvcodec help` lists: there is man/kvcodec-COMMAND.1 of that name; its one-line description is that of the help;
# the long options in the help and in the page's lists (.It Fl -…) are the same, and so are the values that an option chooses from (A|B);
# a default that the help states as a number stands in the page's item too. kvcodec(1) names every command, and every page that is not a
# command's. For each codec that encode knows the same holds of man/kvcodec-CODEC.7 and of the section of the codec in encode's help. The
# page's table of presets has what --preset paper changes of the codec's options. The tables of kvcodec(1) and of the README list the codec,
# kvcodec-encode(1) names its page, FORMAT.md has its section, and the reader written from FORMAT.md its decoder.
# The README's figures of loss are those of data/experiments/tables, smollm2.md and judges.md.
set -euo pipefail

# "COMMAND<tab>SUMMARY" per line
commands() { "$1" help | sed -n 's/^  \([a-z][a-z-]*[a-z]\)   *\([a-z].*\)/\1\t\2/p'; }

# The part of a command's help that concerns no single codec.
command_help() { "$1" "$2" --help | awk '/^[^ ]/ { codec = /^Codec / } !codec'; }

# The part of encode's help about a codec. codec_help PROGRAM CODEC [OPTION OF ENCODE ...]
codec_help() { "$1" encode --help --codec "${@:2}" | awk '/^[^ ]/ { codec = /^Codec / } codec'; }

# The functions of this group read help from standard input.
# Long options at the head of an entry; --no-x counts as itself.
help_options() { grep -oE '^  (-[a-zA-Z], )?--[a-z][a-z0-9-]*' | grep -oE -- '--[a-z][a-z0-9-]*' | sort -u || true; }

# "OPTION VALUE" for each value of an option with choices: for --codec none|sparse "--codec none" and "--codec sparse"
help_choices() {
  awk '
    /^  (-[a-zA-Z], )?--[a-z]/ {
      at = $1 ~ /^--/ ? 1 : 2
      n = split($(at + 1), value, "|")
      for (i = 1; n > 1 && i <= n; i++) print $at, value[i]
    }' | sort -u
}

# "OPTION DEFAULT" for entries that end in "default NUMBER)"
help_defaults() {
  awk '
    function put() { if (match(text, /default +[0-9.e-]+\)$/)) { sub(/.* /, "", text); sub(/\)$/, "", text); print option, text } text = "" }
    /^  (-[a-zA-Z], )?--[a-z]/ { put(); option = $1 ~ /^--/ ? $1 : $2; text = $0; next }
    /^[^ ]/ { put() }
    text != "" { text = text " " $0 }
    END { put() }'
}

# Long options of a page's items.
page_options() { grep -E '^\.It .*Fl -' "$1" | grep -oE 'Fl -[a-z][a-z0-9-]*' | sed 's/^Fl -/--/' | sort -u || true; }

# Like help_choices, for a page's items: .It Fl -codec Cm none | sparse
page_choices() {
  awk '
    /^\.It .*Fl -/ {
      n = bars = 0
      for (i = 2; i <= NF + 1; i++) {
        if (i > NF || $i == "Fl") {
          for (j = 1; bars > 0 && j <= n; j++) print option, value[j]
          option = $(i + 1); sub(/^-/, "--", option); n = bars = 0; i++
        } else if ($i == "|") ++bars
        else if ($i != "Cm" && $i != "Ar") value[++n] = $i
      }
    }' "$1" | sort -u
}

# The text of an option's item in a page.
page_item() {
  awk -v option="$2" '
    /^\.It / { inside = 0; line = $0; while (match(line, /Fl -[a-z][a-z0-9-]*/)) {
      if ("--" substr(line, RSTART + 4, RLENGTH - 4) == option) inside = 1
      line = substr(line, RSTART + RLENGTH) } }
    /^\.El/ { inside = 0 }
    inside { print }' "$1"
}

# "OPTION DEFAULT" for each option of a codec; a flag's default is true or false. Arguments are those of codec_help.
codec_defaults() {
  codec_help "$@" | awk '
    function put() { gsub(/ +/, " ", text); sub(/ $/, "", text); if (option != "" && match(text, /default [^ ]+\)$/)) print option, substr(text, RSTART + 8, RLENGTH - 9); option = "" }
    /^  --/ {
      put()
      option = substr($1, 3)
      if (NF == 1 || $0 ~ /^  --[a-z-]+  /) { value = sub(/^no-/, "", option) ? "true" : "false"; print option, value; option = ""; next }
      text = $0; next
    }
    option != "" { text = text " " $0 }
    END { put() }' | sort
}

# "OPTION DEFAULT PAPER" of a page's table of presets
page_presets() {
  awk '/^\.Sh / { presets = $2 == "PRESETS" } presets && /^\.It / && $3 == "Ta" && $5 == "Ta" { d = $4; p = $6; sub(/^\\/, "", d); print $2, d, p }' "$1" | sort
}

# A line for each disagreement of help (standard input) and a page, in options, choices and defaults. compare ROOT PAGE
compare() {
  local page=$1/$2 help option value
  help=$(cat)
  for option in $(comm -23 <(help_options <<<"$help") <(page_options "$page")); do echo "$2: lacks $option"; done
  for option in $(comm -13 <(help_options <<<"$help") <(page_options "$page")); do echo "$2: has $option, which the help does not"; done
  comm -23 <(help_choices <<<"$help") <(page_choices "$page") | sed "s|^|$2: does not offer |"
  comm -13 <(help_choices <<<"$help") <(page_choices "$page") | sed "s|^\(.*\)|$2: offers \1, which the help does not|"
  while read -r option value; do
    grep -qE "(^|[^0-9.])${value//./\\.}([^0-9.]|\.?$|\. )" <(page_item "$page" "$option" | sed 's/,//g') ||
      echo "$2: does not say that $option is $value by default"
  done < <(help_defaults <<<"$help")
}

# The disagreements of a codec. check_codec ROOT PROGRAM CODEC
check_codec() {
  local root=$1 program=$2 codec=$3 page=man/kvcodec-$3.7 summary presets=
  grep -qx "\.It Xr kvcodec-$codec 7" "$root/man/kvcodec.1" || echo "man/kvcodec.1: does not list the codec $codec"
  grep -q "^| \`$codec\` |" <(sed -n '/^## Codecs/,/^## [^C]/p' "$root/README.md") || echo "README.md: the table of codecs has no row of $codec"
  grep -q "^\.Xr kvcodec-$codec 7" "$root/man/kvcodec-encode.1" || echo "man/kvcodec-encode.1: does not name kvcodec-$codec(7)"
  grep -qx "### \`$codec\`" "$root/formats/FORMAT.md" || echo "formats/FORMAT.md: has no section \`$codec\`"
  [[ $codec == exec ]] || grep -q "\"$codec\": decode_" "$root/test/formats/independent_reader.py" ||
    echo "test/formats/independent_reader.py: DECODERS lacks $codec"  # only its program decodes codes of exec
  if [[ ! -f $root/$page ]]; then echo "$codec: there is no $page"; return; fi
  grep -qx "\.Nm kvcodec-$codec" "$root/$page" || echo "$page: does not name kvcodec-$codec"
  summary=$(codec_help "$program" "$codec" | sed '/^  -/,$d' | tr -s '\n ' '  ' | sed -n "s/^Codec $codec: \(.*\) $/\1/p")
  [[ -z $summary ]] || grep -qxF ".Nd $summary" "$root/$page" || echo "$page: its description is not '$summary'"
  codec_help "$program" "$codec" | compare "$root" "$page"
  if "$program" encode --help --codec "$codec" --preset paper >/dev/null 2>&1; then
    presets=$(join <(codec_defaults "$program" "$codec") <(codec_defaults "$program" "$codec" --preset paper) | awk '$2 != $3')
  fi
  [[ $presets == "$(page_presets "$root/$page")" ]] || echo "$page: the table of presets says other things than the program does"
}

# "LABEL | BITS | LOSS | DIVERGENCE" of the rows of a page's tables that begin with a label and a number.
loss_rows() { grep -E '^\| `[^`]+` \| [0-9.]+ [|(]' "$1" | cut -d '|' -f 2-5 | sort; }

# All disagreements, a line each. differences ROOT PROGRAM
differences() {
  local root=$1 program=$2 command summary page name section codecs codec
  while IFS=$'\t' read -r command summary; do
    page=man/kvcodec-$command.1
    if [[ ! -f $root/$page ]]; then echo "$command: there is no $page"; continue; fi
    grep -qx "\.Nm kvcodec-$command" "$root/$page" || echo "$page: does not name kvcodec-$command"
    grep -qxF ".Nd $summary" "$root/$page" || echo "$page: its description is not '$summary'"
    grep -qE "^\.(It )?Xr kvcodec-$command 1" "$root/man/kvcodec.1" || echo "man/kvcodec.1: does not list kvcodec-$command"
    command_help "$program" "$command" | compare "$root" "$page"
  done < <(commands "$program")
  codecs=$("$program" encode --help | tr -s ' \n' '  ' | sed -n 's/.* how to compress: \([a-z0-9, ]*\);.*/\1/p' | tr -d ,)
  [[ -n $codecs ]] || echo "the help of encode lists no codec"
  for codec in $codecs; do check_codec "$root" "$program" "$codec"; done
  [[ -n $(commands "$program") ]] || echo "kvcodec help lists no command"
  [[ -n $(loss_rows "$root/README.md") ]] || echo "README.md: has no table of loss"
  comm -23 <(loss_rows "$root/README.md") <(cat "$root"/data/experiments/tables/{smollm2,judges}.md | loss_rows /dev/stdin) | sed 's|^|README.md: not in tables/smollm2.md or judges.md: |'
  for page in "$root"/man/kvcodec-*.1; do
    command=$(basename "$page" .1)
    grep -q "^${command#kvcodec-}$(printf '\t')" <(commands "$program") || echo "man/$command.1: there is no such command"
  done
  for page in "$root"/man/kvcodec-*.[157]; do
    name=$(basename "$page") section=${page##*.}
    grep -qE "^\.Xr ${name%.*} $section( ,)?$" <(sed -n '/^\.Sh SEE ALSO/,$p' "$root/man/kvcodec.1") ||
      echo "man/kvcodec.1: SEE ALSO does not name ${name%.*}($section)"
  done
}

check() {
  local found
  found=$(differences "$@")
  [[ -z $found ]] || { echo "$found"; return 1; }
}

self_test() {
  local root=$1 program=$2 dir expected found
  dir=$(mktemp -d)
  trap "rm -rf '$dir'" EXIT
  mkdir "$dir/man"
  cp "$root"/man/* "$dir/man"
  cp "$root/README.md" "$dir"
  mkdir -p "$dir/data/experiments"
  cp -r "$root/data/experiments/tables" "$dir/data/experiments"
  mkdir -p "$dir/formats" "$dir/test/formats"
  sed '/^### `kivi`$/d' "$root/formats/FORMAT.md" >"$dir/formats/FORMAT.md"          # a codec without a section, and one without a decoder
  sed 's/"fp8": decode_fp8, //' "$root/test/formats/independent_reader.py" >"$dir/test/formats/independent_reader.py"
  sed -i '/^\.Xr kvcodec-none 7$/d' "$dir/man/kvcodec-encode.1"
  sed -i '/^\.It Fl -bits/d' "$dir/man/kvcodec-kivi.7"                        # an option that the page lacks, with its default
  sed -i 's/^\.It Fl -unpack/.It Fl -unwrap/' "$dir/man/kvcodec-pack-indices.1"  # lacks one, has another
  sed -i 's/^\.Nd .*/.Nd something else/' "$dir/man/kvcodec-info.1"
  sed -i 's/^\.Nd .*/.Nd something else/' "$dir/man/kvcodec-lossless.7"
  sed -i '/^\.Xr kvcodec-tutorial 7$/d' "$dir/man/kvcodec.1"
  cp "$dir/man/kvcodec-info.1" "$dir/man/kvcodec-frob.1"                      # a page without a command, that SEE ALSO lacks
  rm "$dir/man/kvcodec-eval-recon.1"                                            # a command without a page
  rm "$dir/man/kvcodec-rvq.7"                                                   # a codec without a page
  sed -i 's/^\(\.It Fl -center Cm .*\)median/\1middle/' "$dir/man/kvcodec-selfindex.7"   # offers another value, and not one that there is
  sed -i 's/^\.It Fl -rotate Cm .*/.It Fl -rotate Ar WHAT/' "$dir/man/kvcodec-q4.7"  # offers none of two
  sed -i '/^\.It Xr kvcodec-fp8 7$/d' "$dir/man/kvcodec.1"                      # a codec that the tables lack
  sed -i '/^| `fp8` | 8-bit/d' "$dir/README.md"
  sed -i 's/^\(| `q4-3` .*\)0.00654/\10.00655/' "$dir/README.md"         # another figure of loss
  sed -i '/^\.It Fl -epochs/,/^\.It Fl -[^e]/s/3/7/g' "$dir/man/kvcodec-train-dict.1"  # other defaults
  sed -i '/^\.It Fl -block/,/^\.It Fl -[^b]/s/256/512/g' "$dir/man/kvcodec-transform.7"
  sed -i 's/^\(\.It window Ta .* Ta\) 128 /\1 129 /' "$dir/man/kvcodec-kivi.7"    # another number in a table of presets
  expected=24
  found=$( (check "$dir" "$program" || true) | wc -l)
  if ((found != expected)); then
    echo "self-test: found $found of $expected disagreements:"
    check "$dir" "$program" || true
    exit 1
  fi
  echo "self-test: all $expected disagreements found"
}

if [[ ${1:-} == --self-test ]]; then
  self_test "$2" "$3"
else
  check "${1:?usage: pages.sh ROOT PROGRAM}" "${2:?usage: pages.sh ROOT PROGRAM}"
fi
