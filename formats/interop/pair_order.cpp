// The order of a key's dimensions in the files of other programs (INTEROP.md, "Pairs of dimensions").
#include <algorithm>
#include <cmath>

#include "formats/interop/arrays.hpp"
#include "formats/interop/foreign.hpp"
#include "formats/models/key_rope.hpp"

namespace kvcodec::interop {
namespace {

constexpr char kPairs[] = "pairs";

bool is_latent(const ModelInfo& model) {
  for (int layer = 0; layer < model.num_layers; ++layer)
    if (model.layer_shape(layer).values_in_keys) return true;
  return false;
}

/// The order in that format's files; std::nullopt if the family is not known and it depends on it.
std::optional<PairOrder> order_in(const ForeignFormat& format, const ModelInfo& model) {
  // Without a latent vector, only llama.cpp's weights are in another order than those of transformers.
  if (format.pairs == PairRule::halves || (format.pairs == PairRule::of_weights && !is_latent(model)))
    return PairOrder::halves;
  const auto habits = pair_habits(model.family);
  if (!habits) return std::nullopt;
  const bool beside = format.pairs == PairRule::of_weights ? habits->in_weights : habits->in_llama_cpp;
  return beside ? PairOrder::neighbours : PairOrder::halves;
}

/// How much the lengths of pairs differ between occurrences of a token, in one of the orders.
struct Differences {
  double sum = 0, of = 0;
  void add(std::span<const float> a, std::span<const float> b, size_t dims, PairOrder order) {
    const size_t half = dims / 2, step = order == PairOrder::halves ? 1 : 2,
                 apart = order == PairOrder::halves ? half : 1;
    for (size_t head = 0; head < a.size(); head += dims)
      for (size_t j = 0; j < half; ++j) {
        const size_t i = head + j * step;
        const double one = std::hypot(a[i], a[i + apart]), two = std::hypot(b[i], b[i + apart]);
        sum += std::abs(one - two), of += one + two;
      }
  }
  double value() const { return of > 0 ? sum / of : 0; }
};

/// The order that the keys of the first layer show: a token has the same key there wherever it stands, but for the rotary embedding,
/// which keeps the length of each pair. std::nullopt where no token occurs twice, or neither order fits.
std::optional<PairOrder> order_shown(const ForeignCache& cache) {
  constexpr uint64_t kRows = 256;
  constexpr double kClear = 3;  // q4_0 of random keys shows 4
  const LayerShape shape = cache.model.layer_shape(0);
  const size_t dims = as_size(shape.key_dim), width = dims * as_size(shape.heads);
  Differences halves, neighbours;
  for (const ForeignDocument& document : cache.documents) {
    const auto layer = document.layers.find(0);
    if (document.tokens.empty() || layer == document.layers.end() || shape.values_in_keys || dims % 2 != 0)
      continue;
    Matrix<float> keys(static_cast<size_t>(std::min(kRows, layer->second.rows)), width);
    layer->second.sides[0](0, keys.view());
    std::map<uint32_t, size_t> last;
    const size_t left_out = document.tokens.size() - static_cast<size_t>(layer->second.rows);
    for (size_t i = 0; i < keys.rows(); ++i) {
      const auto [before, is_new] = last.emplace(document.tokens[left_out + i], i);
      if (is_new) continue;
      for (const auto& [order, differences] :
           {std::pair(PairOrder::halves, &halves), {PairOrder::neighbours, &neighbours}})
        differences->add(keys.row(before->second), keys.row(i), dims, order);
      before->second = i;
    }
  }
  if (halves.value() * kClear < neighbours.value()) return PairOrder::halves;
  if (neighbours.value() * kClear < halves.value()) return PairOrder::neighbours;
  return std::nullopt;
}

}  // namespace

void order_pairs(PairOrder to, const LayerShape& shape, MatrixView<float> keys) {
  // Behind a latent vector, which is one head, all dimensions are turned; else the program's weights have whole heads in that order.
  const size_t first = as_size(shape.values_in_keys ? shape.value_dim : 0);
  for (size_t i = 0; i < keys.rows(); ++i)
    kvcodec::order_pairs(to, as_size(shape.key_dim) - first, keys.row(i).subspan(first));
}

void settle_pairs(ForeignCache& cache, const ForeignFormat& format, const ImportOptions& options) {
  auto order = options.pairs;
  if (!order && format.pairs == PairRule::of_llama_cpp) order = order_shown(cache);
  const auto usual = order_in(format, cache.model);
  if (!order) order = usual;
  if (usual && *order != *usual && !options.pairs)
    cache.notes.push_back(fmt::format(
        "pairs of dimensions lie as {}, which {} does not do with models of the family {}: is the cache of another model?",
        name_of(*order), format.name, cache.model.family));
  if (!order) {
    cache.notes.push_back(fmt::format(
        "nothing says in which order {} has the dimensions of this model's keys, which differs by families of models: they stay as "
        "they are; --model or --key-pairs says it",
        format.name));
    return;
  }
  if (format.pairs == PairRule::of_llama_cpp || *order == PairOrder::neighbours || options.pairs) {
    auto imported = cache.model.imported.empty()
                        ? nlohmann::json::object()
                        : nlohmann::json::parse(cache.model.imported, nullptr, false);
    imported["format"] = format.name;
    imported[kPairs] = name_of(*order);
    cache.model.imported = imported_text(imported);
  }
  if (*order == PairOrder::halves) return;
  for (ForeignDocument& document : cache.documents)
    for (auto& [layer, rows] : document.layers)
      rows.sides[0] = [read = std::move(rows.sides[0]), shape = cache.model.layer_shape(layer)](
                          uint64_t first, MatrixView<float> out) {
        read(first, out);
        order_pairs(PairOrder::halves, shape, out);
      };
}

PairOrder pairs_to_write(const CacheSource& source, const ForeignFormat& format, const ExportOptions& options,
                         std::vector<std::string>& notes) {
  if (options.pairs) return *options.pairs;
  const Imported same(source, format.name), llama(source, "llama");
  if (const auto known = value_named<PairOrder>(same.text(kPairs))) return *known;
  const bool unknown = llama.has("format") && !llama.has(kPairs);
  if (unknown && format.pairs == PairRule::of_llama_cpp) return PairOrder::halves;  // as it came
  if (unknown)
    notes.push_back(
        "nothing said in which order the llama.cpp state had the dimensions of keys: import it again with --model or --key-pairs "
        "if its model is of the Llama kind");
  const auto order = order_in(format, source.model());
  if (!order)
    throw usage_error(
        "{}: the family of its model is not known, and the order of a key's dimensions in {} depends on it; say the order with "
        "--key-pairs (neighbours of Llama, Mistral, Granite, SmolLM3 and DeepSeek), or import the cache with --model",
        source.name(), format.name);
  return *order;
}

}  // namespace kvcodec::interop
