// Loaded before the others (LD_PRELOAD): OpenBLAS seems to have chosen the kernels CHOSEN_KERNELS. Each start of a program adds a line to the
// file CHOSEN_KERNELS_SAID: what OPENBLAS_CORETYPE says.
#include <stdio.h>
#include <stdlib.h>

char* openblas_get_corename(void) { return getenv("CHOSEN_KERNELS"); }

__attribute__((constructor)) static void say(void) {
  const char* kernels = getenv("OPENBLAS_CORETYPE");
  FILE* said = fopen(getenv("CHOSEN_KERNELS_SAID"), "a");
  if (said == NULL) abort();
  fprintf(said, "%s\n", kernels == NULL ? "unset" : kernels);
  fclose(said);
}
