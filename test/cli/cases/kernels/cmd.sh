# If OpenBLAS chose kernels without AVX for a processor with AVX2, the program begins again with better ones; it does so once, and does not
# overrule the user.
library=$(dirname "$(command -v damage)")/libchosen_kernels.so
if [ ! -e "$library" ] || ! grep -qw avx2 /proc/cpuinfo; then
  echo "needs a processor with AVX2, and a program without sanitizers"
  exit 77
fi
unset OPENBLAS_CORETYPE
starts() { # starts CHOSEN [VARIABLE=VALUE]: what each start of the program finds in OPENBLAS_CORETYPE
  chosen=$1
  shift
  rm -f said
  env CHOSEN_KERNELS="$chosen" CHOSEN_KERNELS_SAID="$PWD/said" LD_PRELOAD="$library" "$@" kvcodec --version
  sed 's/SkylakeX\|Haswell/better/' said
}
starts Prescott
starts Haswell
starts Prescott OPENBLAS_CORETYPE=Nehalem
# Arguments, standard input and the exit status are preserved.
env CHOSEN_KERNELS=Prescott CHOSEN_KERNELS_SAID="$PWD/said" LD_PRELOAD="$library" kvcodec info - --json <data/kv.h5 | head -c 1
echo
env CHOSEN_KERNELS=Prescott CHOSEN_KERNELS_SAID="$PWD/said" LD_PRELOAD="$library" kvcodec info "no such file" 2>&1
echo "status $?"
