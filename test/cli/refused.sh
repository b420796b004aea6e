# For cases of refusals: refused ARGUMENTS… runs kvcodec and prints its message and status; standard output must stay empty. The list of codecs
# is cut short, so that a new codec changes no case.
refused() {
  kvcodec "$@" >refused.out 2>refused.err </dev/null
  status=$?
  [ ! -s refused.out ] || echo "standard output is not empty:" "$@"
  [ "$(wc -l <refused.err)" -eq 1 ] || echo "not one line:" "$@"
  sed "s/\(: none, sparse\), [a-z0-9, ]*transform[a-z0-9, ]*/\1, …/" refused.err
  echo "  status $status"
  rm -f refused.out refused.err
}
