#include "cuda/engine_parts.hpp"
#include "cuda/reconstruct.hpp"

namespace kvcodec::cuda {
namespace {

/// Pairs of a signal, beyond which sums over atoms of 8 bits are the CPU's.
constexpr uint64_t kMostPairs = 512;

class Reconstruction final : public ReconstructionEngine {
 public:
  Reconstruction(const DeviceWork& device, Reconstructor reconstructor, bool in_bytes)
      : device_(device), reconstructor_(std::move(reconstructor)), in_bytes_(in_bytes) {}

  /// Copies codes there and signals back, as many signals at a time as fit.
  bool run(const CodeView& codes, MatrixView<float> out, const Finishing& finishing) const override {
    if (codes.offsets.empty() || out.rows() != codes.signals()) return false;
    for (size_t i = 0; in_bytes_ && i < out.rows(); ++i)
      if (codes.offsets[i + 1] - codes.offsets[i] > kMostPairs) {
        device_.leave(fmt::format("sparse: codes of more than {} pairs", kMostPairs));
        return false;
      }
    return device_.run([&] {
      const uint64_t room = free_bytes() / 2, each = out.cols() * sizeof(float) + sizeof(uint64_t);
      for (size_t first = 0; first < out.rows();) {
        const uint64_t begin = codes.offsets[first];
        size_t end = first + 1;
        while (end < out.rows() &&
               (end + 1 - first) * each + (codes.offsets[end + 1] - begin) * sizeof(uint64_t) <= room)
          ++end;
        if (begin > codes.ids.size() || begin > codes.coefficients.size())
          throw bad_input("offsets lead beyond the pairs");
        std::vector<uint64_t> offsets;
        for (size_t i = first; i <= end; ++i) offsets.push_back(codes.offsets[i] - begin);
        Finishing part = finishing;
        if (!part.gains.empty()) part.gains = part.gains.subspan(first, end - first);
        reconstructor_.run({codes.ids.subspan(begin), codes.coefficients.subspan(begin), offsets},
                           out.rows(first, end - first), part);
        first = end;
      }
    });
  }

 private:
  const DeviceWork& device_;
  Reconstructor reconstructor_;
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
