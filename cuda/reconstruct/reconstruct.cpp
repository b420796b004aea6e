#include "cuda/reconstruct/reconstruct.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "cuda/runtime/device_work.hpp"
#include "lib/core/aligned.hpp"
#include "lib/sparse/dictionary.hpp"

namespace kvcodec::cuda {

/// Ids of up to so many atoms share a word of 32 bits with their weight.
constexpr size_t kNarrowIds = 1 << 16;

/// A row of a grid has kLevelChannels channels of atoms of 8 bits, and more of others.
constexpr size_t kMaxWidth = kMaxGridRows * kLevelChannels;

/// Signals of atoms of 8 bits that are prepared at a time: with 64 pairs each 64 MiB.
constexpr size_t kPreparedAtOnce = size_t{1} << 18;

DeviceReconstructor::DeviceReconstructor(const ByteAtoms& atoms)
    : in_bytes_(true), atoms_(atoms.levels.rows()), width_(atoms.levels.cols()) {
  check_size();
  if (atoms.scales.size() != atoms_) throw failed("{} scales of {} atoms", atoms.scales.size(), atoms_);
  std::vector<int8_t> slices(checked_mul(atoms_, round_up(width_, size_t{kLevelChannels})));
  for (size_t i = 0; i < atoms_; ++i)
    for (size_t c = 0; c < width_; ++c)
      slices[(c / kLevelChannels * atoms_ + i) * kLevelChannels + c % kLevelChannels] = atoms.levels(i, c);
  const Stream stream;
  slices_ = DeviceBuffer<int8_t>(slices, stream);
  scales_ = DeviceBuffer<float>(atoms.scales, stream);
  of_bytes_ = {slices_.data(), scales_.data(), static_cast<uint32_t>(atoms_), static_cast<uint32_t>(width_)};
  stream.synchronize();
}

void DeviceReconstructor::check_size() const {
  if (atoms_ == 0 || atoms_ > UINT32_MAX || width_ == 0 || width_ > kMaxWidth)
    throw failed("a dictionary of {} atoms of {} values; a device takes up to {} of 1 to {}", atoms_, width_,
                 UINT32_MAX, kMaxWidth);
}

/// Device memory of signals with their codes, of so many pairs in all and `limit` of one: 8 bytes for a pair; with atoms of
/// 8 bits as many again, for whole tiles of signals that have the most.
uint64_t DeviceReconstructor::bytes_of(uint64_t signals, uint64_t pairs, uint64_t limit) const {
  const uint64_t prepared =
      in_bytes_ ? round_up(signals, uint64_t{32}) * (round_up(limit, uint64_t{4}) + 1) : 0;
  return signals * (width_ * sizeof(float) + 16) + (pairs + prepared) * 8;
}

void DeviceReconstructor::run(const CodeView& codes, MatrixView<float> out,
                              const Finishing& finishing) const {
  check_fit(codes, out, width_, finishing);
  for (size_t i = 0; in_bytes_ && i < out.rows(); ++i)
    if (codes.offsets[i + 1] - codes.offsets[i] > kMaxLevelPairs)
      throw failed("codes of more than {} pairs", kMaxLevelPairs);
  const Stream stream;
  const uint64_t room = free_bytes() / 2;
  for (size_t first = 0, end = 0; first < out.rows(); first = end) {
    const uint64_t begin = codes.offsets[first];
    uint64_t limit = 0;  // pairs of a signal
    for (; end < out.rows(); ++end) {
      const uint64_t longest = std::max(limit, codes.offsets[end + 1] - codes.offsets[end]);
      if (end > first && bytes_of(end + 1 - first, codes.offsets[end + 1] - begin, longest) > room) break;
      limit = longest;
    }
    if (limit > UINT32_MAX) throw failed("a signal of {} pairs; a device takes up to {}", limit, UINT32_MAX);
    const auto own = codes.offsets.subspan(first, end - first + 1);
    const uint64_t pairs = own.back() - begin;
    std::vector<uint64_t> from_zero(own.begin(), own.end());
    for (uint64_t& offset : from_zero) offset -= begin;
    const DeviceBuffer<uint32_t> ids(codes.ids.subspan(begin, pairs), stream);
    const DeviceBuffer<float> coefficients(codes.coefficients.subspan(begin, pairs), stream);
    const DeviceBuffer<uint64_t> offsets(from_zero, stream);
    const DeviceBuffer<float> gains(
        finishing.gains.empty() ? finishing.gains : finishing.gains.subspan(first, end - first), stream),
        scale(finishing.scale, stream), mean(finishing.mean, stream);
    DeviceBuffer<float> sums(checked_mul(end - first, width_));
    DeviceBuffer<unsigned long long> bad(1);
    bad.fill(0xff, stream);
    const DeviceCodes on_device{
        .ids = ids.data(), .coefficients = coefficients.data(), .offsets = offsets.data()};
    const DeviceFinishing last{gains.data(), scale.data(), mean.data()};
    const DeviceSignals signals{sums.data(), end - first, width_};
    if (in_bytes_)
      run_levels(on_device, limit, last, signals, bad.data(), stream);
    else
      stream.run("reconstruction", run_reconstruct, of_floats_, on_device, last, signals, bad.data());
    download_rows(sums, out.rows(first, end - first), stream);
    const unsigned long long place = downloaded(bad, stream)[0];
    if (place != std::numeric_limits<unsigned long long>::max())
      throw bad_input(
          "the pair at place {} has an id that is not an atom of {}, or a coefficient that is not finite",
          begin + place, atoms_);
  }
}

/// Signals in pieces, so that what is prepared does not grow with them.
void DeviceReconstructor::run_levels(DeviceCodes codes, uint64_t limit, DeviceFinishing finishing,
                                     DeviceSignals signals, unsigned long long* bad,
                                     const Stream& stream) const {
  const Limits device = limits();
  const size_t all = signals.count, at_once = std::min(kPreparedAtOnce, all);
  const size_t quads = std::max<size_t>((limit + 3) / 4, 1), room = round_up(at_once, 32) * quads * 4;
  const bool narrow = atoms_ <= kNarrowIds;
  DeviceBuffer<uint32_t> pairs(narrow ? room : 0), ids(narrow ? 0 : room), used(at_once);
  DeviceBuffer<int32_t> weights(narrow ? 0 : room);
  DeviceBuffer<float> units(at_once);
  const LevelCodes prepared{pairs.data(), ids.data(),  weights.data(),
                            units.data(), used.data(), static_cast<uint32_t>(quads)};
  for (; codes.first < all; codes.first += at_once) {
    signals.count = std::min(at_once, all - codes.first);
    stream.run("weights", run_prepare_levels, of_bytes_, codes, signals.count, prepared, bad);
    stream.run("sums of levels", run_combine_levels, of_bytes_, prepared, finishing, signals, device);
    if (finishing.gains) finishing.gains += at_once;
    signals.out += at_once * signals.stride;
  }
  stream.synchronize();  // what was prepared ends here
}

// Parts that an engine provides ----------------------------------------------------------------------

/// Copies codes there and signals back.
static ReconstructFunction reconstruction(const DeviceWork& device, const Dictionary& dictionary) {
  const auto reconstructor = device.share(dictionary.bytes.empty() ? DeviceReconstructor(dictionary.atoms)
                                                                   : DeviceReconstructor(dictionary.bytes));
  return [&device, reconstructor](const CodeView& codes, MatrixView<float> out, const Finishing& finishing) {
    const auto run = [&] { reconstructor->run(codes, out, finishing); };
    return device.try_run(run, DeviceWork::Bits::same, "sparse: ");
  };
}

void add_reconstruction(const DeviceWork& device) {
  device.offer<ReconstructionOnDevice>("sparse", reconstruction);
}

}  // namespace kvcodec::cuda
