# on-axis.awk SVG: the points of a plot, each with its value and whether it and its interval stand where the labels of the axis say:
# between two labels (or beyond the last) by the logarithm of the size, or in the plain part (data-linear, of a symmetric-logarithmic
# axis) by the value itself.
function attribute(name) {
  if (!match($0, " " name "=\"[^\"]*\"")) return ""
  return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 4)
}
function size(value) { return value < 0 ? -value : value }
# How far `value` is from label i to the next.
function share(value, i,   a, b) {
  a = tick[i]; b = tick[i + 1]
  if (linear && size(a) <= linear * 1.0001 && size(b) <= linear * 1.0001) return (value - a) / (b - a)
  return (log(size(value)) - log(size(a))) / (log(size(b)) - log(size(a)))
}
# Where the labels say that a value stands; at the last that is below it.
function place_of(value,   i) {
  for (i = ticks - 1; i > 1 && tick[i] > value; --i);
  return place[i] + share(value, i) * (place[i + 1] - place[i])
}
function judged(value, at,   wanted) {
  if (!linear && value <= 0) return at > place[1] + 0.2 ? "below the axis" : "on the logarithmic axis"
  wanted = place_of(value)
  return size(wanted - at) <= 0.2 ? "as labelled" : "at " at ", not " wanted
}
/data-linear=/ { linear = attribute("data-linear") + 0 }
/data-tick=/ { tick[++ticks] = attribute("data-tick") + 0; place[ticks] = attribute("data-at") + 0 }
/class="c[0-9] line"/ && attribute("x1") == attribute("x2") { low[attribute("x1")] = attribute("y1"); high[attribute("x1")] = attribute("y2") }
/data-label=/ {
  value = attribute("data-y") + 0; at = attribute("data-at") + 0
  match($0, /translate\([0-9.]+ [0-9.]+/)
  split(substr($0, RSTART + 10, RLENGTH - 10), drawn, " ")
  said = attribute("data-label") ": " value " " judged(value, drawn[2] + 0)
  for (i = 1; i <= ticks; ++i)
    if (tick[i] == 0) said = said (at > place[i] + 0.2 ? ", below 0" : at < place[i] - 0.2 ? ", above 0" : ", at 0")
  from = attribute("data-low") + 0; to = attribute("data-high") + 0
  print said "; from " from " " judged(from, low[drawn[1]] + 0) " to " to " " judged(to, high[drawn[1]] + 0)
}
