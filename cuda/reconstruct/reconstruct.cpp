#include "cuda/reconstruct/reconstruct.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "cuda/reconstruct/reconstruct.cuh"
#include "cuda/runtime/device_work.hpp"
#include "cuda/runtime/packed.hpp"
#include "cuda/runtime/runtime.hpp"
#include "lib/core/aligned.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/entropy/pack.hpp"
#include "lib/sparse/dictionary.hpp"
#include "lib/sparse/reconstruct.hpp"

namespace kvcodec::cuda {
namespace {

/// Ids of up to so many atoms share a word of 32 bits with their weight.
constexpr size_t kNarrowIds = 1 << 16;

/// A row of a grid has kLevelChannels channels of atoms of 8 bits, and more of others.
constexpr size_t kMostWidth = kMostGridRows * kLevelChannels;

/// Signals of atoms of 8 bits that are prepared at a time: with 64 pairs each 64 MiB.
constexpr size_t kPreparedAtOnce = size_t{1} << 18;

SignalType signal_type(DType type) {
  if (type == DType::f32) return SignalType::f32;
  if (type == DType::f16) return SignalType::f16;
  if (type == DType::bf16) return SignalType::bf16;
  throw failed("signals of type {}", name_of(type));
}

/// A packed stream in whole words; kernels read the word behind an element too.
std::vector<uint32_t> words_of(std::span<const uint8_t> bytes) {
  std::vector<uint32_t> words(bytes.size() / 4 + 2);
  std::ranges::copy(bytes, reinterpret_cast<uint8_t*>(words.data()));
  return words;
}

/// Codes in device memory.
struct UploadedCodes {
  DeviceBuffer<uint32_t> ids, words;
  DeviceBuffer<float> coefficients, numbers;
  DeviceBuffer<uint16_t> halves;
  DeviceBuffer<uint8_t> scales;
  DeviceBuffer<uint64_t> offsets;
  DeviceCodes codes;
  size_t most_pairs = 0;  // of a signal

  UploadedCodes(const CodeView& view, const Stream& stream)
      : ids(view.ids, stream), coefficients(view.coefficients, stream), offsets(view.offsets, stream) {
    codes.ids = ids.data(), codes.coefficients = coefficients.data(), codes.offsets = offsets.data();
    for (size_t i = 0; i < view.signals(); ++i)
      most_pairs = std::max<size_t>(most_pairs, view.offsets[i + 1] - view.offsets[i]);
  }

  UploadedCodes(const PackedCodes& packed, const Stream& stream)
      : halves(packed.coefficients, stream), scales(packed.scales, stream), most_pairs(packed.s) {
    const std::vector<uint32_t> id_words = words_of(packed.ids), coefficient_words = words_of(packed.words);
    ids = DeviceBuffer<uint32_t>(id_words, stream);
    codes.packed = ids.data(), codes.bits = packed.width;
    if (packed.coefficients.empty()) {
      words = DeviceBuffer<uint32_t>(coefficient_words, stream);
      numbers.resize(512);
      numbers.upload(packed.numbers, stream);
      numbers.upload(packed.scale_numbers, stream, 256);
      codes.words = words.data(), codes.word_bits = packed.word_width;
      codes.numbers = numbers.data(), codes.signal_scales = scales.data();
    } else {
      codes.half_coefficients = halves.data();
    }
    codes.each = static_cast<uint32_t>(packed.s);
    stream.synchronize();  // the words end here
  }
};

struct UploadedFinishing {
  DeviceBuffer<float> gains, scale, mean;
  DeviceFinishing finishing;

  UploadedFinishing(const Finishing& given, const Stream& stream)
      : gains(given.gains, stream), scale(given.scale, stream), mean(given.mean, stream) {
    if (!given.gains.empty()) finishing.gains = gains.data();
    if (!given.scale.empty()) finishing.scale = scale.data();
    if (!given.mean.empty()) finishing.mean = mean.data();
  }
};

}  // namespace

struct DeviceReconstructor::Impl {
  AtomType type = AtomType::f32;
  size_t atoms = 0, width = 0, stride = 0;
  DeviceBuffer<uint8_t> rows;
  DeviceBuffer<int8_t> slices;  // of atoms of 8 bits, instead of rows
  DeviceBuffer<float> scales;

  bool in_bytes() const { return scales.size() > 0; }
  DeviceAtoms floats() const {
    return {rows.data(), static_cast<uint32_t>(atoms), static_cast<uint32_t>(width),
            static_cast<uint32_t>(stride)};
  }
  DeviceLevels levels() const {
    return {slices.data(), scales.data(), static_cast<uint32_t>(atoms), static_cast<uint32_t>(width)};
  }

  void check_size() const {
    if (atoms == 0 || atoms > UINT32_MAX || width == 0 || width > kMostWidth)
      throw failed("a dictionary of {} atoms of {} values; a device takes up to {} of 1 to {}", atoms, width,
                   UINT32_MAX, kMostWidth);
  }

  void check_finishing(const Finishing& finishing, size_t signals) const {
    const auto fits = [](std::span<const float> values, size_t wanted) {
      return values.empty() || values.size() == wanted;
    };
    if (!fits(finishing.gains, signals) || !fits(finishing.scale, width) || !fits(finishing.mean, width))
      throw failed("{} gains, {} scales and {} means for {} signals of width {}", finishing.gains.size(),
                   finishing.scale.size(), finishing.mean.size(), signals, width);
  }

  void check(const CodeView& codes, size_t rows_out, size_t cols, const Finishing& finishing) const {
    if (codes.offsets.empty()) throw failed("codes without offsets: there is one more than signals");
    if (cols != width || rows_out != codes.signals())
      throw failed("codes of {} signals of width {} do not fit an output ({}, {})", codes.offsets.size() - 1,
                   width, rows_out, cols);
    check_finishing(finishing, rows_out);
    if (!std::ranges::is_sorted(codes.offsets) || codes.offsets.back() > codes.ids.size() ||
        codes.offsets.back() > codes.coefficients.size())
      throw bad_input("codes are shorter than their offsets say");
  }

  void check(const PackedCodes& codes, size_t rows_out, size_t cols, const Finishing& finishing) const {
    const size_t pairs = checked_mul(rows_out, codes.s);
    const bool halves = codes.words.empty();
    if (codes.s == 0 || codes.s > UINT32_MAX || cols != width ||
        (halves && codes.coefficients.size() != pairs))
      throw failed("{} coefficients of {} per signal do not fit an output ({}, {}) of width {}",
                   codes.coefficients.size(), codes.s, rows_out, cols, width);
    check_finishing(finishing, rows_out);
    if (codes.width > 32) throw failed("packed ids of {} bits; at most 32 are expected", codes.width);
    if (codes.ids.size() < packed_bytes(pairs, codes.width))
      throw bad_input("{} packed bytes for {} ids of {} bits", codes.ids.size(), pairs, codes.width);
    if (halves) return;
    if (!codes.coefficients.empty() || codes.word_width == 0 || codes.word_width > 8 ||
        codes.numbers.size() != 256 || codes.scale_numbers.size() != 256 || codes.scales.size() != rows_out)
      throw failed("coefficients of {} bits with {} numbers, {} scales of {} signals and {} numbers of those",
                   codes.word_width, codes.numbers.size(), codes.scales.size(), rows_out,
                   codes.scale_numbers.size());
    if (codes.words.size() < packed_bytes(pairs, codes.word_width))
      throw bad_input("{} packed bytes for {} coefficients of {} bits", codes.words.size(), pairs,
                      codes.word_width);
  }

  /// Signals in pieces, so that what is prepared does not grow with them.
  void run_levels(const UploadedCodes& uploaded, const DeviceFinishing& finishing,
                  const DeviceSignals& signals, size_t element_bytes, unsigned long long* bad,
                  const Stream& stream) const {
    if (uploaded.most_pairs > kMostLevelPairs)
      throw failed("a signal of {} pairs; sums over atoms of 8 bits take up to {} on a device",
                   uploaded.most_pairs, kMostLevelPairs);
    const Limits device = limits();
    const size_t at_once = std::min(kPreparedAtOnce, signals.count);
    const size_t quads = std::max<size_t>((uploaded.most_pairs + 3) / 4, 1);
    const size_t room = round_up(at_once, 32) * quads * 4;
    const bool narrow = atoms <= kNarrowIds;
    DeviceBuffer<uint32_t> pairs(narrow ? room : 0), ids(narrow ? 0 : room), used(at_once);
    DeviceBuffer<int32_t> weights(narrow ? 0 : room);
    DeviceBuffer<float> units(at_once);
    LevelCodes prepared;
    prepared.pairs = narrow ? pairs.data() : nullptr;
    prepared.ids = ids.data(), prepared.weights = weights.data(), prepared.units = units.data();
    prepared.used = used.data(), prepared.quads = static_cast<uint32_t>(quads);
    for (size_t first = 0; first < signals.count; first += at_once) {
      DeviceCodes codes = uploaded.codes;
      DeviceFinishing last = finishing;
      DeviceSignals some = signals;
      some.count = std::min(at_once, signals.count - first);
      some.out = static_cast<uint8_t*>(signals.out) + first * signals.stride * element_bytes;
      if (last.gains) last.gains += first;
      codes.first = first;
      cuda::check(run_prepare_levels(levels(), codes, some.count, prepared, bad, stream.handle()), "weights");
      cuda::check(
          run_combine_levels(levels(), prepared, last, some, static_cast<unsigned>(device.multiprocessors),
                             device.shared_bytes, stream.handle()),
          "sums of levels");
    }
    stream.synchronize();  // what was prepared ends here
  }

  template <class Codes, class T>
  void run(const Codes& codes, DType out_type, MatrixView<T> out, const Finishing& given) const {
    check(codes, out.rows(), out.cols(), given);
    const Stream stream;
    const UploadedCodes uploaded(codes, stream);
    const UploadedFinishing finishing(given, stream);
    constexpr unsigned long long kNone = std::numeric_limits<unsigned long long>::max();
    DeviceBuffer<T> device_out(checked_mul(out.rows(), width));
    DeviceBuffer<unsigned long long> bad(1);
    bad.fill(0xff, stream);
    if (uploaded.most_pairs > UINT32_MAX)
      throw failed("a signal of {} pairs; a device takes up to {}", uploaded.most_pairs, UINT32_MAX);
    const DeviceSignals signals{device_out.data(), signal_type(out_type), out.rows(), width};
    if (in_bytes())
      run_levels(uploaded, finishing.finishing, signals, sizeof(T), bad.data(), stream);
    else
      cuda::check(run_reconstruct(type, floats(), uploaded.codes, finishing.finishing, signals, bad.data(),
                                  stream.handle()),
                  "reconstruction");
    unsigned long long place = kNone;
    bad.download({&place, 1}, stream);
    download_rows(device_out, out, stream);
    if (place != kNone)
      throw bad_input(
          "the pair at place {} has an id that is not an atom of {}, or a coefficient that is not finite",
          place, atoms);
  }
};

DeviceReconstructor::DeviceReconstructor(MatrixView<const float> atoms, DType type)
    : impl_(std::make_unique<Impl>()) {
  if (type != DType::f32 && type != DType::f16 && type != DType::bf16)
    throw failed("atoms on a device are f32, bf16 or f16");
  Impl& own = *impl_;
  own.type = type == DType::f32 ? AtomType::f32 : type == DType::f16 ? AtomType::f16 : AtomType::bf16;
  own.atoms = atoms.rows(), own.width = atoms.cols(), own.stride = round_up(own.width, 8);
  own.check_size();
  const size_t bytes = type == DType::f32 ? 4 : 2;
  std::vector<uint8_t> rows(checked_mul(checked_mul(own.atoms, own.stride), bytes));
  std::vector<uint16_t> halves(own.width);
  for (size_t i = 0; i < own.atoms; ++i) {
    uint8_t* row = rows.data() + i * own.stride * bytes;
    if (type == DType::f32) {
      std::memcpy(row, atoms.row(i).data(), own.width * bytes);
    } else {
      narrow(type, atoms.row(i), halves);
      std::memcpy(row, halves.data(), own.width * bytes);
    }
  }
  const Stream stream;
  own.rows = DeviceBuffer<uint8_t>(rows, stream);
  stream.synchronize();
}

DeviceReconstructor::DeviceReconstructor(const ByteAtoms& atoms) : impl_(std::make_unique<Impl>()) {
  Impl& own = *impl_;
  own.atoms = atoms.levels.rows(), own.width = atoms.levels.cols();
  own.check_size();
  if (atoms.scales.size() != own.atoms) throw failed("{} scales of {} atoms", atoms.scales.size(), own.atoms);
  std::vector<int8_t> slices(checked_mul(own.atoms, round_up(own.width, size_t{kLevelChannels})));
  for (size_t i = 0; i < own.atoms; ++i)
    for (size_t c = 0; c < own.width; ++c)
      slices[(c / kLevelChannels * own.atoms + i) * kLevelChannels + c % kLevelChannels] = atoms.levels(i, c);
  const Stream stream;
  own.slices = DeviceBuffer<int8_t>(slices, stream);
  own.scales = DeviceBuffer<float>(atoms.scales, stream);
  stream.synchronize();
}

DeviceReconstructor::~DeviceReconstructor() = default;
DeviceReconstructor::DeviceReconstructor(DeviceReconstructor&&) noexcept = default;
DeviceReconstructor& DeviceReconstructor::operator=(DeviceReconstructor&&) noexcept = default;
size_t DeviceReconstructor::atoms() const { return impl_->atoms; }
size_t DeviceReconstructor::width() const { return impl_->width; }

void DeviceReconstructor::run(const CodeView& codes, MatrixView<float> out,
                              const Finishing& finishing) const {
  impl_->run(codes, DType::f32, out, finishing);
}
void DeviceReconstructor::run(const CodeView& codes, DType type, MatrixView<uint16_t> out,
                              const Finishing& finishing) const {
  if (type == DType::f32) throw failed("signals of type f32 in 16 bits");
  impl_->run(codes, type, out, finishing);
}
void DeviceReconstructor::run(const PackedCodes& codes, MatrixView<float> out,
                              const Finishing& finishing) const {
  impl_->run(codes, DType::f32, out, finishing);
}
void DeviceReconstructor::run(const PackedCodes& codes, DType type, MatrixView<uint16_t> out,
                              const Finishing& finishing) const {
  if (type == DType::f32) throw failed("signals of type f32 in 16 bits");
  impl_->run(codes, type, out, finishing);
}

// What an engine hands out ------------------------------------------------------------------------

namespace {

/// Pairs of a signal, beyond which sums over atoms of 8 bits are the CPU's.
constexpr uint64_t kMostPairs = 512;

class Reconstruction final : public ReconstructionEngine {
 public:
  Reconstruction(const DeviceWork& device, DeviceReconstructor reconstructor, bool in_bytes)
      : device_(device), reconstructor_(device.share(std::move(reconstructor))), in_bytes_(in_bytes) {}

  /// Copies codes there and signals back, as many signals at a time as fit.
  bool run(const CodeView& codes, MatrixView<float> out, const Finishing& finishing) const override {
    if (codes.offsets.empty() || out.rows() != codes.signals()) return false;
    for (size_t i = 0; in_bytes_ && i < out.rows(); ++i)
      if (codes.offsets[i + 1] - codes.offsets[i] > kMostPairs) {
        device_.fall_back(fmt::format("sparse: codes of more than {} pairs", kMostPairs));
        return false;
      }
    const auto run = [&] {
      const uint64_t room = free_bytes() / 2;
      for (size_t first = 0; first < out.rows();) {
        const uint64_t begin = codes.offsets[first];
        size_t end = first;
        uint64_t most = 0;  // pairs of a signal
        while (end < out.rows()) {
          most = std::max(most, codes.offsets[end + 1] - codes.offsets[end]);
          const size_t signals = end + 1 - first;
          if (signals > 1 && bytes_of(signals, codes.offsets[end + 1] - begin, most, out.cols()) > room)
            break;
          ++end;
        }
        const uint64_t pairs = codes.offsets[end] - begin;
        if (codes.offsets[end] < begin || codes.offsets[end] > codes.ids.size() ||
            codes.offsets[end] > codes.coefficients.size())
          throw bad_input("offsets lead beyond the pairs");
        std::vector<uint64_t> offsets;
        for (size_t i = first; i <= end; ++i) offsets.push_back(codes.offsets[i] - begin);
        Finishing part = finishing;
        if (!part.gains.empty()) part.gains = part.gains.subspan(first, end - first);
        reconstructor_->run(
            {codes.ids.subspan(begin, pairs), codes.coefficients.subspan(begin, pairs), offsets},
            out.rows(first, end - first), part);
        first = end;
      }
    };
    return device_.try_run(run) == Outcome::done;
  }

 private:
  /// What signals take on the device with their codes, of so many pairs in all and `most` of one: 8 bytes for
  /// a pair; with atoms of 8 bits as many again, for whole tiles of signals that have the most.
  uint64_t bytes_of(uint64_t signals, uint64_t pairs, uint64_t most, uint64_t width) const {
    const uint64_t prepared =
        in_bytes_ ? round_up(signals, uint64_t{32}) * (round_up(most, uint64_t{4}) + 1) : 0;
    return signals * (width * sizeof(float) + 16) + (pairs + prepared) * 8;
  }

  const DeviceWork& device_;
  std::shared_ptr<const DeviceReconstructor> reconstructor_;
  bool in_bytes_;
};

std::unique_ptr<ReconstructionEngine> reconstruction_engine(const DeviceWork& device,
                                                            const Dictionary& dictionary) {
  const bool in_bytes = !dictionary.bytes.empty();
  auto made = device.try_make("sparse", [&] {
    return in_bytes ? DeviceReconstructor(dictionary.bytes) : DeviceReconstructor(dictionary.atoms);
  });
  if (!made) return nullptr;
  return std::make_unique<Reconstruction>(device, std::move(*made), in_bytes);
}

}  // namespace

void add_reconstruction(Engine& engine, const DeviceWork& device) {
  engine.add<ReconstructionEngine>(std::bind_front(reconstruction_engine, std::cref(device)));
}

}  // namespace kvcodec::cuda
