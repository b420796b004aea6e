# Lines "<method> <budget> <recall> <attention covered> <hit rate, R=1> <hit rate, R=2>" to four tables: methods down, budgets across.
{
  if (!($1 in seen)) methods[++m] = $1
  if (!($2 in budget_seen)) budgets[++b] = $2
  seen[$1] = budget_seen[$2] = 1
  for (i = 1; i <= 4; ++i) value[i, $1, $2] = $(i + 2)
}

function table(which, title,    i, j) {
  printf "%s%-24s", (which > 1 ? "\n" : ""), title
  for (j = 1; j <= b; ++j) printf "%9s", "B=" budgets[j]
  print ""
  for (i = 1; i <= m; ++i) {
    printf "%-24s", methods[i]
    for (j = 1; j <= b; ++j) printf "%9.4f", value[which, methods[i], budgets[j]]
    print ""
  }
}

END {
  table(1, "recall")
  table(2, "attention covered")
  table(3, "hits, R=1")
  table(4, "hits, R=2")
}
