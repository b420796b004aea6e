#!/usr/bin/env bash
# Holds the program's help, the manual pages and the README's table of codecs together.
# usage: pages.sh ROOT PROGRAM              exit 1 and a line per disagreement
#        pages.sh --self-test ROOT PROGRAM  shows that disagreements are found
#
# For each command that `kvcodec help` lists: there is man/kvcodec-COMMAND.1 of that name; its one-line description is that of the help;
# the long options in the help and in the page's lists (.It Fl -…) are the same, and so are the values that an option chooses from (A|B);
# a default that the help states as a number stands in the page's item too. kvcodec(1) names every command, and every page that is not a
# command's. Every codec that encode knows stands in the tables of kvcodec(1) and of the README, and has its section in
# kvcodec-encode(1); what --preset paper changes of its options is the table of presets there.
set -euo pipefail

# "COMMAND<tab>SUMMARY" per line
commands() { "$1" help | sed -n 's/^  \([a-z][a-z-]*[a-z]\)   *\([a-z].*\)/\1\t\2/p'; }

# Long options at the head of an entry of the help; --no-x counts as itself.
help_options() { "$1" "$2" --help | grep -oE '^  (-[a-zA-Z], )?--[a-z][a-z0-9-]*' | grep -oE -- '--[a-z][a-z0-9-]*' | sort -u; }

# Long options of the page's items.
page_options() { grep -E '^\.It .*Fl -' "$1" | grep -oE 'Fl -[a-z][a-z0-9-]*' | sed 's/^Fl -/--/' | sort -u; }

# "OPTION VALUE" for each value that an option of the help chooses from: of --codec none|sparse "--codec none", "--codec sparse"
help_choices() {
  "$1" "$2" --help | awk '
    /^  (-[a-zA-Z], )?--[a-z]/ {
      at = $1 ~ /^--/ ? 1 : 2
      n = split($(at + 1), value, "|")
      for (i = 1; n > 1 && i <= n; i++) print $at, value[i]
    }' | sort -u
}

# The same of the page's items: .It Fl -codec Cm none | sparse
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

# "OPTION DEFAULT" for entries of the help that end in "default NUMBER)"
help_defaults() {
  "$1" "$2" --help | awk '
    /^  (-[a-zA-Z], )?--[a-z]/ { for (i = 1; i <= 2; i++) if ($i ~ /^--/) option = $i }
    /^[^ ]/ { option = "" }
    option != "" && match($0, /default [0-9.e-]+\)$/) { print option, substr($0, RSTART + 8, RLENGTH - 9); option = "" }'
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

# "OPTION DEFAULT" for each option of a codec, a flag's being true or false; after the codec: other options of encode
codec_defaults() {
  "$1" encode --help --codec "${@:2}" | awk '
    function put() { gsub(/ +/, " ", text); sub(/ $/, "", text); if (option != "" && match(text, /default [^ ]+\)$/)) print option, substr(text, RSTART + 8, RLENGTH - 9); option = "" }
    /^Codec / { inside = 1; next }
    /^[^ ]/ { put(); inside = 0 }
    inside && /^  --/ {
      put()
      option = substr($1, 3)
      if (NF == 1 || $0 ~ /^  --[a-z-]+  /) { value = sub(/^no-/, "", option) ? "true" : "false"; print option, value; option = ""; next }
      text = $0; next
    }
    option != "" { text = text " " $0 }
    END { put() }' | sort
}

# "OPTION DEFAULT PAPER" of the page's table of presets, for a codec
page_presets() {
  awk -v codec="$2" '/^\.It / && $2 == codec && $3 == "Ta" { d = $6; p = $8; sub(/^\\/, "", d); print $4, d, p }' "$1" | sort
}

check() {
  local root=$1 program=$2 bad=0 command summary page name section listed listed_presets found option value codec
  say() { echo "$1"; bad=1; }
  while IFS=$'\t' read -r command summary; do
    page=$root/man/kvcodec-$command.1
    if [[ ! -f $page ]]; then say "$command: there is no man/kvcodec-$command.1"; continue; fi
    grep -qx "\.Nm kvcodec-$command" "$page" || say "man/kvcodec-$command.1: does not name kvcodec-$command"
    grep -qxF ".Nd $summary" "$page" || say "man/kvcodec-$command.1: its description is not '$summary'"
    grep -qE "^\.(It )?Xr kvcodec-$command 1" "$root/man/kvcodec.1" || say "man/kvcodec.1: does not list kvcodec-$command"
    listed=$(help_options "$program" "$command")
    found=$(page_options "$page")
    for option in $(comm -23 <(echo "$listed") <(echo "$found")); do say "man/kvcodec-$command.1: lacks $option"; done
    for option in $(comm -13 <(echo "$listed") <(echo "$found")); do say "man/kvcodec-$command.1: has $option, which the help does not"; done
    listed=$(help_choices "$program" "$command")
    found=$(page_choices "$page")
    while read -r option value; do
      [[ -z $option ]] || say "man/kvcodec-$command.1: does not offer $option $value"
    done < <(comm -23 <(echo "$listed") <(echo "$found"))
    while read -r option value; do
      [[ -z $option ]] || say "man/kvcodec-$command.1: offers $option $value, which the help does not"
    done < <(comm -13 <(echo "$listed") <(echo "$found"))
    while read -r option value; do
      [[ -n $option ]] || continue
      grep -qE "(^|[^0-9.])${value//./\\.}([^0-9.]|\.?$|\. )" <(page_item "$page" "$option" | sed 's/,//g') ||
        say "man/kvcodec-$command.1: does not say that $option is $value by default"
    done < <(help_defaults "$program" "$command")
  done < <(commands "$program")
  listed=$("$program" encode --help | tr -s ' \n' '  ' | sed -n 's/.* how to compress: \([a-z0-9, ]*\);.*/\1/p' | tr -d ,)
  [[ -n $listed ]] || say "the help of encode lists no codec"
  for codec in $listed; do
    grep -qx "\.It Cm $codec" "$root/man/kvcodec.1" || say "man/kvcodec.1: does not list the codec $codec"
    grep -qx "\.Ss Codec $codec" "$root/man/kvcodec-encode.1" || say "man/kvcodec-encode.1: has no section 'Codec $codec'"
    if "$program" encode --help --codec "$codec" --preset paper >/dev/null 2>&1; then
      listed_presets=$(join <(codec_defaults "$program" "$codec") <(codec_defaults "$program" "$codec" --preset paper) | awk '$2 != $3')
    else
      listed_presets=
    fi
    [[ $listed_presets == "$(page_presets "$root/man/kvcodec-encode.1" "$codec")" ]] ||
      say "man/kvcodec-encode.1: the table of presets says other things of $codec than the program does"
    grep -q "^| \`$codec\` |" "$root/README.md" || say "README.md: the table of codecs has no row of $codec"
  done
  [[ -n $(commands "$program") ]] || say "kvcodec help lists no command"
  for page in "$root"/man/kvcodec-*.1; do
    command=$(basename "$page" .1)
    grep -q "^${command#kvcodec-}$(printf '\t')" <(commands "$program") || say "man/$command.1: there is no such command"
  done
  for page in "$root"/man/kvcodec-*.[157]; do
    name=$(basename "$page") section=${page##*.}
    grep -qE "^\.Xr ${name%.*} $section( ,)?$" <(sed -n '/^\.Sh SEE ALSO/,$p' "$root/man/kvcodec.1") ||
      say "man/kvcodec.1: SEE ALSO does not name ${name%.*}($section)"
  done
  return $bad
}

self_test() {
  local root=$1 program=$2 dir expected found
  dir=$(mktemp -d)
  trap "rm -rf '$dir'" EXIT
  mkdir "$dir/man"
  cp "$root"/man/* "$dir/man"
  cp "$root/README.md" "$dir"
  if ! check "$dir" "$program" >/dev/null; then echo "self-test: help, pages and README disagree to begin with"; exit 1; fi
  sed -i '/^\.It Fl -bits/d' "$dir/man/kvcodec-encode.1"                      # an option that the page lacks, and the defaults of three codecs
  sed -i 's/^\.It Fl -unpack/.It Fl -unwrap/' "$dir/man/kvcodec-pack-indices.1"  # lacks one, has another
  sed -i 's/^\.Nd .*/.Nd something else/' "$dir/man/kvcodec-info.1"
  sed -i '/^\.Xr kvcodec-tutorial 7$/d' "$dir/man/kvcodec.1"
  cp "$dir/man/kvcodec-info.1" "$dir/man/kvcodec-frob.1"                      # a page without a command, that SEE ALSO lacks
  rm "$dir/man/kvcodec-eval-recon.1"                                            # a command without a page
  sed -i 's/^\(\.It Fl -center Cm .*\)median/\1middle/' "$dir/man/kvcodec-encode.1"   # offers another value, and not one that there is
  sed -i 's/^\.It Fl -rotate Cm .*/.It Fl -rotate Ar WHAT/' "$dir/man/kvcodec-encode.1"  # offers none of two
  sed -i '/^\.It Cm fp8$/d' "$dir/man/kvcodec.1"                                # a codec that the tables and the sections lack
  sed -i 's/^\.Ss Codec fp8$/.Ss Codec of 8 bits/' "$dir/man/kvcodec-encode.1"
  sed -i '/^| `fp8` |/d' "$dir/README.md"
  sed -i '/^\.It Fl -epochs/,/^\.It Fl -[^e]/s/3/7/g' "$dir/man/kvcodec-train-dict.1"  # another default
  sed -i 's/^\(\.It kivi Ta window Ta .* Ta\) 128 /\1 129 /' "$dir/man/kvcodec-encode.1"           # another number in the table of presets
  expected=21
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
