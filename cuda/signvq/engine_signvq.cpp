#include "cuda/engine_parts.hpp"
#include "cuda/signvq/signvq.hpp"

namespace kvcodec::cuda {
namespace {

class Index final : public SignIndexEngine {
 public:
  Index(const DeviceWork& device, SignIndex index) : device_(device), index_(std::move(index)) {}

  /// Copies a table there and its scores back.
  bool scores(std::span<const SignTable> tables, MatrixView<float> out) const override {
    return device_.run([&] {
      for (size_t i = 0; i < tables.size(); ++i) index_.scores(tables[i], out.row(i));
    });
  }

  /// Copies a table there and k tokens back.
  std::optional<std::vector<Scored>> top_k(const SignTable& table, size_t k, Order order) const override {
    std::vector<Scored> best;
    if (!device_.run([&] { best = index_.top_k(table, k, order); })) return std::nullopt;
    return best;
  }

 private:
  const DeviceWork& device_;
  SignIndex index_;
};

class Signs final : public SignEngine {
 public:
  explicit Signs(const DeviceWork& device) : device_(device) {}

  /// Copies rows there, as many heads at a time as fit, and codebooks back; codes too, which nobody asked
  /// for.
  std::optional<std::vector<SignCodebook>> codebooks(MatrixView<const float> rows,
                                                     size_t heads) const override {
    const size_t dims = heads > 0 ? rows.cols() / heads : 0;
    std::vector<SignCodebook> all;
    const bool done = device_.run([&] {
      const size_t at_once =
          DeviceWork::rows_at_once(rows.rows() * (dims * sizeof(float) + sign_row_bytes(dims)));
      for (size_t first = 0; first < heads; first += at_once) {
        const size_t count = std::min(at_once, heads - first);
        Matrix<float> part(rows.rows(), count * dims);
        for (size_t i = 0; i < part.rows(); ++i)
          std::ranges::copy(rows.row(i).subspan(first * dims, count * dims), part.row(i).begin());
        Matrix<uint8_t> codes(rows.rows(), count * sign_row_bytes(dims));
        for (SignCodebook& codebook : encode_and_build_codebooks(part, count, codes))
          all.push_back(std::move(codebook));
      }
    });
    if (!done) return std::nullopt;
    return all;
  }

  /// Copies codes there, where they stay.
  std::unique_ptr<SignIndexEngine> index(size_t dims, MatrixView<const uint8_t> codes) const override {
    auto made = device_.made("selfindex", [&] {
      SignIndex index(dims);
      index.append(codes);
      return index;
    });
    if (!made) return nullptr;
    return std::make_unique<Index>(device_, std::move(*made));
  }

 private:
  const DeviceWork& device_;
};

}  // namespace

std::unique_ptr<SignEngine> sign_engine(const DeviceWork& device) { return std::make_unique<Signs>(device); }

}  // namespace kvcodec::cuda
