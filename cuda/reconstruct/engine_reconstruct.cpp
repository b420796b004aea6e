#include "cuda/engine_parts.hpp"
#include "cuda/reconstruct/reconstruct.hpp"
#include "lib/core/aligned.hpp"

namespace kvcodec::cuda {
namespace {

/// Pairs of a signal, beyond which sums over atoms of 8 bits are the CPU's.
constexpr uint64_t kMostPairs = 512;

class Reconstruction final : public ReconstructionEngine {
 public:
  Reconstruction(const DeviceWork& device, Reconstructor reconstructor, bool in_bytes)
      : device_(device), reconstructor_(device.kept(std::move(reconstructor))), in_bytes_(in_bytes) {}

  /// Copies codes there and signals back, as many signals at a time as fit.
  bool run(const CodeView& codes, MatrixView<float> out, const Finishing& finishing) const override {
    if (codes.offsets.empty() || out.rows() != codes.signals()) return false;
    for (size_t i = 0; in_bytes_ && i < out.rows(); ++i)
      if (codes.offsets[i + 1] - codes.offsets[i] > kMostPairs) {
        device_.leave(fmt::format("sparse: codes of more than {} pairs", kMostPairs));
        return false;
      }
    return device_.run([&] {
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
    });
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
  std::shared_ptr<const Reconstructor> reconstructor_;
  bool in_bytes_;
};

}  // namespace

std::unique_ptr<ReconstructionEngine> reconstruction_engine(const DeviceWork& device,
                                                            const Dictionary& dictionary) {
  const bool in_bytes = !dictionary.bytes.empty();
  auto made = device.made(
      "sparse", [&] { return in_bytes ? Reconstructor(dictionary.bytes) : Reconstructor(dictionary.atoms); });
  if (!made) return nullptr;
  return std::make_unique<Reconstruction>(device, std::move(*made), in_bytes);
}

}  // namespace kvcodec::cuda
