// Products in bf16, and with packed matrices, if the machine has them; otherwise their refusal with a reason.
#include "lib/linalg/packed_gemm.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <type_traits>
#include <vector>

#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "lib/model/llama.hpp"
#include "lib/model/llama_weights.hpp"
#include "test/lib/model/naive_llama.hpp"
#include "test/test.hpp"

namespace packed_gemm_test {

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

/// Keys and values of all layers, one after the other.
struct Cache final : PrefillSink {
  void layer(const LayerChunk& chunk) override {
    for (const auto& rows : {chunk.key, chunk.value})
      for (size_t i = 0; i < rows.rows(); ++i)
        values.insert(values.end(), rows.row(i).begin(), rows.row(i).end());
  }
  std::vector<float> values;
};

struct LogitsAndCache final : PrefillSink {
  void layer(const LayerChunk& chunk) override { cache.layer(chunk); }
  void logits(size_t, MatrixView<const float> rows) override {
    for (size_t i = 0; i < rows.rows(); ++i)
      all_logits.insert(all_logits.end(), rows.row(i).begin(), rows.row(i).end());
  }
  Cache cache;
  std::vector<float> all_logits;
};

std::vector<float> cache_of(const ModelConfig& config, const WeightSource& weights, Compute compute,
                            std::span<const uint32_t> tokens, uint64_t keep_bytes = 0) {
  LlamaModel model(config, weights);
  model.compute_in(compute, {.bytes = keep_bytes});
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

float value_of(uint16_t element) { return bf16_to_float(element); }
float value_of(float element) { return element; }

/// x op(w) in double, to compare products of its first rows with.
class ExactProduct {
 public:
  template <class T>
  ExactProduct(MatrixView<const T> x, MatrixView<const T> w, bool turned)
      : terms_(x.cols()),
        sums_(x.rows(), turned ? w.rows() : w.cols()),
        magnitudes_(sums_.rows(), sums_.cols()) {
    // In rows of doubles: without an optimizer most of the time goes into finding an element.
    Matrix<double> left(x.rows(), terms_), right(sums_.cols(), terms_);
    for (size_t i = 0; i < left.rows(); ++i)
      for (size_t c = 0; c < terms_; ++c) left(i, c) = double{value_of(x(i, c))};
    for (size_t j = 0; j < right.rows(); ++j)
      for (size_t c = 0; c < terms_; ++c) right(j, c) = double{value_of(turned ? w(j, c) : w(c, j))};
    for (size_t i = 0; i < left.rows(); ++i)
      for (size_t j = 0; j < right.rows(); ++j) {
        const double *const a = left.row(i).data(), *const b = right.row(j).data();
        double sum = 0, magnitude = 0;
        for (size_t c = 0; c < terms_; ++c) {
          const double term = a[c] * b[c];
          sum += term, magnitude += std::abs(term);
        }
        sums_(i, j) = sum, magnitudes_(i, j) = magnitude;
      }
  }

  /// The number of elements of out that differ from its first rows, plus the earlier content if that was added, by more than float
  /// rounding; columns after those of the product must be unchanged.
  size_t wrong_of(bool add, MatrixView<const float> before, MatrixView<const float> out) const {
    size_t wrong = 0;
    for (size_t i = 0; i < out.rows(); ++i)
      for (size_t j = 0; j < out.cols(); ++j) {
        const bool in_product = j < sums_.cols();
        const double already = in_product && !add ? 0 : double{before(i, j)};
        const double sum = already + (in_product ? sums_(i, j) : 0);
        const double magnitude = std::abs(already) + (in_product ? magnitudes_(i, j) : 0);
        // A rounding of a float for each sum, and for each product that is not fused with one: a product of bf16 is exact. Every term
        // is subject to at most all of them, and 2 stand for those of higher order.
        const double allowed = (static_cast<double>(terms_) + 2) * 0x1p-24 * magnitude;
        wrong += !(std::abs(double{out(i, j)} - sum) <= allowed);
      }
    return wrong;
  }

 private:
  size_t terms_;
  Matrix<double> sums_, magnitudes_;
};

}  // namespace

TEST_CASE("products by oneDNN: a build that has it uses it wherever the processor can") {
  __builtin_cpu_init();
  const bool in_build = KVCODEC_HAVE_ONEDNN;
  CHECK_EQ(packs_floats(), in_build && machine_simd() >= SimdLevel::avx512);
  CHECK_EQ(why_no_bf16().empty(), in_build && __builtin_cpu_supports("avx512bf16"));
}

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
        for (const bool turned : {true, false}) {
          const Matrix<uint16_t> wide_x = random_bf16(n, k + 3, rng),
                                 wide_w = turned ? random_bf16(m, k + 1, rng) : random_bf16(k, m + 1, rng);
          const MatrixView<const uint16_t> x = wide_x.view().columns(1, k),
                                           w = wide_w.view().columns(0, turned ? k : m);
          const ExactProduct expected(x, w, turned);
          const Matrix<float> before = random_floats(n, m + 2, rng);
          for (const bool add : {false, true}) {
            Matrix<float> out = before;
            const auto product = [&] {
              gemm_bf16(x, w, turned ? Transpose::yes : Transpose::no, add, out.view().columns(0, m));
            };
            if (n == 3)
              parallel_for(1, 1, [&](size_t, size_t, int) { product(); });
            else
              product();
            CHECK_EQ(expected.wrong_of(add, before, out), 0);
          }
        }
  Matrix<float> out(2, 2);
  CHECK_THROWS_AS(gemm_bf16(random_bf16(2, 3, rng), random_bf16(2, 4, rng), Transpose::yes, false, out),
                  Error);
  CHECK_THROWS_AS(gemm_bf16(random_bf16(2, 3, rng), random_bf16(2, 3, rng), Transpose::no, false, out),
                  Error);
}

TEST_CASE("products in bf16: a shape that comes again after many others gives the same") {
  if (!why_no_bf16().empty()) return;
  Rng rng(7);
  const Matrix<uint16_t> x = random_bf16(3, 8, rng), w = random_bf16(8, 1500, rng);
  const auto product = [&](size_t columns) {
    Matrix<float> out(3, columns);
    gemm_bf16(x, w.view().columns(0, columns), Transpose::no, false, out);
    return out;
  };
  const Matrix<float> all = product(w.cols());
  const ExactProduct expected(x.view(), w.view(), false);
  for (const int round : {0, 1})
    for (size_t columns = 1; columns <= w.cols(); ++columns) {
      CAPTURE(round);
      const Matrix<float> some = product(columns);
      // The order of sums may depend on the shape.
      REQUIRE_EQ(expected.wrong_of(false, all, some), 0);
    }
  CHECK(std::ranges::equal(product(w.cols()).row(2), all.row(2)));
}

namespace {

template <class T>
struct Elements;
template <>
struct Elements<float> {
  static constexpr DType type = DType::f32;
  static Matrix<float> random(size_t rows, size_t cols, Rng& rng) { return random_floats(rows, cols, rng); }
  static bool packed() { return packs_floats(); }
};
template <>
struct Elements<uint16_t> {
  static constexpr DType type = DType::bf16;
  static Matrix<uint16_t> random(size_t rows, size_t cols, Rng& rng) { return random_bf16(rows, cols, rng); }
  static bool packed() { return why_no_bf16().empty(); }
};

PackedMatrix matrix_of(DType elements, size_t rows, size_t cols) {
  const PackedMatrix::Shape shape{rows, cols};
  return PackedMatrix::of(elements, {&shape, 1}).front();
}

/// Set in pieces of `steps` row steps.
template <class T>
PackedMatrix pack(MatrixView<const T> w, size_t steps) {
  PackedMatrix packed = matrix_of(Elements<T>::type, w.rows(), w.cols());
  const size_t piece = steps * packed.row_step();
  for (size_t first = 0; first < w.rows(); first += piece)
    packed.set(first, w.rows(first, std::min(piece, w.rows() - first)));
  return packed;
}

}  // namespace

TEST_CASE_TEMPLATE("products with a packed matrix: agree with sums in double, for any number of rows", T,
                   float, uint16_t) {
  Rng rng(4);
  constexpr DType kType = Elements<T>::type;
  if (!Elements<T>::packed()) {
    CHECK_THROWS_AS(matrix_of(kType, 1, 1), Error);
    MESSAGE("not run: ", kType == DType::bf16 ? why_no_bf16() : "floats are not packed here");
    return;
  }
  for (const size_t m : {1, 17, 40, 192, 256})
    for (const size_t k : {1, 5, 64, 577, 2100}) {
      const Matrix<T> w = Elements<T>::random(m, k + 3, rng);
      const MatrixView<const T> columns = w.view().columns(2, k);
      const PackedMatrix packed = pack<T>(columns, 1 + k % 3), copy = packed;
      CHECK_EQ(packed.elements(), kType);
      CHECK_EQ(packed.rows(), m);
      CHECK_EQ(packed.cols(), k);
      const Matrix<T> x = Elements<T>::random(130, k, rng);
      const Matrix<float> before = random_floats(x.rows(), m, rng);
      const ExactProduct expected(x.view(), columns, true);
      for (const size_t n : {1, 2, 63, 64, 130})
        for (const bool add : {false, true}) {
          Matrix<float> out(n, m);
          std::copy_n(before.data(), out.size(), out.data());
          gemm_packed(x.view().rows(0, n), copy, add, out);
          CHECK_EQ(expected.wrong_of(add, before, out), 0);
        }
    }
}

TEST_CASE_TEMPLATE("products with a packed matrix: a row is the same beside any others", T, float, uint16_t) {
  if (!Elements<T>::packed()) return;
  Rng rng(6);
  constexpr size_t kRows = 64;
  for (const size_t m : {40, 50, 52, 144, 192, 288, 576, 2048})
    for (const size_t k : {64, 288, 577, 2100, 5632})
      for (const bool add : {false, true}) {
        if (m * k > 5'000'000) continue;  // takes long, and is cut as the others are
        const Matrix<T> w = Elements<T>::random(m, k, rng), x = Elements<T>::random(kRows, k, rng);
        const PackedMatrix packed = pack<T>(w, 1);
        const Matrix<float> before = random_floats(kRows, m, rng);
        Matrix<float> all = before;
        gemm_packed(x.view(), packed, add, all);
        size_t different = 0;
        for (const size_t n : {1, 2, 3, 7, 8, 16, 31, 33, 63}) {
          Matrix<float> last = before;
          gemm_packed(x.view().rows(kRows - n, n), packed, add, last.view().rows(kRows - n, n));
          for (size_t i = kRows - n; i < kRows; ++i)
            different += !std::ranges::equal(last.row(i), all.row(i));
        }
        CHECK_EQ(different, 0);
      }
}

TEST_CASE_TEMPLATE("packed matrices: what does not fit is refused", T, float, uint16_t) {
  if (!Elements<T>::packed()) return;
  Rng rng(8);
  const auto random = [&](size_t rows, size_t cols) { return Elements<T>::random(rows, cols, rng); };
  const PackedMatrix packed = pack<T>(random(3, 4), 1);
  Matrix<float> out(2, 3), wide(2, 5);
  gemm_packed(Matrix<T>(0, 4).view(), packed, false, Matrix<float>(0, 3).view());
  CHECK_THROWS_AS(gemm_packed(random(2, 5).view(), packed, false, out), Error);
  CHECK_THROWS_AS(gemm_packed(random(2, 4).view(), packed, false, wide), Error);
  CHECK_THROWS_WITH_AS(gemm_packed(random(2, 4).view(), packed, false, wide.view().columns(0, 3)),
                       doctest::Contains("gaps"), Error);
  using Other = std::conditional_t<std::is_same_v<T, float>, uint16_t, float>;
  CHECK_THROWS_AS(gemm_packed(Elements<Other>::random(2, 4, rng).view(), packed, false, out), Error);
  CHECK_THROWS_AS(matrix_of(Elements<T>::type, 0, 4), Error);
  CHECK_THROWS_AS(matrix_of(DType::f16, 3, 4), Error);

  PackedMatrix target = matrix_of(Elements<T>::type, 200, 4);
  const size_t step = target.row_step();
  REQUIRE_LT(step, 199);
  target.set(step, random(200 - step, 4));
  CHECK_THROWS_AS(target.set(1, random(step, 4)), Error);
  CHECK_THROWS_AS(target.set(0, random(step - 1, 4)), Error);
  CHECK_THROWS_AS(target.set(step, random(200, 4)), Error);
  CHECK_THROWS_AS(target.set(0, random(step, 5)), Error);
  CHECK_THROWS_AS(target.set(0, random(0, 4)), Error);
  CHECK_THROWS_AS(target.set(0, Elements<Other>::random(step, 4, rng)), Error);
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
  // Packed they give the same except for the order of sums, for any stored type; in f32 there is no difference.
  const Widened widened(stored);
  const std::vector<float> packed = cache_of(config, stored, Compute::bf16, tokens, uint64_t{1} << 30);
  CHECK_EQ(cache_of(config, widened, Compute::bf16, tokens, uint64_t{1} << 30), packed);
  CHECK_LT(relative_error(packed, in_bf16), error);
  LlamaModel model(config, widened);
  model.compute_in(Compute::bf16, {.bytes = uint64_t{1} << 30});
  CHECK_FALSE(model.weights().layers[0].query.packed.empty());
  model.compute_in(Compute::bf16, {.bytes = 1000});
  CHECK(model.weights().layers[0].query.packed.empty());
  model.compute_in(Compute::bf16, {.bytes = uint64_t{1} << 30, .layers = 1, .head = false});
  CHECK_FALSE(model.weights().layers[0].query.packed.empty());
  CHECK(model.weights().layers[1].query.packed.empty());
  CHECK(model.weights().head->packed.empty());
  model.compute_in(Compute::bf16, {.bytes = uint64_t{1} << 30});
  CHECK_FALSE(model.weights().head->packed.empty());
  model.compute_in(Compute::f32);
  Cache cache;
  const std::vector<uint64_t> offsets = {0, tokens.size()};
  model.prefill({tokens, offsets}, {}, cache);
  CHECK_EQ(cache.values, in_f32);
}

TEST_CASE("models with packed floats: those without but for rounding, whatever the threads and the batch") {
  ModelConfig config = test::make_config(2, 288, 2100, 4, 2, 72);
  test::switch_all_on(config);
  Rng rng(5);
  // Documents of which some end within a tile of 64 rows, separately and together.
  const std::vector<uint64_t> offsets = {0, 1, 40, 104, 105, 233, 300, 600};
  std::vector<uint32_t> tokens(offsets.back());
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(rng.below(50));
  constexpr KeepWeights kAll{.bytes = uint64_t{1} << 30};
  for (const DType type : {DType::f32, DType::bf16}) {
    const WeightsInMemory stored = test::random_weights(config, type, 9);
    LlamaModel model(config, stored);
    const auto run = [&](std::span<const uint64_t> places) {
      std::vector<uint64_t> from_zero;
      for (const uint64_t place : places) from_zero.push_back(place - places.front());
      LogitsAndCache result;
      model.prefill({std::span(tokens).subspan(places.front(), from_zero.back()), from_zero},
                    {.chunk = 1024, .logits = LogitRows::all}, result);
      return result;
    };
    const LogitsAndCache plain = run(offsets);
    model.compute_in(Compute::f32, kAll);
    CHECK_EQ(model.weights().layers[0].query.packed.empty(), !packs_floats());
    CHECK_EQ(model.weights().head->packed.empty(), !packs_floats());
    const LogitsAndCache packed = run(offsets);
    CHECK_LT(relative_error(packed.cache.values, plain.cache.values), 1e-6);
    CHECK_LT(relative_error(packed.all_logits, plain.all_logits), 1e-6);
    const int before = num_threads();
    for (const int threads : {1, 2, 3}) {
      set_num_threads(threads);
      model.compute_in(Compute::f32, kAll);
      const LogitsAndCache again = run(offsets);
      CHECK_EQ(again.cache.values, packed.cache.values);
      CHECK_EQ(again.all_logits, packed.all_logits);
      // Each document by itself, down to one token, whose product is one tile outside all teams of threads.
      for (size_t i = 0; i + 1 < offsets.size() && packs_floats(); ++i) {
        const std::vector<float> alone = run(std::span(offsets).subspan(i, 2)).all_logits;
        const auto first = packed.all_logits.begin() + static_cast<std::ptrdiff_t>(offsets[i] * 50);
        CHECK(std::equal(alone.begin(), alone.end(), first));
      }
    }
    set_num_threads(before);
    model.compute_in(Compute::f32, {.bytes = 1000});
    CHECK(model.weights().layers[0].query.packed.empty());
    CHECK_EQ(run(offsets).cache.values, plain.cache.values);
  }
}

}  // namespace packed_gemm_test
