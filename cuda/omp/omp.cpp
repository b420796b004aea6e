#include "cuda/omp/omp.hpp"

#include <algorithm>
#include <memory>

#include "cuda/runtime/device_work.hpp"
#include "lib/core/aligned.hpp"
#include "lib/sparse/dictionary.hpp"
#include "lib/sparse/omp_decisions.hpp"

namespace kvcodec::cuda {

/// Up to which the sums of norms are within the bounds' slack (omp.cu).
constexpr size_t kMaxWidth = size_t{1} << 15;

/// Rounds of a batch go on with those signals alone that are not done once an eighth of them is: fewer would
/// not be worth the copy.
constexpr size_t kDoneToSort = 8;

/// Without a target on errors signals take all their atoms, but for few: after so many rounds it is looked at
/// how many are done. With one it is after each. The host waits for that.
constexpr size_t kRoundsUnseen = 8;

/// A grid has at most kMaxGridRows rows of tiles; signals of a batch stay far below.
constexpr size_t kMaxAtOnce = size_t{1} << 20;

static size_t mask_words(size_t atoms) { return (atoms + 31) / 32; }
static size_t tiles_of(size_t atoms) { return (atoms + kOmpAtoms - 1) / kOmpAtoms; }

/// Bytes of device memory for each signal of a batch, codes included.
static uint64_t bytes_per_signal(const OmpDictionary& dictionary, size_t s) {
  const OmpAtoms atoms = dictionary.device();
  return uint64_t{atoms.width} * 4 + uint64_t{atoms.stride} * (2 * 4 + 8) + uint64_t{atoms.padded} * 2 +
         packed_columns(s) * 8 + s * (2 * 8 + 2 * 4) + mask_words(atoms.count) * 4 +
         tiles_of(atoms.count) * sizeof(OmpPeak) + 64;
}

OmpDictionary::OmpDictionary(MatrixView<const float> atoms) {
  check_atoms(atoms);
  assign(atoms, Stream());
}

void OmpDictionary::resize(size_t n, size_t m) {
  if (n == 0 || n >= size_t{1} << 31 || m == 0 || m > kMaxWidth)
    throw failed("a dictionary of {} atoms of {} values; a device takes up to 2^31 of 1 to {}", n, m,
                 kMaxWidth);
  const size_t stride = round_up(m, kOmpFloats), padded = round_up(m, kOmpStep);
  atoms_ = {.rows = rows_.sized(checked_mul(n, stride)),
            .rough = rough_.sized(checked_mul(n, padded)),
            .energies = energies_.sized(n),
            .largest = largest_.sized(2),
            .count = static_cast<uint32_t>(n),
            .width = static_cast<uint32_t>(m),
            .stride = static_cast<uint32_t>(stride),
            .padded = static_cast<uint32_t>(padded)};
}

bool gram_pays(const OmpDictionary& dictionary, uint64_t signals, int64_t s) {
  // n^2 m multiplications and additions at some 10 T/s, against s^2 / 2 rows of m floats of each signal at
  // some 6 TB/s; and memory that can be spared.
  const auto n = static_cast<double>(dictionary.device().count), each = static_cast<double>(s);
  return static_cast<double>(signals) * each * each > 0.3 * n * n &&
         (dictionary.device().gram || 4 * n * n <= static_cast<double>(free_bytes() / 4));
}

size_t OmpBatches::at_once(const OmpDictionary& dictionary, const OmpOptions& options, size_t count) const {
  const uint64_t each = bytes_per_signal(dictionary, static_cast<size_t>(options.sparsity));
  const size_t fits = static_cast<size_t>((free_bytes() + held_) / 2 / each);
  // Every multiprocessor has two tiles of residuals, so that one that is done early does not wait long.
  const size_t whole = 2 * kOmpRows * static_cast<size_t>(std::max(limits().multiprocessors, 1));
  const size_t wanted = std::min({whole, kMaxAtOnce, std::max<size_t>(count, 1)});
  if (fits == 0)
    throw OutOfMemory(
        fmt::format("a signal takes {} bytes of device memory, more than half of what is free", each));
  return std::min(wanted, fits);
}

void OmpBatches::run(const OmpDictionary& dictionary, const OmpOptions& options, const OmpSignals& signals,
                     OmpCodes& codes, const Stream& stream) {
  const OmpAtoms atoms = dictionary.device();
  const auto s = static_cast<size_t>(options.sparsity);
  const size_t count = signals.count, words = mask_words(atoms.count);
  const OmpState state{.signals = signals_.sized(count * atoms.stride),
                       .residuals = residuals_.sized(count * atoms.stride),
                       .exact = exact_.sized(count * atoms.stride),
                       .rough = rough_.sized(count * atoms.padded),
                       .factors = factors_.sized(count),
                       .norms = norms_.sized(count),
                       .errors = errors_.sized(count),
                       .excluded = excluded_.sized(count * words),
                       .inverse = inverse_.sized(checked_mul(count, packed_columns(s))),
                       .x = x_.sized(count * s),
                       .z = z_.sized(count * s),
                       .energies = energies_.sized(count),
                       .left = left_.sized(count),
                       .exponents = exponents_.sized(count),
                       .ids = codes.ids.sized(count * s),
                       .counts = codes.counts.sized(count),
                       .done = done_.sized(count),
                       .mask_words = static_cast<uint32_t>(words),
                       .sparsity = static_cast<uint32_t>(s),
                       .target = options.error_target * options.error_target,
                       .doubt = options.error_target > 0 ? kEnergyDoubtForTarget : kEnergyDoubt};
  active_.resize(count), flags_.resize(2);
  OmpRound round{.active = active_.data(),
                 .peaks = peaks_.sized(checked_mul(count, tiles_of(atoms.count))),
                 .finished = flags_.data() + 1};
  codes.coefficients.resize(count * s), codes.residuals.resize(count);
  held_ = std::max(held_, count * bytes_per_signal(dictionary, s));

  std::vector<uint32_t> active = numbers_below<uint32_t>(count), done(count);
  active_.upload(active, stream);
  constexpr uint32_t kNone = 0xffffffffu;
  uint32_t flags[2] = {kNone, 0};  // a signal that is not finite; how many became done
  flags_.upload(flags, stream);
  const auto rows = static_cast<uint32_t>(count);
  stream.run("signals", run_omp_begin, atoms, state, signals.rows, rows, flags_.data());
  done_.download(done, stream);
  flags_.download(flags, stream);
  stream.synchronize();
  if (flags[0] != kNone)
    throw bad_input("signal {} has values that are not finite", signals.first + flags[0]);

  const Limits device = limits();
  const auto sort = [&] {  // signals that are not done, in their order
    std::erase_if(active, [&](uint32_t i) { return done[i] != 0; });
    active_.upload(active, stream);
    flags[1] = 0;
    flags_.upload(flags, stream);
  };
  sort();
  const size_t unseen = options.error_target > 0 ? 1 : kRoundsUnseen;
  // A round takes an atom for a signal or ends it: after s of them all are done.
  for (size_t taken = 1; taken <= s && !active.empty(); ++taken) {
    const auto left = round.count = static_cast<uint32_t>(active.size());
    stream.run("pursuit", run_omp_round, atoms, state, round, device);
    if (taken % unseen != 0 || taken == s) continue;
    flags_.download(flags, stream);
    stream.synchronize();
    if (flags[1] != left && flags[1] < left / kDoneToSort + 1) continue;
    done_.download(done, stream);
    stream.synchronize();
    sort();
  }
  stream.run("coefficients", run_omp_finish, atoms, state, rows, codes.coefficients.data(),
             codes.residuals.data());
  stream.synchronize();  // `active` and `flags` end here
}

SparseCodes sparse_codes(const OmpDictionary& dictionary, MatrixView<const float> signals,
                         const OmpOptions& options) {
  OmpBatches::check(dictionary, options);
  if (signals.cols() != dictionary.device().width)
    throw failed("signals of {} values do not fit a dictionary of width {}", signals.cols(),
                 dictionary.device().width);
  const auto s = static_cast<size_t>(options.sparsity);
  SparseCodes codes{{signals.rows(), s}, {signals.rows(), s}, {}, {}};
  codes.counts.resize(signals.rows());
  codes.residuals.resize(signals.rows());
  const Stream stream;
  OmpBatches batches;
  OmpCodes on_device;
  DeviceBuffer<float> given;
  const size_t at_once = batches.at_once(dictionary, options, signals.rows());
  for (size_t first = 0; first < signals.rows(); first += at_once) {
    const size_t count = std::min(at_once, signals.rows() - first);
    given.resize(count * signals.cols());
    const PackedRows packed(signals.rows(first, count));
    given.upload(packed.values(), stream);
    batches.run(dictionary, options, {given.data(), count, first}, on_device, stream);
    on_device.ids.download({codes.ids.row(first).data(), count * s}, stream);
    on_device.coefficients.download({codes.coefficients.row(first).data(), count * s}, stream);
    on_device.counts.download(std::span(codes.counts).subspan(first, count), stream);
    on_device.residuals.download(std::span(codes.residuals).subspan(first, count), stream);
    stream.synchronize();
  }
  return codes;
}

// Parts that an engine provides ----------------------------------------------------------------------

/// Copies signals there and codes back, some tens of thousands at a time.
static PursuitFunction pursuit(const DeviceWork& device, const Dictionary& dictionary) {
  // Beside atoms kept in 8 bits others need not be there.
  const auto atoms = dictionary.bytes.empty() ? std::make_shared<OmpDictionary>(dictionary.atoms)
                                              : std::make_shared<OmpDictionary>(floats_of(dictionary.bytes));
  // Looked at by one thread at a time; inner products of atoms are about speed only. coded: signals so far.
  return [&device, atoms, coded = uint64_t{0}](MatrixView<const float> signals, const OmpOptions& options,
                                               SparseCodes& codes) mutable {
    if (options.sparsity > int64_t{kOmpMaxTaken}) {
      device.fall_back(fmt::format("sparse: pursuits of {} atoms per signal", options.sparsity));
      return false;
    }
    const auto run = [&] {
      coded += signals.rows();
      if (gram_pays(*atoms, coded, options.sparsity)) atoms->build_gram(Stream());
      codes = sparse_codes(*atoms, signals, options);
    };
    return device.try_run(run);
  };
}

void add_pursuit(const DeviceWork& device) { device.offer<PursuitOnDevice>("sparse: pursuit", pursuit); }

}  // namespace kvcodec::cuda
