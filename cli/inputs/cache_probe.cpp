#include "cli/inputs/cache_probe.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "cli/inputs/model_runner.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/linalg/hadamard.hpp"

namespace kvcodec::cli {
namespace {

/// Enough tokens for a median, and layers in which errors of a quantized cache, or of a model's other quantization, have not added up.
constexpr size_t kTokens = 16;
constexpr int kLayers = 4;
/// The median of tokens' relative errors. Keys in 2 bits, the coarsest that programs write, are at .3; other keys at 1 and more.
constexpr double kLimit = 0.5;

struct Computed {
  Matrix<float> sides[2], keys_before_rope;
};

class Collector final : public PrefillSink {
 public:
  std::vector<Computed> layers;

  void layer(const LayerChunk& chunk) override {
    const auto copy = [](MatrixView<const float> rows) {
      Matrix<float> kept(rows.rows(), rows.cols());
      for (size_t i = 0; i < rows.rows(); ++i) std::ranges::copy(rows.row(i), kept.row(i).begin());
      return kept;
    };
    layers.push_back(
        {.sides = {copy(chunk.key), copy(chunk.value)}, .keys_before_rope = copy(chunk.key_before_rope)});
  }
};

/// Number of the document's first tokens that can be computed: their ids are known, and their positions are 0, 1, 2, …
size_t first_tokens(const interop::ForeignDocument& document) {
  size_t count = 0;
  while (count < std::min(kTokens, document.tokens.size()) && document.positions[count] == count) ++count;
  return count;
}

double median_error(const Matrix<float>& found, const Matrix<float>& expected) {
  std::vector<double> errors;
  for (size_t i = 0; i < expected.rows(); ++i) {
    double wrong = 0, all = 0;
    for (size_t j = 0; j < expected.cols(); ++j) {
      const double difference = double{found(i, j)} - double{expected(i, j)};
      wrong += difference * difference, all += double{expected(i, j)} * double{expected(i, j)};
    }
    errors.push_back(std::sqrt(wrong / std::max(all, 1e-30)));
  }
  const auto middle = errors.begin() + std::ssize(errors) / 2;
  std::ranges::nth_element(errors, middle);
  return *middle;
}

/// Names the change that makes the rows those that were computed, as the end of a sentence; empty if no known one does.
std::string cure(const Matrix<float>& found, const Computed& computed, Side side, const LayerShape& shape) {
  const Matrix<float>& expected = computed.sides[side == Side::value];
  const auto dims = as_size(shape.stored_dim(side));
  const auto fits = [&](const auto& change) {
    Matrix<float> changed = found;
    change(changed.view());
    return median_error(changed, expected) < kLimit;
  };
  // Blocks are of the order in the file, which import may have changed.
  for (size_t block = dims & (~dims + 1); block >= 16; block /= 2)
    for (const bool ordered : {false, true})
      if (fits([&](MatrixView<float> rows) {
            if (ordered) interop::order_pairs(PairOrder::neighbours, shape, rows);
            for (size_t i = 0; i < rows.rows(); ++i) hadamard(rows.row(i), block);
            if (ordered) interop::order_pairs(PairOrder::halves, shape, rows);
          }))
        return fmt::format("they are if Hadamard blocks of {} are undone: --rotated", block);
  if (side == Side::value) return "";
  for (const PairOrder order : {PairOrder::halves, PairOrder::neighbours})
    if (fits([&](MatrixView<float> rows) { interop::order_pairs(order, shape, rows); }))
      return fmt::format("they are with pairs of dimensions in the other order: --key-pairs {}",
                         name_of(order == PairOrder::halves ? PairOrder::neighbours : PairOrder::halves));
  if (median_error(found, computed.keys_before_rope) < kLimit)
    return "they are from before the rotary embedding";
  return "";
}

void compare(const interop::ForeignDocument& document, const ModelInfo& model,
             const std::vector<Computed>& computed) {
  for (int layer = 0; layer < static_cast<int>(computed.size()); ++layer) {
    const auto stored = document.layers.find(layer);
    if (stored == document.layers.end() || stored->second.rows < document.positions.size()) continue;
    const Computed& own = computed[as_size(layer)];
    const LayerShape shape = model.layer_shape(layer);
    for (const Side side : kSides) {
      const Matrix<float>& expected = own.sides[side == Side::value];
      if (shape.width(side) == 0) continue;
      if (shape.width(side) != expected.cols())
        throw bad_input("layer {} has {} of {} values, and the model {}", layer, name_of(side),
                        shape.width(side), expected.cols());
      Matrix<float> found(expected.rows(), expected.cols());
      stored->second.sides[side == Side::value](0, found.view());
      const double error = median_error(found, expected);
      if (error < kLimit) continue;
      const std::string how = cure(found, own, side, shape);
      throw bad_input(
          "document '{}', layer {}: the {}s are not those that the model {} computes (relative error {:.2g}); {}",
          document.name, layer, name_of(side), model.model, error,
          how.empty() ? "they are of another model, text or layout; --no-probe imports them nevertheless"
                      : how);
    }
  }
}

}  // namespace

std::optional<std::string> probe_cache(const interop::ForeignCache& cache, ModelFiles& files,
                                       const CommonOptions& common) {
  const auto document = std::ranges::find_if(
      cache.documents, [](const interop::ForeignDocument& one) { return first_tokens(one) > 0; });
  if (document == cache.documents.end())
    return "no document has token ids and begins at position 0; --ids gives ids";
  std::optional<LlamaModel> model;
  try {
    model.emplace(make_model(files, common));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::bad_input) throw;
    return fmt::format("the model cannot run: {}", error.what());
  }
  const size_t count = first_tokens(*document);
  const std::vector<uint64_t> offsets{0, count};
  Collector collector;
  PrefillOptions options;
  options.before_rope = true;
  options.layers = std::min(kLayers, model->config().num_layers);
  model->prefill({std::span(document->tokens).first(count), offsets}, options, collector);
  compare(*document, cache.model, collector.layers);
  return std::nullopt;
}

}  // namespace kvcodec::cli
