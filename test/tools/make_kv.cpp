// Writes a kv file of any shape with synthetic rows: for tests of sizes and memory that need no model.
// For codecs, rows resemble keys: a mean per channel, channels of different loudness, neighbours that resemble each other. Same
// arguments, same values.
#include <cmath>
#include <cstdio>
#include <numeric>
#include <optional>

#include <CLI/CLI.hpp>

#include "formats/cache/kv_file.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"

using namespace kvcodec;

namespace {

struct Shape {
  int layers = 2, heads = 2, head_dim = 64;
  int q_heads = 0;  ///< 0 = as many as key/value heads
  uint64_t tokens = 256, documents = 1, seed = 1, first_position = 0, queries = 0;
  std::vector<int> only;
  std::vector<std::string> document;
  std::string dtype = "bf16", name = "synthetic-", model = "synthetic", output;
  double rope_theta = 0;  ///< 0 = unknown
  std::string rope_scaling, scores = "{}";
  bool no_ids = false;
  std::vector<std::string> shapes;  ///< of layers; empty = one for all
  std::vector<uint64_t>
      windows;  ///< of layers: how many of a document's last tokens they hold; 0, empty: all
};

/// One document: positions [first, end). Its rows follow from seed and position alone.
struct Document {
  std::string name;
  uint64_t seed = 0, first = 0, end = 0;
};

/// NAME:FIRST:END; the name determines the seed, so that parts of a document fit together.
Document parse_document(const std::string& text, uint64_t seed) {
  const size_t second = text.rfind(':'), first = second == 0 ? second : text.rfind(':', second - 1);
  if (second == std::string::npos || first == std::string::npos)
    throw usage_error("--document is '{}', not NAME:FIRST:END", text);
  Document document{text.substr(0, first), seed, std::stoull(text.substr(first + 1)),
                    std::stoull(text.substr(second + 1))};
  for (const char c : document.name) document.seed = document.seed * 31 + static_cast<unsigned char>(c);
  return document;
}

/// HEADS:KEY:VALUE, HEADS:KEY:in:VALUE for values that lie in keys, of:LAYER or none.
LayerShape parse_shape(const std::string& text) {
  if (text == "none") return {};
  if (text.starts_with("of:")) return {.source = std::stoi(text.substr(3))};
  const size_t first = text.find(':'), second = text.find(':', first + 1);
  if (second == std::string::npos) throw usage_error("--shape is '{}', not HEADS:KEY:VALUE", text);
  const std::string value = text.substr(second + 1);
  const bool in_keys = value.starts_with("in:");
  return {.heads = std::stoi(text.substr(0, first)),
          .key_dim = std::stoi(text.substr(first + 1, second - first - 1)),
          .value_dim = std::stoi(in_keys ? value.substr(3) : value),
          .values_in_keys = in_keys};
}

std::vector<Document> documents_of(const Shape& shape) {
  std::vector<Document> documents;
  for (const auto& text : shape.document) documents.push_back(parse_document(text, shape.seed));
  if (documents.empty())
    for (uint64_t i = 0; i < shape.documents; ++i)
      documents.push_back({shape.name + std::to_string(i), shape.seed + i, shape.first_position,
                           shape.first_position + shape.tokens});
  return documents;
}

/// Rows [first, first + rows.rows()) of one side of one layer; any piece can be made alone.
void fill(MatrixView<float> rows, uint64_t first, uint64_t seed, uint64_t dataset) {
  std::vector<float> mean(rows.cols()), loudness(rows.cols());
  Rng channels(seed, dataset);
  for (size_t c = 0; c < rows.cols(); ++c) {
    mean[c] = static_cast<float>(channels.normal());
    loudness[c] = static_cast<float>(std::exp(0.5 * channels.normal()));
  }
  parallel_for(rows.rows(), 256, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) {
      // Sums of twelve 16-bit uniforms are normal enough, and four times as fast as logarithms.
      Rng rng(seed ^ (first + i), dataset + 1000);
      for (size_t c = 0; c < rows.cols(); ++c) {
        int sum = 0;
        for (int k = 0; k < 3; ++k) {
          const uint64_t bits = rng.next();
          for (int q = 0; q < 4; ++q) sum += static_cast<int>((bits >> (16 * q)) & 0xffff);
        }
        const float normal = (static_cast<float>(sum) - 6 * 65535.0f) * (1 / 65536.0f);
        rows(i, c) = mean[c] + loudness[c] * normal;
      }
    }
  });
}

void make(const Shape& shape) {
  ModelInfo model;
  model.model = shape.model;
  model.num_layers = shape.layers;
  model.num_kv_heads = shape.heads;
  model.num_q_heads = shape.q_heads > 0 ? shape.q_heads : shape.heads;
  model.head_dim = shape.head_dim;
  model.rope_theta = shape.rope_theta;
  model.rope_scaling = shape.rope_scaling;
  model.scores = shape.scores;
  model.source = fmt::format("make_kv, seed {}", shape.seed);
  std::vector<int> layers = shape.only;
  if (layers.empty()) {
    layers.resize(static_cast<size_t>(shape.layers));
    std::iota(layers.begin(), layers.end(), 0);
  }
  std::vector<LayerShape> shapes;
  for (const std::string& text : shape.shapes) shapes.push_back(parse_shape(text));
  if (!shapes.empty() && shapes.size() != static_cast<size_t>(shape.layers))
    throw usage_error("{} --shape for {} layers", shapes.size(), shape.layers);
  model = with_layer_shapes(model, shapes);
  std::erase_if(layers, [&](int layer) { return model.layer_shape(layer).heads == 0; });

  OutputFile output(shape.output, true);
  const auto known = value_named<DType>(shape.dtype);
  if (!known)
    throw usage_error("'{}' is not an element type; choose from {}", shape.dtype,
                      fmt::join(kNamesOf<DType>, ", "));
  const DType dtype = *known;
  KvWriter writer(output, model, dtype, layers, shape.queries > 0 ? std::optional(dtype) : std::nullopt);
  constexpr uint64_t kChunk = 4096;
  uint64_t before = 0;  // tokens of earlier documents
  for (const Document& document : documents_of(shape)) {
    const uint64_t length = document.end - document.first;
    std::vector<uint32_t> tokens(length);
    std::vector<uint64_t> positions(length);
    std::iota(positions.begin(), positions.end(), document.first);
    for (uint64_t t = 0; t < length; ++t)
      tokens[t] = static_cast<uint32_t>((positions[t] * 2654435761u) % 32000);
    if (shape.no_ids) tokens.clear();
    std::vector<uint64_t> left_out;
    for (const uint64_t window : shape.windows)
      left_out.push_back(window > 0 && window < length ? length - window : 0);
    writer.add_document(document.name, tokens, positions, left_out);
    for (const int layer : layers)
      for (const Side side : kSides)
        for (uint64_t first = left_out.empty() ? 0 : left_out[static_cast<size_t>(layer)]; first < length;
             first += kChunk) {
          const LayerShape of_layer = model.layer_shape(layer);
          const auto width =
              static_cast<size_t>(of_layer.heads) * static_cast<size_t>(of_layer.stored_dim(side));
          if (width == 0) continue;
          Matrix<float> piece(std::min(kChunk, length - first), width);
          fill(piece, document.first + first, document.seed,
               static_cast<uint64_t>(layer) * 2 + (side == Side::value));
          writer.append(side, layer, piece);
        }
    const uint64_t asking = std::min(shape.queries, length), first_asking = length - asking;
    std::vector<uint64_t> places(asking);
    std::iota(places.begin(), places.end(), before + first_asking);
    for (const int layer : layers) {
      if (shape.queries == 0) break;
      Matrix<float> queries(asking, static_cast<size_t>(model.num_q_heads) *
                                        static_cast<size_t>(model.layer_shape(layer).key_dim));
      fill(queries, document.first + first_asking, document.seed, 100000 + static_cast<uint64_t>(layer));
      writer.append_queries(layer, places, queries);
    }
    before += length;
  }
  writer.finish({"make_kv", {}});
  output.commit();
}

}  // namespace

int main(int argc, char** argv) {
  Shape shape;
  CLI::App app{"Writes a kv file of any shape with synthetic rows"};
  app.add_option("--layers", shape.layers, "layers")->capture_default_str();
  app.add_option("--heads", shape.heads, "key/value heads")->capture_default_str();
  app.add_option("--dim", shape.head_dim, "head dimension")->capture_default_str();
  app.add_option("--rope-theta", shape.rope_theta, "base of the rotary embedding that the file names")
      ->capture_default_str();
  app.add_option("--rope-scaling", shape.rope_scaling, "and its scaling, in JSON");
  app.add_option("--scores", shape.scores, "what the model does to scores, in JSON; empty: unknown")
      ->capture_default_str();
  app.add_option("--tokens", shape.tokens, "tokens per document")->capture_default_str();
  app.add_option("--documents", shape.documents, "documents")->capture_default_str();
  app.add_option("--first-position", shape.first_position,
                 "position of each document's first token; rows continue those before it")
      ->capture_default_str();
  app.add_option(
         "--document", shape.document,
         "NAME:FIRST:END, a document with positions FIRST to END-1; instead of --documents; repeatable")
      ->allow_extra_args(false);
  app.add_flag("--no-ids", shape.no_ids, "leave out the ids of tokens");
  app.add_option("--shape", shape.shapes,
                 "HEADS:KEY:VALUE, HEADS:KEY:in:VALUE, of:LAYER or none: what a layer keeps; once for each")
      ->allow_extra_args(false);
  app.add_option("--window", shape.windows,
                 "of how many last tokens of a document a layer has rows, 0: of all; once for each")
      ->allow_extra_args(false);
  app.add_option("--only", shape.only, "write only these layers")->delimiter(',');
  app.add_option("--model", shape.model, "name of the model")->capture_default_str();
  app.add_option("--q-heads", shape.q_heads, "query heads (default: as many as key/value heads)");
  app.add_option("--queries", shape.queries, "queries of each document's last so many tokens")
      ->capture_default_str();
  app.add_option("--dtype", shape.dtype, "bf16, f16 or f32")->capture_default_str();
  app.add_option("--seed", shape.seed, "seed")->capture_default_str();
  app.add_option("-o", shape.output, "output file")->required();
  CLI11_PARSE(app, argc, argv);
  try {
    make(shape);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_kv: %s\n", error.what());
    return 1;
  }
  return 0;
}
