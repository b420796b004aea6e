# For cases of refusals: refused ARGUMENTS… runs kvcodec and prints its message and status; standard output must stay empty.
refused() {
  kvcodec "$@" >refused.out 2>refused.err </dev/null
  status=$?
  [ ! -s refused.out ] || echo "standard output is not empty:" "$@"
  [ "$(wc -l <refused.err)" -eq 1 ] || echo "not one line:" "$@"
  cat refused.err
  echo "  status $status"
  rm -f refused.out refused.err
}
