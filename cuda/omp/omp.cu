#include "cuda/omp/omp.cuh"
#include "cuda/omp/omp_kernels.cuh"

namespace kvcodec::cuda {
namespace {

unsigned divide_up(unsigned n, unsigned by) { return n / by + (n % by != 0); }

}  // namespace

Status run_omp_atoms(const OmpAtoms& atoms, uint16_t* rough, double* energies, float* largest,
                     StreamHandle stream) {
  return launch(omp_atoms, divide_up(atoms.count, kOmpWarps), kOmpThreads, 0, stream, atoms, rough, energies,
                largest);
}

Status run_omp_gram(const OmpAtoms& atoms, float* gram, StreamHandle stream) {
  const unsigned tiles = divide_up(atoms.count, kGramTile);
  return launch(omp_gram, dim3(tiles, tiles), kGramThreads, 0, stream, atoms, gram);
}

Status run_omp_begin(const OmpAtoms& atoms, const OmpState& state, const float* signals, uint32_t count,
                     uint32_t* bad, StreamHandle stream) {
  return launch(omp_begin, count, kOmpThreads, 0, stream, atoms, state, signals, bad);
}

Status run_omp_peaks(const OmpAtoms& atoms, const OmpState& state, const uint32_t* active, uint32_t count,
                     OmpPeak* peaks, unsigned multiprocessors, size_t shared_bytes, StreamHandle stream) {
  const unsigned tiles = divide_up(atoms.count, kOmpAtoms), rows = divide_up(count, kOmpRows);
  if (rows == 0) return 0;
  // One block runs on a multiprocessor at a time: where residuals are few, several share their tiles.
  unsigned parts = multiprocessors / rows;
  if (parts > tiles) parts = tiles;
  if (parts == 0) parts = 1;
  const size_t resident = peaks_shared_bytes(true, atoms.padded);
  if (resident <= shared_bytes)
    return launch(omp_peaks<true>, dim3(parts, rows), kPeaksThreads, resident, stream, atoms, state, active,
                  count, peaks);
  return launch(omp_peaks<false>, dim3(parts, rows), kPeaksThreads, peaks_shared_bytes(false, atoms.padded),
                stream, atoms, state, active, count, peaks);
}

Status run_omp_advance(const OmpAtoms& atoms, const OmpState& state, const uint32_t* active, uint32_t count,
                       const OmpPeak* peaks, uint32_t* finished, StreamHandle stream) {
  return launch(omp_advance, count, kOmpThreads, omp_shared_bytes(state.sparsity), stream, atoms, state,
                active, peaks, finished);
}

Status run_omp_finish(const OmpAtoms& atoms, const OmpState& state, uint32_t count, float* coefficients,
                      double* residuals, StreamHandle stream) {
  return launch(omp_finish, count, kOmpThreads, omp_shared_bytes(state.sparsity), stream, atoms, state,
                coefficients, residuals);
}

}  // namespace kvcodec::cuda
