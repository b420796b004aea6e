# Waiting threads sleep soon, unless the environment says how they wait. GOMP_SPINCOUNT is how long GCC's OpenMP lets them spin. The program
# puts it in the place of a variable of the shell that nothing reads.
unset OMP_WAIT_POLICY GOMP_SPINCOUNT
# If it begins again with other kernels of OpenBLAS, the output appears twice.
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
# LOGNAME is the only variable that can be replaced here; HOME stays, and is used to find the folder of the hub's cache.
program=$(command -v kvcodec)
env -i OMP_DISPLAY_ENV=verbose LOGNAME=me "$program" --version 2>&1 | sed -n 's/.*GOMP_SPINCOUNT = //p' | tail -n 1
env -i HOME="$PWD/home" "$program" dump-kv --model some/model --text data/text.txt -o out.h5 2>&1 | sed "s|$PWD|.|g"
env -i OMP_DISPLAY_ENV=verbose "$program" --version 2>&1 | grep -c "kvcodec\|GOMP_SPINCOUNT = '10000'"
