#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "cuda/engine.hpp"
#include "cuda/runtime/runtime.hpp"
#include "lib/core/rng.hpp"
#include "lib/rvq/train.hpp"
#include "test/cuda/device_case.hpp"

namespace rvq_train_test {

using namespace kvcodec;

namespace {

/// An engine that counts what it is asked for.
class Counting final : public RvqTrainEngine {
 public:
  explicit Counting(RvqTrainEngine& engine) : engine_(engine) {}
  bool take(MatrixView<const float> rows) override { return ++taken, engine_.take(rows); }
  bool choose(MatrixView<const float> entries, std::span<const float> bias,
              std::span<uint32_t> ids) override {
    return ++chosen, engine_.choose(entries, bias, ids);
  }
  bool means(std::span<const uint32_t> ids, MatrixView<float> means) override {
    return ++fitted, engine_.means(ids, means);
  }
  bool sums(std::span<const uint32_t> ids, MatrixView<double> sums) override {
    return ++fitted, engine_.sums(ids, sums);
  }
  bool outer(MatrixView<const double> rows, MatrixView<const double> others, MatrixView<double> a) override {
    return engine_.outer(rows, others, a);
  }
  bool encode(const Codebooks& books, MatrixView<const float> rows, size_t beam,
              MatrixView<uint32_t> ids) override {
    return ++encoded, engine_.encode(books, rows, beam, ids);
  }
  size_t taken = 0, chosen = 0, fitted = 0, encoded = 0;

 private:
  RvqTrainEngine& engine_;
};

struct Trained {
  Codebooks books;
  RvqTrainState state;
};

void check_same(const Trained& found, const Trained& expected) {
  for (size_t s = 0; s < expected.books.stages(); ++s)
    CHECK(std::memcmp(found.books.data(s), expected.books.data(s),
                      expected.books.entries() * expected.books.padded() * sizeof(float)) == 0);
  CHECK(found.state.loss == expected.state.loss);
  CHECK(found.state.refit_loss == expected.state.refit_loss);
  CHECK(std::equal(found.state.usage.data(), found.state.usage.data() + found.state.usage.size(),
                   expected.state.usage.data()));
}

}  // namespace

TEST_CASE("device: training of residual codebooks has the bits of the CPU") {
  NEEDS_DEVICE();
  const uint64_t seed = 71;
  INFO("seed ", seed);
  Rng rng(seed);
  Matrix<float> rows = test::random_rows(rng, 210, 12);
  for (size_t i = 0; i < rows.rows(); ++i)
    for (float& value : rows.row(i)) value = value * 0.3f + static_cast<float>(i % 7);
  const auto train = [&](RvqTrainOptions& options, RvqTrainEngine* engine) {
    Trained trained{Codebooks(2, 18, 12), {}};
    train_codebooks(rows, options, trained.books, trained.state, {}, {.engine = engine});
    return trained;
  };
  const auto device = cuda::make_engine();
  for (const RvqMethod method : {RvqMethod::kmeans, RvqMethod::simvq}) {
    INFO(method);
    RvqTrainOptions options;
    options.method = method;
    options.epochs = 2, options.refits = 1, options.refit_beam = 3, options.batch = 64;
    const auto engine = device->make<RvqTrainEngine>();
    Counting counting(*engine);
    check_same(train(options, &counting), train(options, nullptr));
    CHECK(counting.taken > 0);
    CHECK(counting.chosen > 0);
    CHECK(counting.fitted > 0);
    CHECK(counting.encoded >= (method == RvqMethod::kmeans ? 2 : 1));
  }
  // Wider than a search takes: the CPU does that.
  rows = test::random_rows(rng, 40, 260);
  RvqTrainOptions options;
  options.epochs = 1, options.refits = 1;
  Trained found{Codebooks(1, 5, 260), {}}, expected{Codebooks(1, 5, 260), {}};
  train_codebooks(rows, options, found.books, found.state, {},
                  {.engine = device->make<RvqTrainEngine>().get()});
  train_codebooks(rows, options, expected.books, expected.state);
  check_same(found, expected);
}

TEST_CASE("device: rows that take more than half of the memory are left to the CPU") {
  NEEDS_DEVICE();
  Rng rng(73);
  const Matrix<float> rows =
      test::random_rows(rng, 200, 16);  // 12.8 KB, and 25.6 KB in 16 bits, padded to 64
  const auto device = cuda::make_engine();
  const auto engine = device->make<RvqTrainEngine>();
  const auto takes = [&](uint64_t bytes) {
    cuda::limit_free_bytes(bytes);
    const bool taken = engine->take(rows);
    cuda::limit_free_bytes(cuda::kAllFreeBytes);
    return taken;
  };
  CHECK_FALSE(takes(76000));
  CHECK(takes(90000));
  CHECK_FALSE(takes(0));
}

#ifdef KVCODEC_EMULATED
TEST_CASE("steps of a training decline where memory runs out") {
  Rng rng(74);
  const Matrix<float> rows = test::random_rows(rng, 200, 16);
  const auto device = cuda::make_engine();
  const auto engine = device->make<RvqTrainEngine>();
  REQUIRE(engine->take(rows));
  std::vector<uint32_t> ids(200);
  std::vector<float> bias(5);
  Matrix<float> means(5, 16);
  Matrix<double> sums(5, 16), outer(16, 16);
  Codebooks books(1, 5, 16);
  Matrix<uint32_t> coded(200, 1);
  const auto taken = [&] {
    int count = engine->choose(rows.view().rows(0, 5), bias, ids) ? 1 : 0;
    count += engine->means(ids, means) ? 1 : 0;
    count += engine->sums(ids, sums) ? 1 : 0;
    count += engine->outer(sums, sums, outer) ? 1 : 0;
    return count + (engine->encode(books, rows, 1, coded) ? 1 : 0);
  };
  cuda::limit_free_bytes(100);
  CHECK(taken() == 0);
  cuda::limit_free_bytes(cuda::kAllFreeBytes);
  CHECK(taken() == 5);
}
#endif

TEST_CASE("device: sums of outer products are added in order") {
  NEEDS_DEVICE();
  Rng rng(72);
  const auto device = cuda::make_engine();
  const auto engine = device->make<RvqTrainEngine>();
  for (const size_t count : {0, 1, 50})
    for (const size_t n : {1, 9, 40}) {
      const size_t m = n == 9 ? 33 : 7;
      Matrix<double> rows(count, n), others(count, m), found(n, m), expected(n, m);
      for (size_t i = 0; i < rows.size(); ++i) rows.data()[i] = std::ldexp(rng.normal(), int(rng.below(40)));
      for (size_t i = 0; i < others.size(); ++i) others.data()[i] = rng.normal();
      for (size_t i = 0; i < found.size(); ++i) found.data()[i] = -7;
      for (size_t e = 0; e < count; ++e)
        for (size_t i = 0; i < n; ++i)
          for (size_t j = 0; j < m; ++j) expected(i, j) += rows(e, i) * others(e, j);
      CHECK(engine->outer(rows, others, found));
      CHECK(std::memcmp(found.data(), expected.data(), found.size() * sizeof(double)) == 0);
    }
}

}  // namespace rvq_train_test
