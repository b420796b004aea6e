// Products in bf16 where the machine has them; elsewhere that they are refused with a reason.
#include "lib/linalg/bf16_gemm.hpp"

#include <cmath>
#include <map>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/model/llama.hpp"
#include "lib/model/llama_weights.hpp"
#include "test/test.hpp"
#include "test/unit/naive_llama.hpp"

using namespace kvcodec;

namespace {

Matrix<uint16_t> random_bf16(size_t rows, size_t cols, Rng& rng) {
  Matrix<uint16_t> matrix(rows, cols);
  for (size_t i = 0; i < rows; ++i)
    for (uint16_t& value : matrix.row(i)) value = bf16_from_float(static_cast<float>(rng.normal()));
  return matrix;
}

Matrix<float> random_floats(size_t rows, size_t cols, Rng& rng) {
  Matrix<float> matrix(rows, cols);
  for (size_t i = 0; i < rows; ++i)
    for (float& value : matrix.row(i)) value = static_cast<float>(rng.normal());
  return matrix;
}

/// The same tensors as floats.
class Widened final : public WeightSource {
 public:
  explicit Widened(const WeightSource& source) : source_(source) {}
  const TensorView* find(std::string_view name) const override {
    const TensorView* const original = source_.find(name);
    if (!original) return nullptr;
    auto& [values, view] = copies_[std::string(name)];
    values = read_floats(*original);
    view = *original;
    view.type = TensorType::f32;
    view.bytes = std::as_bytes(std::span(values));
    return &view;
  }
  std::string name() const override { return "widened"; }

 private:
  const WeightSource& source_;
  mutable std::map<std::string, std::pair<std::vector<float>, TensorView>> copies_;
};

/// Keys and values of all layers, one behind the other.
struct Cache final : PrefillSink {
  void layer(const LayerChunk& chunk) override {
    for (const auto& rows : {chunk.key, chunk.value})
      for (size_t i = 0; i < rows.rows(); ++i)
        values.insert(values.end(), rows.row(i).begin(), rows.row(i).end());
  }
  std::vector<float> values;
};

std::vector<float> cache_of(const ModelConfig& config, const WeightSource& weights, Compute compute,
                            std::span<const uint32_t> tokens, uint64_t keep_bytes = 0) {
  LlamaModel model(config, weights);
  model.compute_in(compute, keep_bytes);
  const std::vector<uint64_t> offsets = {0, tokens.size()};
  Cache cache;
  model.prefill({tokens, offsets}, {}, cache);
  return cache.values;
}

double relative_error(const std::vector<float>& found, const std::vector<float>& expected) {
  double error = 0, size = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    error += std::pow(static_cast<double>(found[i]) - static_cast<double>(expected[i]), 2);
    size += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(error / size);
}

/// Elements of out that are not x op(w), and before if that was added, as far as floats can be; columns behind those of the
/// product are as they were.
size_t wrong_of(MatrixView<const uint16_t> x, MatrixView<const uint16_t> w, bool turned, bool add,
                MatrixView<const float> before, MatrixView<const float> out) {
  const size_t columns = turned ? w.rows() : w.cols();
  size_t wrong = 0;
  for (size_t i = 0; i < out.rows(); ++i)
    for (size_t j = 0; j < out.cols(); ++j) {
      double sum = j < columns && !add ? 0 : static_cast<double>(before(i, j)), magnitude = std::abs(sum);
      for (size_t c = 0; j < columns && c < x.cols(); ++c) {
        const double term = static_cast<double>(bf16_to_float(x(i, c))) *
                            static_cast<double>(bf16_to_float(turned ? w(j, c) : w(c, j)));
        sum += term, magnitude += std::abs(term);
      }
      // One rounding of a float for each sum.
      const double allowed = (static_cast<double>(x.cols()) + 2) * 0x1p-24 * magnitude;
      wrong += !(std::abs(static_cast<double>(out(i, j)) - sum) <= allowed);
    }
  return wrong;
}

}  // namespace

TEST_CASE(
    "products in bf16: agree with sums in double, with strides, added or not, on one thread or several") {
  Rng rng(3);
  if (!why_no_bf16().empty()) {
    Matrix<float> out(1, 1);
    const Matrix<uint16_t> one = random_bf16(1, 1, rng);
    CHECK_THROWS_WITH_AS(gemm_bf16(one, one, Transpose::yes, false, out),
                         doctest::Contains(why_no_bf16().c_str()), Error);
    MESSAGE("not run: ", why_no_bf16());
    return;
  }
  for (const size_t n : {1, 3, 64, 130})
    for (const size_t m : {1, 17, 256})
      for (const size_t k : {1, 5, 64, 577})
        for (const int way : {0, 1, 2, 3}) {
          const bool turned = way % 2 == 0, add = way >= 2;
          const Matrix<uint16_t> x = random_bf16(n, k + 3, rng),
                                 w = turned ? random_bf16(m, k + 1, rng) : random_bf16(k, m + 1, rng);
          const Matrix<float> before = random_floats(n, m + 2, rng);
          Matrix<float> out = before;
          const auto product = [&] {
            gemm_bf16(x.view().columns(1, k), w.view().columns(0, turned ? k : m),
                      turned ? Transpose::yes : Transpose::no, add, out.view().columns(0, m));
          };
          if (n == 3)
            parallel_for(1, 1, [&](size_t, size_t, int) { product(); });
          else
            product();
          CHECK_EQ(
              wrong_of(x.view().columns(1, k), w.view().columns(0, turned ? k : m), turned, add, before, out),
              0);
        }
  Matrix<float> out(2, 2);
  CHECK_THROWS_AS(gemm_bf16(random_bf16(2, 3, rng), random_bf16(2, 4, rng), Transpose::yes, false, out),
                  Error);
  CHECK_THROWS_AS(gemm_bf16(random_bf16(2, 3, rng), random_bf16(2, 3, rng), Transpose::no, false, out),
                  Error);
}

TEST_CASE("products in bf16 with a packed matrix: as with the matrix, for any number of rows") {
  Rng rng(4);
  if (!why_no_bf16().empty()) {
    CHECK_THROWS_WITH_AS(PackedBf16(random_bf16(1, 1, rng)), doctest::Contains(why_no_bf16().c_str()), Error);
    MESSAGE("not run: ", why_no_bf16());
    return;
  }
  for (const size_t m : {1, 17, 40, 192, 256})
    for (const size_t k : {1, 5, 64, 577, 2100}) {
      const Matrix<uint16_t> w = random_bf16(m, k + 3, rng);
      const PackedBf16 packed(w.view().columns(2, k)), copy = packed;
      CHECK_EQ(packed.rows(), m);
      CHECK_EQ(packed.cols(), k);
      for (const size_t n : {1, 2, 63, 130}) {
        const Matrix<uint16_t> x = random_bf16(n, k, rng);
        const Matrix<float> before = random_floats(n, m, rng);
        for (const bool add : {false, true}) {
          Matrix<float> out = before;
          gemm_bf16(x, copy, add, out);
          CHECK_EQ(wrong_of(x, w.view().columns(2, k), true, add, before, out), 0);
        }
      }
    }
  const PackedBf16 packed(random_bf16(3, 4, rng));
  Matrix<float> out(2, 3), wide(2, 5);
  gemm_bf16(Matrix<uint16_t>(0, 4), packed, false, Matrix<float>(0, 3).view());
  CHECK_THROWS_AS(gemm_bf16(random_bf16(2, 5, rng), packed, false, out), Error);
  CHECK_THROWS_AS(gemm_bf16(random_bf16(2, 4, rng), packed, false, wide), Error);
  CHECK_THROWS_WITH_AS(gemm_bf16(random_bf16(2, 4, rng), packed, false, wide.view().columns(0, 3)),
                       doctest::Contains("gaps"), Error);
  CHECK_THROWS_AS(PackedBf16(random_bf16(0, 4, rng)), Error);
}

TEST_CASE("models in bf16: near those in f32, and the same whatever the weights are stored in") {
  ModelConfig config = test::make_config(2, 288, 2100, 4, 2, 72);
  test::switch_all_on(config);
  Rng rng(5);
  std::vector<uint32_t> tokens(600);
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(rng.below(50));
  const WeightsInMemory stored = test::random_weights(config, DType::bf16, 9);
  if (!why_no_bf16().empty()) {
    LlamaModel model(config, stored);
    CHECK_THROWS_WITH_AS(model.compute_in(Compute::bf16), doctest::Contains(why_no_bf16().c_str()), Error);
    model.compute_in(Compute::f32);
    MESSAGE("not run: ", why_no_bf16());
    return;
  }
  const std::vector<float> in_bf16 = cache_of(config, stored, Compute::bf16, tokens),
                           in_f32 = cache_of(config, stored, Compute::f32, tokens);
  const double error = relative_error(in_bf16, in_f32);
  CHECK_GT(error, 1e-4);  // what bf16 rounds is there
  CHECK_LT(error, 2e-2);
  // As floats they are rounded block by block, to what was stored.
  CHECK_EQ(cache_of(config, Widened(stored), Compute::bf16, tokens), in_bf16);
  // Packed they give the same but for the order of sums, whatever they are stored in; in f32 nothing of it is left.
  const Widened widened(stored);
  const std::vector<float> packed = cache_of(config, stored, Compute::bf16, tokens, uint64_t{1} << 30);
  CHECK_EQ(cache_of(config, widened, Compute::bf16, tokens, uint64_t{1} << 30), packed);
  CHECK_LT(relative_error(packed, in_bf16), error);
  LlamaModel model(config, widened);
  model.compute_in(Compute::bf16, uint64_t{1} << 30);
  CHECK_FALSE(model.weights().layers[0].query.packed.empty());
  model.compute_in(Compute::bf16, 1000);
  CHECK(model.weights().layers[0].query.packed.empty());
  model.compute_in(Compute::bf16, uint64_t{1} << 30);
  model.compute_in(Compute::f32);
  Cache cache;
  const std::vector<uint64_t> offsets = {0, tokens.size()};
  model.prefill({tokens, offsets}, {}, cache);
  CHECK_EQ(cache.values, in_f32);
}
