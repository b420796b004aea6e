// Derivatives by a cache (lib/model/cache_gradients.hpp) for the models of all families. model_test.cpp compares their forward pass
// with transformers; here it is the reference for derivatives.
#include "lib/model/cache_gradients.hpp"

#include <cmath>
#include <fstream>

#include "formats/io/json_file.hpp"
#include "formats/models/model_config.hpp"
#include "formats/models/safetensors.hpp"
#include "lib/core/error.hpp"
#include "lib/core/rng.hpp"
#include "test/golden/fixtures.hpp"
#include "test/test.hpp"

namespace cache_gradients_test {

using namespace kvcodec;

namespace {

struct Cache final : PastCache {
  std::vector<Matrix<float>> sides[2];  // [layer], (past, key_width)

  void read(int layer, size_t, MatrixView<float> keys, MatrixView<float> values) override {
    for (const auto& [side, out] : {std::pair{0, keys}, std::pair{1, values}})
      for (size_t t = 0; t < out.rows(); ++t)
        std::ranges::copy(sides[side][static_cast<size_t>(layer)].row(t), out.row(t).begin());
  }
};

/// A sum of logits, each with its own factor.
double weight_of(size_t token, size_t place) {
  Rng rng(token, place);
  return rng.normal();
}

struct Bench {
  explicit Bench(const std::string& name)
      : folder(test::source_dir() + "/test/golden/model/" + name),
        description(read_model_config(folder)),
        weights(Safetensors::open_model(folder)),
        model(description.config, weights) {
    std::ifstream stream(folder + "/documents.json");
    size_t longest = 0;
    for (const auto& list : nlohmann::json::parse(stream))
      if (list.size() > longest) longest = list.size(), tokens = list.get<std::vector<uint32_t>>();
    tokens.resize(std::min<size_t>(tokens.size(), 60));
    past = tokens.size() * 2 / 3;
    fill();
  }

  double answer() {
    struct Sum final : PrefillSink {
      void layer(const LayerChunk&) override {}
      void logits(size_t first, MatrixView<const float> rows) override {
        for (size_t i = 0; i < rows.rows(); ++i)
          for (size_t j = 0; j < rows.cols(); ++j) total += double(rows(i, j)) * weight_of(first + i, j);
      }
      double total = 0;
    } sum;
    const auto rest = std::span(tokens).subspan(past);
    const std::vector<uint64_t> offsets = {0, rest.size()}, pasts = {past};
    PrefillOptions options;
    options.logits = LogitRows::all;
    model.prefill({.tokens = rest, .offsets = offsets, .past = pasts, .cache = &cache}, options, sum);
    return sum.total;
  }

  std::string folder;
  ModelDescription description;
  Safetensors weights;
  LlamaModel model;
  std::vector<uint32_t> tokens;
  size_t past = 0;
  Cache cache;

 private:
  void fill() {
    struct Keep final : PrefillSink {
      explicit Keep(Bench& to) : bench(to) {}
      void layer(const LayerChunk& chunk) override {
        for (const auto& [side, rows] : {std::pair{0, chunk.key}, std::pair{1, chunk.value}}) {
          Matrix<float>& kept = bench.cache.sides[side].emplace_back(bench.past, rows.cols());
          for (size_t t = 0; t < bench.past; ++t) std::ranges::copy(rows.row(t), kept.row(t).begin());
        }
      }
      Bench& bench;
    } sink(*this);
    const std::vector<uint64_t> offsets = {0, tokens.size()};
    model.prefill({.tokens = tokens, .offsets = offsets}, {}, sink);
  }
};

struct Gradients final : Differentiated {
  void by_logits(size_t first, MatrixView<const float>, MatrixView<float> derivatives) override {
    for (size_t i = 0; i < derivatives.rows(); ++i)
      for (size_t j = 0; j < derivatives.cols(); ++j)
        derivatives(i, j) = static_cast<float>(weight_of(first + i, j));
  }
  void by_cache(int layer, MatrixView<const float> keys, MatrixView<const float> values) override {
    for (const auto& [side, rows] : {std::pair{0, keys}, std::pair{1, values}}) {
      sides[side].resize(std::max(sides[side].size(), static_cast<size_t>(layer) + 1));
      Matrix<float>& kept = sides[side][static_cast<size_t>(layer)] = Matrix<float>(rows.rows(), rows.cols());
      for (size_t t = 0; t < rows.rows(); ++t) std::ranges::copy(rows.row(t), kept.row(t).begin());
    }
  }
  std::vector<Matrix<float>> sides[2];
};

double dot_of(const Matrix<float>& a, const Matrix<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += double(a.data()[i]) * double(b.data()[i]);
  return sum;
}

/// The derivative along a direction: differences of fourth order, which allow steps far above rounding.
double along(Bench& bench, Matrix<float>& rows, const Matrix<float>& direction, double step) {
  const Matrix<float> before = rows;
  const auto at = [&](double distance) {
    for (size_t i = 0; i < rows.size(); ++i)
      rows.data()[i] = static_cast<float>(double(before.data()[i]) + distance * double(direction.data()[i]));
    return bench.answer();
  };
  const double near = at(step) - at(-step), far = at(2 * step) - at(-2 * step);
  rows = before;
  return (8 * near - far) / (12 * step);
}

/// Directions that show errors anywhere: the derivatives of one head of some tokens, half of them noise of the same
/// size.
Matrix<float> direction_of(const Matrix<float>& gradients, size_t first, size_t width, size_t every,
                           Rng& rng) {
  Matrix<float> direction(gradients.rows(), gradients.cols());
  const size_t start = rng.below(every);
  double size = 0;
  size_t count = 0;
  for (size_t t = start; t < gradients.rows(); t += every)
    for (size_t j = first; j < first + width; ++j, ++count) size += std::pow(double(gradients(t, j)), 2);
  double total = 0;
  for (size_t t = start; t < gradients.rows(); t += every)
    for (size_t j = first; j < first + width; ++j) {
      direction(t, j) = gradients(t, j) + static_cast<float>(std::sqrt(size / double(count)) * rng.normal());
      total += std::pow(double(direction(t, j)), 2);
    }
  for (size_t i = 0; i < direction.size() && total > 0; ++i)
    direction.data()[i] = static_cast<float>(double(direction.data()[i]) / std::sqrt(total));
  return direction;
}

}  // namespace

TEST_CASE(
    "derivatives by a cache: those of differences of the forward pass, or the model is declined by name") {
  size_t taken = 0;
  for (const std::string& name : test::golden_models()) {
    CAPTURE(name);
    Bench bench(name);
    const ModelConfig& config = bench.model.config();
    const auto differentiated = [&] {
      Gradients gradients;
      differentiate(
          bench.model,
          {.tokens = std::span(bench.tokens).subspan(bench.past), .past = bench.past, .cache = &bench.cache},
          gradients);
      return gradients;
    };
    if (const std::string beyond = beyond_gradients(config); !beyond.empty()) {
      const std::string refusal =
          fmt::format("the model has {}, through which derivatives are not taken", beyond);
      CHECK_THROWS_WITH_AS(differentiated(), refusal.c_str(), Error);
      continue;
    }
    ++taken;
    const Gradients gradients = differentiated();
    Rng rng(3);
    double worst = 0;
    for (size_t side = 0; side < 2; ++side)
      for (size_t layer = 0; layer < static_cast<size_t>(config.num_layers); ++layer) {
        const Matrix<float>& found = gradients.sides[side][layer];
        const double size = std::sqrt(dot_of(found, found));
        CAPTURE(side);
        CAPTURE(layer);
        CAPTURE(size);
        CHECK_GT(size, 1e-2);
        const auto dim = static_cast<size_t>(config.head_dim);
        for (size_t head = 0; head < static_cast<size_t>(config.num_kv_heads); ++head) {
          const Matrix<float> direction = direction_of(found, head * dim, dim, 3, rng);
          // The forward pass is rounded too, which a short step shows, and bends, which a long one does; a wrong sign or factor gives 1e-1.
          double error = 1;
          for (const double step : {0.15, 0.05}) {
            const double expected = along(bench, bench.cache.sides[side][layer], direction, step);
            error = std::min(error, std::abs(dot_of(found, direction) - expected) / size);
            if (error <= 3e-4) break;
          }
          worst = std::max(worst, error);
          CHECK_LE(error, 3e-4);
        }
      }
    MESSAGE(name, ": largest difference, of the derivatives' norm: ", worst);
  }
  CHECK_GE(taken, 25);
}

}  // namespace cache_gradients_test
