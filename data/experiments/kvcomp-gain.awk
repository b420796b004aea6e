# Makes the table of `make kvcomp-gain` from lines
#   kivi BITS measures...            first, bits rising
#   BLOCK-CODER-KIND STEP measures...  steps rising; KIND: own, shared (steps of values by head or by all), error (absolute bounds)
# with the measures that the Makefile describes.
{
  setting = $1
  at = $2
  if (!(setting in count)) names[++settings] = setting
  i = ++count[setting]
  x[setting, i] = at
  key_nmse[setting, i] = $3
  key_bits[setting, i] = $4
  value_bits[setting, i] = $11
  key_parts[setting, i] = sprintf("%7.3f %7.3f %7.3f %7.3f %7.4f", $5, $6, $7, $8, $9)
  value_parts[setting, i] = sprintf("%7.3f %7.3f %7.3f %7.3f %7.4f", $12, $13, $14, $15, $16)
}

# Whole bits for a relative step: ceil(log2(floor(1 / rel) + 1)).
function whole_bits(rel,   levels, bits) {
  levels = int(1 / rel + 1e-9) + 1
  for (bits = 0; 2 ^ bits < levels; ++bits);
  return bits
}

function kivi_index(bits,   i) {
  for (i = 1; i <= count["kivi"]; ++i)
    if (x["kivi", i] == bits) return i
  return 0
}

function values_table(s,   i, k, gain, sum, n) {
  printf "\nvalues, at the same relative step\n"
  printf "%6s %8s %8s %6s   %7s %7s %7s %7s %7s\n", "step", "kivi", "kvcomp", "gain", "entropy", "payload", "scales", "offsets", "tables"
  for (i = 1; i <= count[s]; ++i) {
    k = kivi_index(whole_bits(x[s, i]))
    if (k == 0) continue
    gain = value_bits["kivi", k] / value_bits[s, i]
    printf "%6s %8.3f %8.3f %6.2f   %s\n", x[s, i], value_bits["kivi", k], value_bits[s, i], gain, value_parts[s, i]
    sum += gain
    ++n
  }
  if (n > 0) printf "%6s %8s %8s %6.2f\n", "mean", "", "", sum / n
  return n > 0 ? sum / n : 0
}

# Between the two steps whose NMSE lie around kivi's: straight lines over the logarithm of the NMSE.
function keys_table(s,   i, k, place, bits, step, gain, sum, n) {
  printf "\nkeys, at the same NMSE\n"
  printf "%6s %8s %8s %8s %8s %6s   %s\n", "bits", "NMSE", "kivi", "step", "kvcomp", "gain", "at the next smaller step: entropy, payload, scales, offsets, tables"
  for (k = 1; k <= count["kivi"]; ++k)
    for (i = 1; i < count[s]; ++i) {
      if (key_nmse[s, i] > key_nmse["kivi", k] || key_nmse[s, i + 1] <= key_nmse["kivi", k]) continue
      place = log(key_nmse["kivi", k] / key_nmse[s, i]) / log(key_nmse[s, i + 1] / key_nmse[s, i])
      bits = key_bits[s, i] + place * (key_bits[s, i + 1] - key_bits[s, i])
      step = exp(log(x[s, i]) + place * log(x[s, i + 1] / x[s, i]))
      gain = key_bits["kivi", k] / bits
      printf "%6d %8.5f %8.3f %8.3f %8.3f %6.2f   %s\n", x["kivi", k], key_nmse["kivi", k], key_bits["kivi", k], step, bits, gain, key_parts[s, i]
      sum += gain
      ++n
    }
  if (n > 0) printf "%6s %8s %8s %8s %8s %6.2f\n", "mean", "", "", "", "", sum / n
  return n > 0 ? sum / n : 0
}

END {
  kinds["own"] = "steps of values per head"
  kinds["shared"] = "steps of values shared by all heads"
  kinds["error"] = "one absolute bound for all values"
  print "Bits per value in blocks, all that they need counted; gain: kivi's bits over kvcomp's."
  for (n = 1; n <= settings; ++n) {
    if (names[n] == "kivi") continue
    split(names[n], part, "-")
    printf "\n== block %s, %s, %s ==\n", part[1], part[2], kinds[part[3]]
    key_mean[n] = keys_table(names[n])
    if (part[3] != "error") value_mean[n] = values_table(names[n])
  }
  printf "\n%-40s %6s %6s\n", "mean gain", "keys", "values"
  for (n = 1; n <= settings; ++n)
    if (names[n] != "kivi")
      printf "%-40s %6.2f %6s\n", names[n], key_mean[n], n in value_mean ? sprintf("%.2f", value_mean[n]) : "-"
}
