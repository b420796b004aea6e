# Holds blocks that a page shows against what commands print: usage awk -v page=README.md -v tolerance=0.05 -f figures.awk SHOWN PRINTED
#
# SHOWN: blocks of lines, an empty line between them. Each must stand in PRINTED, line by line: words are the same; numbers differ by no
# more than the tolerance, a fraction of the larger one, and one unit of the last digit shown. Runs of spaces and of dashes count as one:
# the width of a column depends on its figures. Exit 1 and a line for each block that stands nowhere.

function squeezed(line) {
  gsub(/-+/, "-", line)
  gsub(/ +/, " ", line)
  sub(/^ /, "", line)
  sub(/ $/, "", line)
  return line
}
function is_number(word) { return word ~ /^-?[0-9]+(\.[0-9]+)?$/ }
function unit(word) { return index(word, ".") ? 10 ^ -(length(word) - index(word, ".")) : 1 }
function size(number) { return number < 0 ? -number : number }
function words_agree(shown, printed) {
  gsub(/,/, "", shown)
  gsub(/,/, "", printed)
  if (!is_number(shown) || !is_number(printed)) return shown == printed
  larger = size(shown) > size(printed) ? size(shown) : size(printed)
  return size(shown - printed) <= tolerance * larger + unit(shown) * 1.000001
}
function lines_agree(shown, printed, i, n, own, other) {
  n = split(shown, own, " ")
  if (split(printed, other, " ") != n) return 0
  for (i = 1; i <= n; i++) if (!words_agree(own[i], other[i])) return 0
  return 1
}
# Looks for the block; keeps the place where most of its lines agree.
function look_for(block, lines, start, i, best, where) {
  best = 0
  for (start = 1; start <= printed_lines; start++) {
    for (i = 1; i <= lines && lines_agree(block[i], printed[start + i - 1]); i++) ;
    if (i > lines) return
    if (i - 1 > best) { best = i - 1; where = start + best }
  }
  if (best == 0) print page " shows a line that no command prints: " block[1]
  else print page " shows '" block[best + 1] "'; printed is '" printed[where] "'"
  bad = 1
}

FILENAME == ARGV[1] { shown[++shown_lines] = squeezed($0); next }
{ printed[++printed_lines] = squeezed($0) }
END {
  if (shown_lines == 0) { print page " shows nothing"; exit 1 }
  for (i = 1; i <= shown_lines + 1; i++)
    if (i <= shown_lines && shown[i] != "") block[++lines] = shown[i]
    else if (lines > 0) { look_for(block, lines); lines = 0 }
  exit bad
}
