#include "cli/codecs/coding.hpp"

#include <algorithm>
#include <cmath>

#include "formats/cache/score_forms.hpp"
#include "formats/models/key_rope.hpp"
#include "lib/codec/outer_codecs.hpp"
#include "lib/core/checked.hpp"
#include "lib/engine/engine.hpp"

namespace kvcodec::cli {

const CodecEntry& codec_entry(const CodesReader& codes) {
  if (const CodecEntry* entry = known_codec(codes.info().codec)) return *entry;
  throw bad_input("{}: it was made by the codec '{}', which this kvcodec does not have", codes.name(),
                  codes.info().codec);
}

CodecOfFile::CodecOfFile(const CodesReader& codes, const std::string& book_file, Engine* engine)
    : entry_(codec_entry(codes)) {
  const CodesInfo& info = codes.info();
  if (entry_.book_type.empty()) {
    if (!book_file.empty())
      throw usage_error("{}: the codec {} takes no book; leave out --book", codes.name(), entry_.name);
  } else if (!book_file.empty()) {
    BookFile file = read_book(book_file, entry_.book_type, false);
    check_same_book(book_file, file, codes);
    book_ = std::move(file.book);
    book_history_ = std::move(file.type.history);
  } else {
    book_ = codes.embedded_book();
    if (!book_)
      throw usage_error("{} needs the {} with digest {}; name its file with --book", codes.name(),
                        entry_.book_type, info.book_digest);
  }
  CodecContext context = context_of(info.model, info.storage, book_ ? &*book_ : nullptr);
  context.engine = engine_for(entry_, engine);
  codec_ = with_context(codes.name(), [&] { return codec_from_record(entry_, info.parameters, context); });
  codes.check_streams(*codec_);
}

CodecContext context_of(const ModelInfo& model, DType storage, const Book* book) {
  return {.num_layers = model.num_layers,
          .heads = model.num_kv_heads,
          .head_dim = model.head_dim,
          .layer_shapes = model.layer_shapes,
          .query_heads = model.num_q_heads,
          .storage = storage,
          .book = book,
          .rope = key_rope_of(model),
          .scores = score_forms(model)};
}

Engine* engine_for(const CodecEntry& entry, Engine* engine) {
  if (engine && !entry.capabilities.device_twin) {
    engine->fall_back(fmt::format("the codec {}", entry.name));
    return nullptr;
  }
  return engine;
}

TokenQueries queries_of(const KvReader::Queries& all, uint64_t first, uint64_t count) {
  const auto begin = std::ranges::lower_bound(all.token_rows, first),
             end = std::ranges::lower_bound(all.token_rows, first + count);
  TokenQueries some{{begin, end}, {}};
  for (uint64_t& token : some.tokens) token -= first;
  const size_t width = all.token_rows.empty() ? 0 : all.values.size() / all.token_rows.size();
  some.rows = {all.values.data() + static_cast<size_t>(begin - all.token_rows.begin()) * width,
               some.tokens.size(), width};
  return some;
}

std::vector<std::vector<int>> whole_groups(const std::vector<int>& layers, const GroupOf& group_of,
                                           ErrorKind kind, const std::string& what) {
  std::vector<std::vector<int>> groups;
  for (const int layer : layers) {
    std::vector<int> group = group_of(layer);
    for (const int other : group)
      if (std::ranges::count(layers, other) == 0)
        throw Error(kind,
                    fmt::format("{} {} do not fill whole groups of {} layers: layers {} are coded together "
                                "and {} is missing",
                                what, ranges_text(layers), group.size(), ranges_text(group), other));
    if (group.front() == layer) groups.push_back(std::move(group));
  }
  return groups;
}

std::vector<int> stored_layers(const CodesInfo& info) {
  std::vector<int> layers;
  for (const int group : info.groups)
    for (const int layer : info.layers_of(group)) layers.push_back(layer);
  std::ranges::sort(layers);
  return layers;
}

std::vector<int> groups_of(const std::vector<int>& layers, const CodesInfo& info) {
  auto groups = mapped<int>(layers, [&](int layer) { return info.group_of(layer); });
  std::ranges::sort(groups);
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  return groups;
}

static void check_length(const CodesReader& codes, const DocumentView& view, size_t document) {
  const uint64_t stored = view.tokens(),
                 length = codes.info().documents.held(view.shape().first_layer(), document);
  if (stored != length)
    throw bad_input("document {} has {} tokens stored; the tables of documents say {}", document, stored,
                    length);
}

std::unique_ptr<DocumentView> open_document(const CodesReader& codes, const Codec& codec,
                                            const GroupShape& shape, size_t document,
                                            const StreamReader& streams) {
  auto view = codec.open(shape, streams);
  check_length(codes, *view, document);
  return view;
}

StoredSides::StoredSides(const CodesReader& codes, const Codec& codec, const GroupShape& shape,
                         size_t document) {
  const auto open = [&](Side side, std::unique_ptr<StreamReader>& streams, const auto& view) {
    at_dataset(codes.name(), side, shape.first_layer(), [&] {
      streams = codes.document(side, shape.first_layer(), document);
      view(*streams);
    });
  };
  if (codec.joint()) {
    open(Side::both, keys_, [&](const StreamReader& streams) {
      views_ = codec.open_sides(shape, streams, streams);
      check_length(codes, *views_.keys, document);
    });
    return;
  }
  open(Side::key, keys_, [&](const StreamReader& streams) {
    views_.keys = open_document(codes, codec, of_side(shape, Side::key), document, streams);
  });
  if (const LayerShape layer = codes.info().model.layer_shape(shape.first_layer()); layer.values_in_keys) {
    views_.values = values_in(*views_.keys, *keys_, layer.value_dim);
    return;
  }
  open(Side::value, values_, [&](const StreamReader& streams) {
    views_.values = open_document(codes, codec, of_side(shape, Side::value), document, streams);
  });
}

/// Decodes one side of a group of one document.
static void decode_document(const CodesReader& codes, const Codec& codec, const GroupShape& shape,
                            size_t document, uint64_t budget) {
  const StoredDocument stored(codes, codec, shape, document);
  const auto length = static_cast<size_t>(codes.info().documents.held(shape.first_layer(), document));
  const size_t chunk = chunk_rows(budget, shape.width() * sizeof(float) + codec.scratch_bytes_per_row(shape));
  Matrix<float> rows(std::min(chunk, length), shape.width());
  for (size_t first = 0; first < length; first += rows.rows()) {
    const auto piece = rows.view().rows(0, std::min(rows.rows(), length - first));
    stored->decode(first, piece);
    for (size_t i = 0; i < piece.rows(); ++i)
      if (find_non_finite(MatrixView<const float>(piece).row(i)))
        throw bad_input("document {}: token {} decodes to what is not finite", document, first + i);
  }
}

void decode_all(const CodesReader& codes, const Codec& codec, uint64_t budget,
                const std::function<void(double done)>& progress) {
  const CodesInfo& info = codes.info();
  const size_t documents = info.documents.count();
  size_t parts = 0, done = 0;
  for (const int group : info.groups) parts += info.sides(group).size() * documents;
  for (const int group : info.groups)
    for (const Side side : info.sides(group))
      for (size_t document = 0; document < documents; ++document) {
        at_dataset(codes.name(), side, group,
                   [&] { decode_document(codes, codec, info.shape(group, side), document, budget); });
        progress(static_cast<double>(++done) / static_cast<double>(parts));
      }
}

// Sensitivities -------------------------------------------------------------------------------------

double Weights::cost(Side side, int layer) const {
  // Both refer to noise on every value of a token, whose cost is the sum over all values. Derivatives were taken for all documents,
  // noise was added to some.
  const SensitivityInfo& info = file.info;
  const double nats = info.fisher ? info.fisher->nats(side, layer)
                                  : info.layers[as_size(layer)][static_cast<size_t>(side)].nats.mean;
  if (!(nats > 0))
    throw bad_input("{}: layer {} costs {} nats for a unit of noise on its {}s; it must be more than 0", name,
                    layer, nats, side);
  return nats;
}

Weights read_weights(const std::string& name, const CodecContext& context) {
  Weights weights{name, read_sensitivities(name)};
  const ModelInfo& measured = weights.file.info.model;
  if (measured.num_layers != context.num_layers || measured.num_kv_heads != context.heads ||
      measured.head_dim != context.head_dim)
    throw bad_input("{}: it is of {} layers with {} heads of {}; the cache has {}, {} of {}", name,
                    measured.num_layers, measured.num_kv_heads, measured.head_dim, context.num_layers,
                    context.heads, context.head_dim);
  return weights;
}

Weights read_weights(const std::string& name, const ModelInfo& model, const std::string& cache) {
  Weights weights = read_weights(
      name,
      CodecContext{.num_layers = model.num_layers, .heads = model.num_kv_heads, .head_dim = model.head_dim});
  check_same_weights(name, weights.file.info.model, cache, model);
  return weights;
}

constexpr double kShownCost = 0.01;  // nats

/// The standard deviation of the noise that costs kShownCost, in percent of that of the values; "-" if noise costs nothing.
static std::string tolerated(const Sensitivity& side) {
  if (!(side.nats.mean > 0) || !(side.variance > 0)) return "-";
  return significant(100 * std::sqrt(kShownCost / side.nats.mean / side.variance), 3);
}

std::string sensitivity_table(const SensitivityInfo& info) {
  MeasureTable table("layer");
  const auto finite = [](double value) { return std::isfinite(value) ? value : std::nan(""); };
  const bool noise = !info.layers.empty();
  for (int layer = 0; layer < info.model.num_layers; ++layer) {
    Measures measures;
    for (const Side side : kSides) {
      Measures own;
      const Sensitivity* const of = noise ? &info.layers[as_size(layer)][static_cast<size_t>(side)] : nullptr;
      if (of) own.push_back(rounded(nullptr, {"nats/unit"}, of->nats.mean, 3));
      if (of) own.push_back(rounded(nullptr, {"+- 95%"}, finite(of->nats.half_width), 2));
      if (info.fisher) own.push_back(rounded(nullptr, {"Fisher"}, info.fisher->nats(side, layer), 3));
      if (of) own.push_back(word(nullptr, {"0.01 at %"}, tolerated(*of)));
      if (of) own.push_back(rounded(nullptr, {"growth"}, finite(of->growth()), 3));
      measures = joined(std::move(measures), grouped_as(fmt::format("{}s", side), std::move(own)));
    }
    table.row(fmt::format("{}", layer), measures);
  }
  std::string text = table.text() + "\n";
  if (noise)
    text +=
        "nats/unit: what noise of variance 1 would cost for each judged token, if cost went on growing with the "
        "variance;\n";
  if (info.fisher)
    text += noise
                ? "Fisher: the same by the Fisher matrices, half of the sum of their traces;\n"
                : "Fisher: what noise of variance 1 would cost for each judged token by the Fisher matrices, "
                  "half of the sum of\ntheir traces.\n";
  if (noise)
    text +=
        "0.01 at %: the noise that costs 0.01 nats, in percent of the deviation of the keys or values "
        "themselves;\ngrowth: what noise of twice the deviation costs, over four times the cost of the "
        "smaller noise: near 1 the\ndivergence is quadratic, and the sensitivity holds.\n";
  return text;
}

Json sensitivity_json(const SensitivityInfo& info) {
  Json all = Json::array();
  for (int layer = 0; layer < info.model.num_layers; ++layer) {
    Json one = {{"layer", layer}};
    for (const Side side : kSides) {
      Json& json = one[std::string(name_of(side))];
      json = Json::object();
      if (!info.layers.empty()) {
        const Sensitivity& of = info.layers[as_size(layer)][static_cast<size_t>(side)];
        Json probes = Json::array();
        for (const auto& probe : of.probes)
          probes.push_back({{"deviation", probe.deviation}, {"divergence", to_json(probe.divergence)}});
        json = {{"variance", of.variance}, {"nats", to_json(of.nats)}, {"probes", probes}};
      }
      if (info.fisher) json["fisher"] = info.fisher->nats(side, layer);
    }
    all.push_back(one);
  }
  return all;
}

}  // namespace kvcodec::cli
