# on-axis.awk SVG: the points of a plot, each with its value and whether it and its interval stand where the labels of the axis say: between
# two labels by the inverse hyperbolic sine of the value over that where the axis is linear (data-linear).
function attribute(name) {
  if (!match($0, " " name "=\"[^\"]*\"")) return ""
  return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 4)
}
function size(value) { return value < 0 ? -value : value }
function stretched(value,   x) { x = size(value) / linear; x = log(x + sqrt(x * x + 1)); return value < 0 ? -x : x }
# Where the labels say that a value stands; beyond the last by the last two.
function place_of(value,   i) {
  for (i = ticks - 1; i > 1 && tick[i] > value; --i);
  return place[i] + (stretched(value) - stretched(tick[i])) / (stretched(tick[i + 1]) - stretched(tick[i])) * (place[i + 1] - place[i])
}
function judged(value, at,   wanted) {
  wanted = place_of(value)
  return size(wanted - at) <= 0.2 ? "as labelled" : "at " at ", not " wanted
}
/data-linear=/ { linear = attribute("data-linear") + 0 }
/data-tick=/ { tick[++ticks] = attribute("data-tick") + 0; place[ticks] = attribute("data-at") + 0 }
/data-label=/ {
  label = attribute("data-label"); value = attribute("data-y") + 0
  from = attribute("data-low") + 0; to = attribute("data-high") + 0
  interval = ""
}
# A point's interval, then the point itself.
label != "" && /<line / {
  interval = "; from " from " " judged(from, attribute("y1") + 0) " to " to " " judged(to, attribute("y2") + 0)
}
label != "" && /<circle / {
  at = attribute("cy") + 0
  said = label ": " value " " judged(value, at)
  for (i = 1; i <= ticks; ++i)
    if (tick[i] == 0) said = said (at > place[i] + 0.2 ? ", below 0" : at < place[i] - 0.2 ? ", above 0" : ", at 0")
  print said interval
  label = ""
}
