// Orthogonal matching pursuit of many signals at once (cuda/omp/omp.hpp).
#include "cuda/omp/omp.cuh"
#include "cuda/runtime/kernel.cuh"
#include "lib/sparse/omp_decisions.hpp"

namespace kvcodec::cuda {

constexpr unsigned kOmpThreads = 128;  ///< of kernels that give a signal to a block
constexpr unsigned kOmpWarps = kOmpThreads / kWarp;
constexpr unsigned kOmpFours =
    kOmpThreads / 4;  ///< groups of four lanes: each has an inner product of its own
constexpr unsigned kNoAtom = 0xffffffffu;

/// Atoms are multiplied by 2^kAtomTop before they become f16: entries are at most 1, far from overflow, and
/// those below 2^-24 have 2^-35 left. The largest value of a residual is brought within [2^kResidualTop,
/// 2^(kResidualTop + 1)) for the same reason.
constexpr int kAtomTop = 10, kResidualTop = 10;
constexpr float kAtomScale = 1 << kAtomTop;

/// Bounds computed in floats are made larger by this: more than their own roundings, for up to 2^15
/// dimensions.
constexpr float kOmpSlack = 1.01f;

// Operations of blocks and of groups of lanes ------------------------------------------------------

/// 2^exponent for -1022 to 1023.
__device__ __forceinline__ double power_of_two(int exponent) {
  return __builtin_bit_cast(double, static_cast<uint64_t>(exponent + 1023) << 52);
}

/// The largest of all threads' values, for all. scratch: kOmpWarps floats. Begins and ends with a barrier.
__device__ __forceinline__ float largest_of_block(float value, float* scratch) {
  return over_warps<kOmpWarps>(largest_of_lanes(value), scratch,
                               [](float a, float b) { return fmaxf(a, b); });
}
/// The same for sums, in an order that is always the same.
__device__ __forceinline__ float sum_of_block(float value, float* scratch) {
  return over_warps<kOmpWarps>(sum_of_lanes(value), scratch, [](float a, float b) { return a + b; });
}

/// lib's inner product of floats: element i in lane i mod 16, products rounded before they are added, the
/// lanes as a tree. Here four lanes have one product, each four of lib's lanes. All 32 lanes call it, each four
/// with rows of their own. Eight loads of a row are under way: an H100 took 10 us for 512 channels with one
/// after the other, most of a pursuit's time.
__device__ __forceinline__ float dot_of_four(const float* a, const float* b, unsigned stride) {
  constexpr unsigned kAtOnce = 8;
  float sums[4] = {};
  const auto load = [](const float* from) { return *reinterpret_cast<const float4*>(from); };
  const auto add = [&](const float4& x, const float4& y) {
    sums[0] += x.x * y.x, sums[1] += x.y * y.y, sums[2] += x.z * y.z, sums[3] += x.w * y.w;
  };
  a += threadIdx.x % 4 * 4, b += threadIdx.x % 4 * 4;
  unsigned c = 0;
  for (; c + 16 * kAtOnce <= stride; c += 16 * kAtOnce) {
    float4 row[kAtOnce];
#pragma unroll
    for (unsigned n = 0; n < kAtOnce; ++n) row[n] = load(a + c + 16 * n);
#pragma unroll
    for (unsigned n = 0; n < kAtOnce; ++n) add(row[n], load(b + c + 16 * n));
  }
#pragma unroll 1
  for (; c < stride; c += 16) add(load(a + c), load(b + c));
#pragma unroll
  for (unsigned step = 2; step > 0; step /= 2)
#pragma unroll
    for (float& sum : sums) sum += __shfl_xor_sync(kAllLanes, sum, step);
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

/// lib's sum of squares, in 8 lanes that are added one after the other: for all threads of the block.
/// scratch: 8 doubles. Ends with a barrier.
template <class T>
__device__ __forceinline__ double energy_of_block(const T* values, unsigned count, double* scratch) {
  if (threadIdx.x < 8) {
    double lane = 0;
    const T* own = values + threadIdx.x;
    const unsigned steps = (count + 7 - threadIdx.x) / 8;
#pragma unroll 8  // loads are under way together where the number of steps is known before
    for (unsigned i = 0; i < steps; ++i)
      lane += static_cast<double>(own[8 * i]) * static_cast<double>(own[8 * i]);
    scratch[threadIdx.x] = lane;
  }
  __syncthreads();
  double sum = 0;
#pragma unroll
  for (unsigned i = 0; i < 8; ++i) sum += scratch[i];
  __syncthreads();
  return sum;
}

// The dictionary ---------------------------------------------------------------------------------------

/// A warp per atom.
__global__ void __launch_bounds__(kOmpThreads)
    omp_atoms(OmpAtoms atoms, uint16_t* rough, double* energies, float* largest) {
  const unsigned atom = blockIdx.x * kOmpWarps + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (atom >= atoms.count) return;  // a whole warp
  const float* row = atoms.rows + size_t{atom} * atoms.stride;
  float norm = 0, error = 0;  // of values times kAtomScale
  for (unsigned j = lane; j < atoms.padded; j += kWarp) {
    const float value = j < atoms.width ? row[j] * kAtomScale : 0;
    const uint16_t half = f16_from_float(value);
    const float off = value - f16_to_float(half);
    rough[size_t{atom} * atoms.padded + j] = half;
    norm = fmaf(value, value, norm), error = fmaf(off, off, error);
  }
  double energy = 0;  // lanes from 8 on repeat
  for (unsigned j = lane % 8; j < atoms.stride; j += 8)
    energy += static_cast<double>(row[j]) * static_cast<double>(row[j]);
  double sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += __shfl_sync(kAllLanes, energy, i);
  norm = sum_of_lanes(norm), error = sum_of_lanes(error);
  if (lane == 0) {
    energies[atom] = sum;
    auto* bits = reinterpret_cast<unsigned*>(largest);  // floats that are not negative are in their order
    atomicMax(&bits[0], bits_of(sqrtf(norm) * kOmpSlack / kAtomScale));
    atomicMax(&bits[1], bits_of(sqrtf(error) * kOmpSlack / kAtomScale));
  }
}

constexpr unsigned kGramTile = 32;  ///< atoms, twice, of a block of the Gram matrix: 2 x 2 per thread
constexpr unsigned kGramThreads = 256;
/// Floats of a row of kOmpFloats channels in shared memory: rows that 8 lanes read at once, 16 bytes each,
/// lie in different banks.
constexpr unsigned kGramRow = kOmpFloats + 4;
constexpr unsigned kGramStages = 4;  ///< of kOmpFloats channels: three are under way

/// Inner products of atoms in the order of lib's: 16 lanes for each of four products stay in registers. Of
/// the tiles only those on and above the diagonal are computed. (3.0 ms for 8192 atoms of 512 channels on an
/// H100 with a wait for each stage's loads; by arithmetic 1.2 ms.)
__global__ void __launch_bounds__(kGramThreads) omp_gram(OmpAtoms atoms, float* gram) {
  if (blockIdx.x < blockIdx.y) return;
  constexpr unsigned kStage = 2 * kGramTile * kGramRow;
  KVCODEC_SHARED_ARRAY(float4, tiles, kGramStages * kStage / 4);
  auto* stages = reinterpret_cast<float*>(tiles);
  const unsigned first_row = blockIdx.y * kGramTile, first_column = blockIdx.x * kGramTile;
  const unsigned row = threadIdx.x / 16, column = threadIdx.x % 16;  // and those 16 behind
  // 64 rows of four times 16 bytes: one for each thread.
  const unsigned line = threadIdx.x / 4, part_of_line = threadIdx.x % 4 * 4;
  const unsigned atom = line < kGramTile ? first_row + line : first_column + line - kGramTile;
  const bool real = atom < atoms.count;
  const float* from = atoms.rows + size_t{real ? atom : 0} * atoms.stride + part_of_line;
  const auto load = [&](unsigned c) {
    if (c < atoms.stride)
      copy_async16(stages + c / kOmpFloats % kGramStages * kStage + line * kGramRow + part_of_line, from + c,
                   real ? 16 : 0);
    copy_async_commit();  // an empty group too, so that their number tells which stage has arrived
  };
  for (unsigned stage = 0; stage < kGramStages - 1; ++stage) load(stage * kOmpFloats);
  float sums[2][2][kOmpFloats] = {};
  for (unsigned c = 0; c < atoms.stride; c += kOmpFloats) {
    copy_async_wait<kGramStages - 2>();
    __syncthreads();  // the stage is there for all, and all are done with the one before
    load(c + (kGramStages - 1) * kOmpFloats);
    const float* shared = stages + c / kOmpFloats % kGramStages * kStage;
#pragma unroll
    for (unsigned part = 0; part < kOmpFloats; part += 4) {
      float4 a[2], b[2];
#pragma unroll
      for (unsigned i = 0; i < 2; ++i) {
        a[i] = *reinterpret_cast<const float4*>(shared + (row + 16 * i) * kGramRow + part);
        b[i] = *reinterpret_cast<const float4*>(shared + (kGramTile + column + 16 * i) * kGramRow + part);
      }
#pragma unroll
      for (unsigned i = 0; i < 2; ++i)
#pragma unroll
        for (unsigned j = 0; j < 2; ++j) {
          sums[i][j][part] += a[i].x * b[j].x;
          sums[i][j][part + 1] += a[i].y * b[j].y;
          sums[i][j][part + 2] += a[i].z * b[j].z;
          sums[i][j][part + 3] += a[i].w * b[j].w;
        }
    }
  }
#pragma unroll
  for (unsigned i = 0; i < 2; ++i)
#pragma unroll
    for (unsigned j = 0; j < 2; ++j) {
#pragma unroll
      for (unsigned lane = 0; lane < 8; ++lane) sums[i][j][lane] += sums[i][j][lane + 8];
#pragma unroll
      for (unsigned lane = 0; lane < 4; ++lane) sums[i][j][lane] += sums[i][j][lane + 4];
      const float sum = (sums[i][j][0] + sums[i][j][2]) + (sums[i][j][1] + sums[i][j][3]);
      const unsigned one = first_row + row + 16 * i, other = first_column + column + 16 * j;
      if (one >= atoms.count || other >= atoms.count) continue;
      gram[size_t{one} * atoms.count + other] = sum;
      if (blockIdx.x != blockIdx.y) gram[size_t{other} * atoms.count + one] = sum;
    }
}

// Residuals --------------------------------------------------------------------------------------------

/// Rounds a signal's residual to f16 and says how far that is from it. The block's own residual values were
/// written by the same threads: thread t has channels 4 t, 4 t + 1, ... of each 4 kOmpThreads.
__device__ __forceinline__ void round_residual(const OmpAtoms& atoms, const OmpState& state, size_t signal,
                                               float peak, float* scratch) {
  peak = largest_of_block(peak, scratch);
  const auto [inverse, factor] = peak_scale(peak, kResidualTop);
  const float* residual = state.residuals + signal * atoms.stride;
  uint16_t* rough = state.rough + signal * atoms.padded;
  float norm = 0, error = 0;  // of values over factor
  for (unsigned c = 4 * threadIdx.x; c < atoms.padded; c += 4 * kOmpThreads) {
    float4 four = make_float4(0, 0, 0, 0);
    if (c < atoms.stride) four = *reinterpret_cast<const float4*>(residual + c);
    const float values[4] = {four.x * inverse, four.y * inverse, four.z * inverse, four.w * inverse};
    uint32_t halves[4];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      halves[i] = f16_from_float(values[i]);
      const float off = values[i] - f16_to_float(static_cast<uint16_t>(halves[i]));
      norm = fmaf(values[i], values[i], norm), error = fmaf(off, off, error);
    }
    *reinterpret_cast<uint2*>(rough + c) =
        make_uint2(halves[0] | halves[1] << 16, halves[2] | halves[3] << 16);
  }
  norm = sum_of_block(norm, scratch);
  error = sum_of_block(error, scratch);
  if (threadIdx.x == 0) {
    state.factors[signal] = factor;
    state.norms[signal] = sqrtf(norm) * kOmpSlack * factor;
    state.errors[signal] = sqrtf(error) * kOmpSlack * factor;
  }
}

/// A block per signal.
__global__ void __launch_bounds__(kOmpThreads)
    omp_begin(OmpAtoms atoms, OmpState state, const float* signals, uint32_t* bad) {
  KVCODEC_SHARED_ARRAY(double, lanes, 8);
  KVCODEC_SHARED_ARRAY(float, scratch, kOmpWarps);
  const size_t signal = blockIdx.x;
  const float* given = signals + signal * atoms.width;
  const double given_energy = energy_of_block(given, atoms.width, lanes);
  if (!(given_energy < INFINITY)) {  // or not a number
    if (threadIdx.x == 0) {
      atomicMin(bad, blockIdx.x);
      state.done[signal] = 1, state.counts[signal] = 0;
    }
    return;
  }
  // Energies of floats are no denormal doubles, so that the exponent is what the bits say.
  const int exponent =
      given_energy > 0
          ? static_cast<int>(__builtin_bit_cast(uint64_t, sqrt(given_energy)) >> 52 & 0x7ff) - 1023
          : 0;
  const double factor = power_of_two(-exponent);
  float* y = state.signals + signal * atoms.stride;
  float* residual = state.residuals + signal * atoms.stride;
  float peak = 0;
  for (unsigned c = 4 * threadIdx.x; c < atoms.stride; c += 4 * kOmpThreads) {
    float values[4];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      values[i] = c + i < atoms.width ? static_cast<float>(given[c + i] * factor) : 0;
      peak = fmaxf(peak, fabsf(values[i]));
    }
    const float4 four = make_float4(values[0], values[1], values[2], values[3]);
    *reinterpret_cast<float4*>(y + c) = four;
    *reinterpret_cast<float4*>(residual + c) = four;
  }
  for (unsigned i = threadIdx.x; i < state.mask_words; i += kOmpThreads)
    state.excluded[signal * state.mask_words + i] = 0;
  __syncthreads();
  const double energy = energy_of_block(y, atoms.stride, lanes);
  round_residual(atoms, state, signal, peak, scratch);
  if (threadIdx.x == 0) {
    state.energies[signal] = state.left[signal] = energy;
    state.exponents[signal] = exponent;
    state.counts[signal] = 0;
    state.done[signal] = !(energy > 0);
  }
}

// Products -----------------------------------------------------------------------------------------------

constexpr unsigned kPeaksThreads = 256;  ///< 8 warps, two by four: each 64 residuals by 64 atoms
constexpr unsigned kPeaksStages = 4;
/// Elements of a row of a tile in shared memory: 16 bytes more than kOmpStep, so that the 8 rows of a matrix
/// load lie in different banks.
constexpr unsigned kPeaksRow = kOmpStep + 8;
constexpr unsigned kPlaceMask = kOmpAtoms - 1;  ///< of an OmpPeak: the atom's place

/// Dynamic shared memory: the residuals, all of them or a stage's part, stages of atoms, and a peak of each
/// residual from each of four warps.
constexpr size_t peaks_shared_bytes(bool resident, size_t padded) {
  const size_t rows = resident ? kOmpRows * (padded + 8) : kPeaksStages * kOmpRows * size_t{kPeaksRow};
  return (rows + kPeaksStages * kOmpAtoms * size_t{kPeaksRow}) * sizeof(uint16_t) +
         kOmpRows * 4 * sizeof(OmpPeak);
}

/// The two largest of two pairs.
__device__ __forceinline__ OmpPeak join(const OmpPeak& a, const OmpPeak& b) {
  const uint32_t lower = a.best < b.best ? a.best : b.best;
  const uint32_t second = a.second > b.second ? a.second : b.second;
  return {a.best > b.best ? a.best : b.best, lower > second ? lower : second};
}

/// A block has 128 residuals and goes through a range of tiles of atoms. With `resident` the residuals stay
/// in shared memory and atoms alone are streamed: a byte of them serves 128 multiplications.
template <bool kResident>
__global__ void __launch_bounds__(kPeaksThreads, 1)
    omp_peaks(OmpAtoms atoms, OmpState state, OmpRound round) {
  const uint32_t count = round.count;
  auto* of_rows = dynamic_shared<uint16_t>();
  const unsigned row_length = kResident ? atoms.padded + 8 : kPeaksRow;
  const unsigned rows_elements = kResident ? kOmpRows * row_length : kPeaksStages * kOmpRows * kPeaksRow;
  uint16_t* of_atoms = of_rows + rows_elements;
  auto* own = reinterpret_cast<OmpPeak*>(of_atoms + kPeaksStages * kOmpAtoms * kPeaksRow);  // [row][warp % 4]
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const unsigned warp_row = warp / 4 * 64, warp_atom = warp % 4 * 64;
  const unsigned first_row = blockIdx.y * kOmpRows;
  const unsigned tiles = (atoms.count + kOmpAtoms - 1) / kOmpAtoms, steps = atoms.padded / kOmpStep;
  const auto first_tile = static_cast<unsigned>(uint64_t{tiles} * blockIdx.x / gridDim.x);
  const auto end_tile = static_cast<unsigned>(uint64_t{tiles} * (blockIdx.x + 1) / gridDim.x);
  constexpr unsigned kChunks = kOmpStep / 8;  // of 16 bytes, of a row of a step

  const auto copy_rows = [&](uint16_t* to, unsigned k) {
#pragma unroll
    for (unsigned i = threadIdx.x; i < kOmpRows * kChunks; i += kPeaksThreads) {
      const unsigned row = i / kChunks, chunk = i % kChunks;
      const bool real = first_row + row < count;
      const size_t signal = round.active[real ? first_row + row : 0];
      copy_async16(to + row * row_length + chunk * 8, state.rough + signal * atoms.padded + k + chunk * 8,
                   real ? 16 : 0);
    }
  };
  // Steps go on from one tile to the next, so that its first are under way while the last tile is summed up.
  // A thread has the same part of the same rows of each step: addresses are kept from one to the next. (They
  // were a third of the instructions of a step, which take about as long as its products.)
  constexpr unsigned kCopies = kOmpAtoms * kChunks / kPeaksThreads, kRowsApart = kPeaksThreads / kChunks;
  const unsigned own_row = threadIdx.x / kChunks, own_chunk = threadIdx.x % kChunks;
  unsigned load_tile = first_tile, load_step = 0, load_stage = 0;
  const uint16_t* from[kCopies];
  unsigned bytes[kCopies];
  const auto begin_tile = [&] {
#pragma unroll
    for (unsigned i = 0; i < kCopies; ++i) {
      const unsigned atom = load_tile * kOmpAtoms + own_row + i * kRowsApart;
      const bool real = atom < atoms.count;
      from[i] = atoms.rough + size_t{real ? atom : 0} * atoms.padded + own_chunk * 8;
      bytes[i] = real ? 16 : 0;
    }
  };
  begin_tile();
  const auto load = [&] {
    if (load_tile < end_tile) {
      if constexpr (!kResident) copy_rows(of_rows + load_stage * kOmpRows * kPeaksRow, load_step * kOmpStep);
      uint16_t* to = of_atoms + (load_stage * kOmpAtoms + own_row) * kPeaksRow + own_chunk * 8;
#pragma unroll
      for (unsigned i = 0; i < kCopies; ++i) {
        copy_async16(to + i * kRowsApart * kPeaksRow, from[i], bytes[i]);
        from[i] += kOmpStep;
      }
      if (++load_step == steps) {
        load_step = 0, ++load_tile;
        begin_tile();
      }
      load_stage = (load_stage + 1) % kPeaksStages;
    }
    copy_async_commit();  // an empty group too, so that their number tells which step has arrived
  };
  if constexpr (kResident)
    for (unsigned k = 0; k < atoms.padded; k += kOmpStep) copy_rows(of_rows + k, k);
  for (unsigned stage = 0; stage < kPeaksStages - 1; ++stage) load();

  unsigned stage = 0;
  for (unsigned tile = first_tile; tile < end_tile; ++tile) {
    float sums[4][8][4] = {};  // [16 residuals][8 atoms]
    // A warp may have no residual or no atom: its products stay 0.
    const bool idle = first_row + warp_row >= count || tile * kOmpAtoms + warp_atom >= atoms.count;
    for (unsigned step = 0; step < steps; ++step) {
      copy_async_wait<kPeaksStages - 2>();
      __syncthreads();  // the step is there for all, and the stage of the step before is free
      load();
      const uint16_t* a_tile = kResident ? of_rows + step * kOmpStep : of_rows + stage * kOmpRows * kPeaksRow;
      const uint16_t* b_tile = of_atoms + stage * kOmpAtoms * kPeaksRow;
      stage = (stage + 1) % kPeaksStages;
      if (idle) continue;
#pragma unroll
      for (unsigned k = 0; k < kOmpStep; k += 16) {
        uint32_t a[4][4];
#pragma unroll
        for (unsigned m = 0; m < 4; ++m)
          load_matrices(a[m], a_tile + (warp_row + m * 16 + lane % 16) * row_length + k + lane / 16 * 8);
#pragma unroll
        for (unsigned n = 0; n < 4; ++n) {
          uint32_t b[4];
          load_matrices(
              b, b_tile + (warp_atom + n * 16 + lane / 16 * 8 + lane % 8) * kPeaksRow + k + lane / 8 % 2 * 8);
#pragma unroll
          for (unsigned m = 0; m < 4; ++m) {
            multiply_f16(sums[m][2 * n], a[m], b[0], b[1]);
            multiply_f16(sums[m][2 * n + 1], a[m], b[2], b[3]);
          }
        }
      }
    }
    // Floats without their sign are in the order of their bits, whose last eight make room for the place: in
    // what the thread has, at first.
    const uint32_t own_place = warp_atom + lane % 4 * 2;
#pragma unroll
    for (unsigned m = 0; m < 4; ++m)
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        OmpPeak peak{0, 0};
#pragma unroll
        for (unsigned n = 0; n < 8; ++n)
#pragma unroll
          for (unsigned c = 0; c < 2; ++c) {
            const uint32_t key =
                (bits_of(sums[m][n][half * 2 + c]) & (0x7fffffffu & ~kPlaceMask)) | (n * 8 + c);
            const uint32_t lower = key < peak.best ? key : peak.best;
            peak.second = lower > peak.second ? lower : peak.second;
            peak.best = key > peak.best ? key : peak.best;
          }
        peak.best |= own_place, peak.second |= own_place;
#pragma unroll
        for (unsigned step = 1; step < 4; step *= 2) {
          OmpPeak other;
          other.best = __shfl_xor_sync(kAllLanes, peak.best, step);
          other.second = __shfl_xor_sync(kAllLanes, peak.second, step);
          peak = join(peak, other);
        }
        if (lane % 4 == 0) own[(warp_row + m * 16 + half * 8 + lane / 4) * 4 + warp % 4] = peak;
      }
    __syncthreads();
    if (threadIdx.x < kOmpRows && first_row + threadIdx.x < count) {
      const OmpPeak* four = own + threadIdx.x * 4;
      round.peaks[size_t{first_row + threadIdx.x} * tiles + tile] =
          join(join(four[0], four[1]), join(four[2], four[3]));
    }
    // The next tile writes `own` behind the barriers of its steps.
  }
}

// A round ------------------------------------------------------------------------------------------------

/// A signal's state in the block's shared memory: arrays of `room` elements, sparsity rounded up to 8.
struct OmpShared {
  double *g, *v, *w, *x, *z;
  float* x_float;
  uint32_t* ids;
  double* lanes;      // 8
  double* scalars;    // 5: v . v, v . z, energy left, noise, energy of the atom
  float* scratch;     // kOmpWarps
  float* best;        // kOmpWarps
  uint32_t* best_id;  // kOmpWarps, and one for a single candidate
  float* along;       // 1: product with the signal
};

constexpr size_t omp_shared_bytes(size_t sparsity) {
  const size_t room = (sparsity + 7) / 8 * 8;
  return room * (5 * sizeof(double) + sizeof(float) + sizeof(uint32_t));
}

/// True if an atom is taken or was refused.
__device__ __forceinline__ bool is_excluded(const uint32_t* excluded, uint32_t atom) {
  return excluded[atom / 32] >> (atom % 32) & 1;
}

/// The atom with the largest |d . r| in float of those not excluded, the lowest id among equals; kNoAtom if
/// it is not above the noise.
__device__ __forceinline__ uint32_t select_atom(const OmpAtoms& atoms, const OmpState& state, size_t signal,
                                                const OmpPeak* peaks, const OmpShared& shared) {
  const unsigned tiles = (atoms.count + kOmpAtoms - 1) / kOmpAtoms;
  const uint32_t* excluded = state.excluded + signal * state.mask_words;
  if (threadIdx.x == 0) shared.scalars[3] = kNoise * sqrt(state.energies[signal]);
  const float factor = state.factors[signal] / kAtomScale, norm = state.norms[signal];
  const float error = state.errors[signal];
  // An atom that was taken is nearly orthogonal to the residual and hardly ever among the best two of a tile:
  // that is looked at here, where few peaks are left, and not in the products.
  const auto open = [&](unsigned tile, uint32_t key) {
    const uint32_t atom = tile * kOmpAtoms + (key & kPlaceMask);
    return atom < atoms.count && !is_excluded(excluded, atom);
  };
  float highest = -1;
  for (unsigned t = threadIdx.x; t < tiles; t += kOmpThreads)
    if (open(t, peaks[t].best)) highest = fmaxf(highest, float_of(peaks[t].best & ~kPlaceMask));
  highest = largest_of_block(highest, shared.scratch);
  const double& noise = shared.scalars[3];

  // |<r, d> - <r', d'>| <= |r - r'| |d| + |r'| |d - d'|, by Cauchy and Schwarz; roundings of sums of m
  // products, in either order and with the hardware's truncation, are below (m + 8) 2^-22 of the product of
  // the norms.
  const float bound = kOmpSlack * (error * atoms.largest[0] + (norm + error) * atoms.largest[1] +
                                   (static_cast<float>(atoms.width) + 8) * 0x1p-22f * (norm + error) *
                                       (atoms.largest[0] + atoms.largest[1]));
  const float least = highest < 0 ? -INFINITY : highest * factor - 2 * bound;
  // The place took the last eight bits of a float of 24: it may have been larger by 2^-15 of it.
  const auto may_win = [&](uint32_t key) {
    return float_of(key & ~kPlaceMask) * (1 + 0x1p-15f) * factor + 0x1p-120f >= least;
  };

  int some_tiles = 0, many_tiles = 0;
  for (unsigned first = 0; first < tiles; first += kOmpThreads) {
    const unsigned t = first + threadIdx.x;
    const bool some = t < tiles && may_win(peaks[t].best) && open(t, peaks[t].best);
    // Read only if there is one; where there are more, whichever comes last stays.
    if (some) atomicExch(&shared.best_id[kOmpWarps], t * kOmpAtoms + (peaks[t].best & kPlaceMask));
    some_tiles += __syncthreads_count(some);
    many_tiles += __syncthreads_count(t < tiles && may_win(peaks[t].second));
  }
  if (some_tiles == 1 && many_tiles == 0 && highest * factor - 2 * bound > 2 * noise)
    return shared.best_id[kOmpWarps];

  // The very numbers that decide. Each four lanes have their own atoms of a tile; of single ones each warp.
  const float* residual = state.residuals + signal * atoms.stride;
  const unsigned warp = threadIdx.x / kWarp;
  float best = -1;
  uint32_t best_id = kNoAtom;
  const auto compare = [&](float product, uint32_t atom) {
    if (product > best || (product == best && atom < best_id)) best = product, best_id = atom;
  };
  const auto look = [&](uint32_t atom, bool real) {
    const float product =
        fabsf(dot_of_four(atoms.rows + size_t{real ? atom : 0} * atoms.stride, residual, atoms.stride));
    if (real) compare(product, atom);
  };
  unsigned turn = 0;
  for (unsigned first = 0; first < tiles; first += kWarp) {  // a tile for each lane, the same in all warps
    const unsigned t = first + threadIdx.x % kWarp;
    const OmpPeak peak = t < tiles ? peaks[t] : OmpPeak{0, 0};
    const bool whole = t < tiles && may_win(peak.second);
    const bool single = t < tiles && !whole && may_win(peak.best) && open(t, peak.best);
    unsigned wholes = __ballot_sync(kAllLanes, whole), singles = __ballot_sync(kAllLanes, single);
    const auto tile_of = [&](unsigned set) {
      return first + static_cast<unsigned>(__ffs(static_cast<int>(set))) - 1;
    };
    for (; wholes != 0; wholes &= wholes - 1)
      for (unsigned i = threadIdx.x / 4; i < kOmpAtoms; i += kOmpFours) {
        const uint32_t atom = tile_of(wholes) * kOmpAtoms + i;
        look(atom, atom < atoms.count && !is_excluded(excluded, atom));
      }
    for (; singles != 0; singles &= singles - 1) {
      const unsigned tile = tile_of(singles);
      if (turn++ % kOmpWarps == warp) look(tile * kOmpAtoms + (peaks[tile].best & kPlaceMask), true);
    }
  }
#pragma unroll
  for (unsigned step = 4; step < kWarp; step *= 2) {
    const float product = __shfl_xor_sync(kAllLanes, best, step);
    compare(product, __shfl_xor_sync(kAllLanes, best_id, step));
  }
  if (threadIdx.x % kWarp == 0) shared.best[warp] = best, shared.best_id[warp] = best_id;
  __syncthreads();
  for (unsigned i = 0; i < kOmpWarps; ++i) compare(shared.best[i], shared.best_id[i]);
  return static_cast<double>(best) > noise ? best_id : kNoAtom;
}

/// v = U' g and w = U v for the first k columns of U; the squares of v and its products with z are summed
/// too, where `sums` says so. g: zeros up to a multiple of 8. Ends with a barrier.
__device__ __forceinline__ void apply_inverse(const double* inverse, unsigned k, const OmpShared& shared,
                                              bool sums) {
  const unsigned lane = threadIdx.x % 8;
  for (unsigned first = 0; first < k; first += kOmpThreads / 8) {
    const unsigned j = first + threadIdx.x / 8;
    double sum = 0;
    if (j < k) {
      const double* column = inverse + packed_columns(j);
      const unsigned length = (j / 8 + 1) * 8;
      constexpr unsigned kAtOnce = 8;  // loads under way
      for (unsigned from = lane; from < length; from += 8 * kAtOnce) {
        double values[kAtOnce];
#pragma unroll
        for (unsigned n = 0; n < kAtOnce; ++n) values[n] = from + 8 * n < length ? column[from + 8 * n] : 0;
#pragma unroll
        for (unsigned n = 0; n < kAtOnce; ++n)
          if (from + 8 * n < length) sum += values[n] * shared.g[from + 8 * n];
      }
    }
    sum = sum_of_lanes<8>(sum);
    if (j < k && lane == 0) shared.v[j] = sum;
  }
  __syncthreads();
  if (sums && threadIdx.x == kOmpThreads - 1) {  // the least busy thread
    double inside = 0, explained = 0;
    for (unsigned i = 0; i < k; ++i) {
      inside += shared.v[i] * shared.v[i];
      explained += shared.v[i] * shared.z[i];
    }
    shared.scalars[0] = inside, shared.scalars[1] = explained;
  }
  for (unsigned i = threadIdx.x; i < k; i += kOmpThreads) {
    double sum = 0;
    for (unsigned first = i / 8 * 8; first < k; first += 8) {  // columns of one length
      const double* row = inverse + packed_columns(first) + i;
      double values[8];  // under way together
#pragma unroll
      for (unsigned n = 0; n < 8; ++n) values[n] = first + n < k ? row[n * (first + 8)] : 0;
#pragma unroll
      for (unsigned n = 0; n < 8; ++n)
        if (first + n < k) sum += values[n] * shared.v[first + n];
    }
    shared.w[i] = sum;
  }
  __syncthreads();
}

/// Adds an atom to the k taken and fits x anew. False, with nothing changed, if it depends on them.
__device__ __forceinline__ bool add_atom(const OmpAtoms& atoms, const OmpState& state, size_t signal,
                                         uint32_t atom, unsigned k, const OmpShared& shared) {
  const float* row = atoms.rows + size_t{atom} * atoms.stride;
  double* inverse = state.inverse + signal * packed_columns(state.sparsity);
  if (threadIdx.x == 0) shared.scalars[4] = atoms.energies[atom];
  if (threadIdx.x / kWarp == kOmpWarps - 1) {
    const float product = dot_of_four(row, state.signals + signal * atoms.stride, atoms.stride);
    if (threadIdx.x % kWarp == 0) shared.along[0] = product;  // all fours have it
  }
  const unsigned padded = (k + 7) / 8 * 8;
  if (atoms.gram) {
    for (unsigned i = threadIdx.x; i < padded; i += kOmpThreads)
      shared.g[i] = i < k ? atoms.gram[size_t{atom} * atoms.count + shared.ids[i]] : 0.0f;
  } else {
    for (unsigned i = threadIdx.x / 4; i < padded; i += kOmpFours) {  // whole warps: they have eight each
      const float product =
          dot_of_four(atoms.rows + size_t{shared.ids[i < k ? i : 0]} * atoms.stride, row, atoms.stride);
      if (threadIdx.x % 4 == 0) shared.g[i] = i < k ? product : 0.0f;
    }
  }
  __syncthreads();
  apply_inverse(inverse, k, shared, true);
  const double energy = shared.scalars[4], outside = energy - shared.scalars[0];
  if (!(outside > kIndependent * energy)) return false;
  const double norm = sqrt(outside);
  const double z = (static_cast<double>(shared.along[0]) - shared.scalars[1]) / norm;
  double* column = inverse + packed_columns(k);
  for (unsigned i = threadIdx.x; i < k / 8 * 8 + 8; i += kOmpThreads) {
    const double value = i < k ? -shared.w[i] / norm : i == k ? 1 / norm : 0;
    column[i] = value;
    if (i > k) continue;
    const double x = (i < k ? shared.x[i] : 0) + z * value;
    shared.x[i] = x;
    shared.x_float[i] = static_cast<float>(x);
    state.x[signal * state.sparsity + i] = x;
  }
  if (threadIdx.x == 0) {
    shared.ids[k] = atom;
    shared.scalars[2] = state.left[signal] - z * z;
    state.left[signal] = shared.scalars[2];
    state.z[signal * state.sparsity + k] = z;
    state.ids[signal * state.sparsity + k] = atom;
    state.counts[signal] = k + 1;
  }
  __syncthreads();
  return true;
}

/// Energy of the residual in double, which stays in state.exact.
__device__ __forceinline__ double exact_energy(const OmpAtoms& atoms, const OmpState& state, size_t signal,
                                               unsigned k, const OmpShared& shared) {
  double* exact = state.exact + signal * atoms.stride;
  const float* y = state.signals + signal * atoms.stride;
  for (unsigned c = threadIdx.x; c < atoms.stride; c += kOmpThreads) {
    double value = y[c];
#pragma unroll 8
    for (unsigned i = 0; i < k; ++i)
      value -= shared.x[i] * static_cast<double>(atoms.rows[size_t{shared.ids[i]} * atoms.stride + c]);
    exact[c] = value;
  }
  __syncthreads();
  return energy_of_block(exact, atoms.stride, shared.lanes);
}

/// y - D x in float, in the order of the atoms, and its rough form.
__device__ __forceinline__ void find_residual(const OmpAtoms& atoms, const OmpState& state, size_t signal,
                                              unsigned k, const OmpShared& shared) {
  const float* y = state.signals + signal * atoms.stride;
  float* residual = state.residuals + signal * atoms.stride;
  float peak = 0;
  for (unsigned c = 4 * threadIdx.x; c < atoms.stride; c += 4 * kOmpThreads) {
    float4 value = *reinterpret_cast<const float4*>(y + c);
    const auto subtract = [&](float x, const float4& row) {
      value.x -= x * row.x, value.y -= x * row.y, value.z -= x * row.z, value.w -= x * row.w;
    };
    unsigned i = 0;
    constexpr unsigned kAtOnce = 8;  // rows under way, from the second-level cache
    for (; i + kAtOnce <= k; i += kAtOnce) {
      float4 rows[kAtOnce];
#pragma unroll
      for (unsigned n = 0; n < kAtOnce; ++n)
        rows[n] = *reinterpret_cast<const float4*>(atoms.rows + size_t{shared.ids[i + n]} * atoms.stride + c);
#pragma unroll
      for (unsigned n = 0; n < kAtOnce; ++n) subtract(shared.x_float[i + n], rows[n]);
    }
    for (; i < k; ++i)
      subtract(shared.x_float[i],
               *reinterpret_cast<const float4*>(atoms.rows + size_t{shared.ids[i]} * atoms.stride + c));
    *reinterpret_cast<float4*>(residual + c) = value;
    peak = fmaxf(fmaxf(peak, fmaxf(fabsf(value.x), fabsf(value.y))), fmaxf(fabsf(value.z), fabsf(value.w)));
  }
  round_residual(atoms, state, signal, peak, shared.scratch);
}

/// Points `shared` at the arrays and fills in what is known of the signal's k atoms. Ends with a barrier.
__device__ __forceinline__ void load_pursuit(const OmpState& state, size_t signal, unsigned k,
                                             OmpShared& shared) {
  const size_t room = (state.sparsity + 7) / 8 * 8;
  shared.g = dynamic_shared<double>();
  shared.v = shared.g + room, shared.w = shared.v + room;
  shared.x = shared.w + room, shared.z = shared.x + room;
  shared.x_float = reinterpret_cast<float*>(shared.z + room);
  shared.ids = reinterpret_cast<uint32_t*>(shared.x_float + room);
  for (unsigned i = threadIdx.x; i < k; i += kOmpThreads) {
    shared.x[i] = state.x[signal * state.sparsity + i];
    shared.z[i] = state.z[signal * state.sparsity + i];
    shared.ids[i] = state.ids[signal * state.sparsity + i];
  }
  if (k == 0 && threadIdx.x == 0) shared.ids[0] = 0;  // read where there is none, and not used
  __syncthreads();
}

/// A block per signal.
__global__ void __launch_bounds__(kOmpThreads, 8)
    omp_advance(OmpAtoms atoms, OmpState state, OmpRound round) {
  KVCODEC_SHARED_ARRAY(double, lanes, 8);
  KVCODEC_SHARED_ARRAY(double, scalars, 5);
  KVCODEC_SHARED_ARRAY(float, scratch, kOmpWarps);
  KVCODEC_SHARED_ARRAY(float, best, kOmpWarps);
  KVCODEC_SHARED_ARRAY(uint32_t, best_id, kOmpWarps + 1);
  KVCODEC_SHARED_ARRAY(float, along, 1);
  const size_t signal = round.active[blockIdx.x];
  const uint32_t done = state.done[signal];
  const unsigned tiles = (atoms.count + kOmpAtoms - 1) / kOmpAtoms, k = state.counts[signal];
  if (done) return;
  OmpShared shared{};
  shared.lanes = lanes, shared.scalars = scalars, shared.scratch = scratch;
  shared.best = best, shared.best_id = best_id, shared.along = along;
  load_pursuit(state, signal, k, shared);
  const auto stop = [&] {
    if (threadIdx.x == 0) {
      state.done[signal] = 1;
      atomicAdd(round.finished, 1u);
    }
  };
  for (;;) {
    const uint32_t atom = select_atom(atoms, state, signal, round.peaks + size_t{blockIdx.x} * tiles, shared);
    if (atom == kNoAtom) return stop();
    __syncthreads();  // all have read the mask
    if (threadIdx.x == 0) state.excluded[signal * state.mask_words + atom / 32] |= 1u << (atom % 32);
    __syncthreads();
    if (add_atom(atoms, state, signal, atom, k, shared)) break;
  }
  if (k + 1 == state.sparsity) return stop();
  const double energy = state.energies[signal];
  double left = shared.scalars[2];
  if (left <= state.doubt * energy) {
    left = exact_energy(atoms, state, signal, k + 1, shared);
    if (threadIdx.x == 0) state.left[signal] = left;
  }
  if (left <= fmax(state.target, kNoise * kNoise) * energy) return stop();
  find_residual(atoms, state, signal, k + 1, shared);
}

/// A block per signal: refines the coefficients once in double, as lib does.
__global__ void __launch_bounds__(kOmpThreads)
    omp_finish(OmpAtoms atoms, OmpState state, float* coefficients, double* residuals) {
  KVCODEC_SHARED_ARRAY(double, lanes, 8);
  KVCODEC_SHARED_ARRAY(double, scalars, 5);
  const size_t signal = blockIdx.x;
  const unsigned k = state.counts[signal];
  OmpShared shared{};
  shared.lanes = lanes, shared.scalars = scalars;
  load_pursuit(state, signal, k, shared);
  double left = exact_energy(atoms, state, signal, k, shared);
  const double* exact = state.exact + signal * atoms.stride;
  const unsigned lane = threadIdx.x % 8, padded = (k + 7) / 8 * 8;
  for (unsigned first = 0; first < padded; first += kOmpThreads / 8) {
    const unsigned i = first + threadIdx.x / 8;
    double sum = 0;
    if (i < k) {
      const float* row = atoms.rows + size_t{shared.ids[i]} * atoms.stride;
      const unsigned steps = atoms.stride / 8;
#pragma unroll 8
      for (unsigned n = 0; n < steps; ++n)
        sum += static_cast<double>(row[8 * n + lane]) * exact[8 * n + lane];
    }
    sum = sum_of_lanes<8>(sum);
    if (i < padded && lane == 0) shared.g[i] = sum;
  }
  __syncthreads();
  apply_inverse(state.inverse + signal * packed_columns(state.sparsity), k, shared, false);
  const double factor = power_of_two(state.exponents[signal]);
  for (unsigned i = threadIdx.x; i < state.sparsity; i += kOmpThreads) {
    const double value = i < k ? (shared.x[i] + shared.w[i]) * factor : 0;
    coefficients[signal * state.sparsity + i] = static_cast<float>(value);
    if (i >= k) state.ids[signal * state.sparsity + i] = 0;
  }
  if (threadIdx.x == 0) {
    for (unsigned i = 0; i < k; ++i) left -= shared.v[i] * shared.v[i];
    residuals[signal] = sqrt(fmax(left, 0.0)) * factor;
  }
}

// Launchers ---------------------------------------------------------------------------------------

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

Status run_omp_round(const OmpAtoms& atoms, const OmpState& state, const OmpRound& round,
                     const Limits& device, StreamHandle stream) {
  const unsigned tiles = divide_up(atoms.count, kOmpAtoms), rows = divide_up(round.count, kOmpRows);
  if (rows == 0) return 0;
  // One block runs on a multiprocessor at a time: where residuals are few, several share their tiles.
  unsigned parts = static_cast<unsigned>(device.multiprocessors) / rows;
  if (parts > tiles) parts = tiles;
  if (parts == 0) parts = 1;
  const bool resident = peaks_shared_bytes(true, atoms.padded) <= device.shared_bytes;
  const Status status =
      launch(resident ? omp_peaks<true> : omp_peaks<false>, dim3(parts, rows), kPeaksThreads,
             peaks_shared_bytes(resident, atoms.padded), stream, atoms, state, round);
  if (status != 0) return status;
  return launch(omp_advance, round.count, kOmpThreads, omp_shared_bytes(state.sparsity), stream, atoms, state,
                round);
}

Status run_omp_finish(const OmpAtoms& atoms, const OmpState& state, uint32_t count, float* coefficients,
                      double* residuals, StreamHandle stream) {
  return launch(omp_finish, count, kOmpThreads, omp_shared_bytes(state.sparsity), stream, atoms, state,
                coefficients, residuals);
}

}  // namespace kvcodec::cuda
