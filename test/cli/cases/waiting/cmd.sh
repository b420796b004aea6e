# Threads that wait sleep soon, unless the environment says how they wait. GOMP_SPINCOUNT is how long GCC's OpenMP lets them spin; the
# program starts itself anew to set it, and is then what it would have been: arguments, input and status.
unset OMP_WAIT_POLICY GOMP_SPINCOUNT
spins() { # spins [VARIABLE=VALUE]: with what the program runs in the end
  env OMP_DISPLAY_ENV=verbose "$@" kvcodec --version 2>&1 | sed -n 's/.*GOMP_SPINCOUNT = //p' | tail -n 1
}
if [ -z "$(spins)" ]; then
  echo "this OpenMP does not say how long it spins"
  exit 77
fi
spins
spins GOMP_SPINCOUNT=77
spins OMP_WAIT_POLICY=active
kvcodec info "no such file" --json 2>&1
echo "status $?"
kvcodec info - <data/kv.h5 | head -n 1 | cut -d , -f 1
