// The forward pass against transformers: fixtures and their description in make_model_fixtures.py.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "formats/io/json_file.hpp"
#include "formats/models/family.hpp"
#include "formats/models/key_rope.hpp"
#include "formats/models/model_config.hpp"
#include "formats/models/safetensors.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/model/llama.hpp"
#include "lib/model/rope.hpp"
#include "test/golden/fixtures.hpp"
#include "test/lib/simd_levels.hpp"
#include "test/test.hpp"

namespace model_test {

using namespace kvcodec;

namespace {

std::string folder_of(const std::string& name) { return test::source_dir() + "/test/golden/model/" + name; }

struct Sequences {
  std::vector<uint32_t> tokens;
  std::vector<uint64_t> offsets{0};

  void add(std::span<const uint32_t> document) {
    tokens.insert(tokens.end(), document.begin(), document.end());
    offsets.push_back(tokens.size());
  }
  std::span<const uint32_t> document(size_t i) const {
    return std::span(tokens).subspan(offsets[i], offsets[i + 1] - offsets[i]);
  }
  PrefillBatch batch() const { return {tokens, offsets}; }
};

Sequences read_documents(const std::string& folder) {
  std::ifstream stream(folder + "/documents.json");
  const nlohmann::json lists = nlohmann::json::parse(stream);
  Sequences documents;
  for (const auto& list : lists) documents.add(list.get<std::vector<uint32_t>>());
  return documents;
}

using Tensors = std::map<std::string, std::vector<float>>;

/// Keeps everything under the names of reference.safetensors.
class Collector final : public PrefillSink {
 public:
  explicit Collector(size_t tokens) : tokens_(tokens) {}

  void layer(const LayerChunk& chunk) override {
    keep("key", chunk.layer, chunk.first, chunk.key);
    keep("value", chunk.layer, chunk.first, chunk.value);
    keep("query", chunk.layer, chunk.first, chunk.query);
    keep("key_before_rope", chunk.layer, chunk.first, chunk.key_before_rope);
    keep("query_before_rope", chunk.layer, chunk.first, chunk.query_before_rope);
  }
  void logits(size_t first, MatrixView<const float> rows) override {
    place("logits", first, rows);
    last_logits.emplace_back(rows.row(rows.rows() - 1).begin(), rows.row(rows.rows() - 1).end());
  }

  void state(int layer, size_t document, std::span<const float> state) override {
    states[{layer, document}].assign(state.begin(), state.end());
  }

  Tensors found;
  std::vector<std::vector<float>> last_logits;  // of every call
  std::map<std::pair<int, size_t>, std::vector<float>> states;

 private:
  void keep(const char* name, int layer, size_t first, MatrixView<const float> rows) {
    if (rows.rows() > 0 && rows.cols() > 0) place(fmt::format("{}.{}", name, layer), first, rows);
  }
  void place(const std::string& name, size_t first, MatrixView<const float> rows) {
    std::vector<float>& all = found[name];
    all.resize(tokens_ * rows.cols(), std::nanf(""));
    for (size_t i = 0; i < rows.rows(); ++i)
      std::copy(rows.row(i).begin(), rows.row(i).end(),
                all.begin() + static_cast<std::ptrdiff_t>((first + i) * rows.cols()));
  }

  size_t tokens_;
};

struct Model {
  explicit Model(const std::string& folder)
      : description(read_model_config(folder)),
        weights(Safetensors::open_model(folder)),
        model(description.config, weights) {}
  ModelDescription description;
  Safetensors weights;
  LlamaModel model;
};

Tensors run(const LlamaModel& model, const Sequences& documents, const PrefillOptions& options) {
  Collector collector(documents.tokens.size());
  model.prefill(documents.batch(), options, collector);
  return collector.found;
}

/// |a - b| / |b| of the whole tensor, and the largest |a - b| over the largest |b|.
struct Difference {
  double norm = 0, max = 0;
};
Difference difference(std::span<const float> a, std::span<const float> b) {
  REQUIRE_EQ(a.size(), b.size());
  double error = 0, size = 0, max_error = 0, max_size = 0;
  bool finite = true;
  for (size_t i = 0; i < a.size(); ++i) {
    finite = finite && std::isfinite(a[i]);
    const double d = std::abs(double(a[i]) - b[i]);
    error += d * d, size += double(b[i]) * b[i];
    max_error = std::max(max_error, d), max_size = std::max(max_size, std::abs(double(b[i])));
  }
  REQUIRE(finite);
  return {std::sqrt(error / size), max_error / max_size};
}

bool same_bytes(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return false;
  return std::equal(a.begin(), a.end(), b.begin(), [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.size() == y.second.size() &&
           std::memcmp(x.second.data(), y.second.data(), x.second.size() * sizeof(float)) == 0;
  });
}

}  // namespace

TEST_CASE("forward pass: keys, values, queries and logits are those of transformers") {
  // Per tensor and layer, in both measures of Difference. float32 on both sides gives a few 1e-6; a wrong constant, layout or mask
  // at least 1e-2.
  constexpr double kAllowed = 2e-5;
  std::map<std::string, Difference> worst;  // of each family
  for (const std::string& name : test::golden_models()) {
    CAPTURE(name);
    const Model model(folder_of(name));
    const Sequences documents = read_documents(folder_of(name));
    const Safetensors reference = Safetensors::open_file(folder_of(name) + "/reference.safetensors");
    PrefillOptions options;
    options.queries = options.before_rope = true;
    options.logits = LogitRows::all;
    Tensors found = run(model.model, documents, options);
    const std::vector<float>& logits = found.at("logits");
    if (reference.find("logits")->shape[0] ==
        documents.offsets.size() - 1) {  // the last token of each document only
      const size_t width = logits.size() / documents.tokens.size();
      std::vector<float> last;
      for (size_t i = 1; i < documents.offsets.size(); ++i) {
        const auto row = std::span(logits).subspan((documents.offsets[i] - 1) * width, width);
        last.insert(last.end(), row.begin(), row.end());
      }
      found["logits"] = last;
    }
    size_t layers = 0;
    for (int layer = 0; layer < model.model.config().num_layers; ++layer)
      layers += model.model.config().has_cache(layer) ? 1 : 0;
    const size_t kinds = model.model.config().is_latent() ? 2 : 3;  // no values
    CHECK_EQ(reference.names().size(), kinds * layers + 2);
    for (const std::string& tensor : reference.names()) {
      CAPTURE(tensor);
      const Difference d = difference(found.at(tensor), read_floats(*reference.find(tensor)));
      CHECK_LE(d.norm, kAllowed);
      CHECK_LE(d.max, kAllowed);
      Difference& limit = worst[model.model.config().family];
      limit = {std::max(limit.norm, d.norm), std::max(limit.max, d.max)};
    }
  }
  for (const families::Family& family : families::all_families()) {
    CAPTURE(family.model_type);
    CHECK(worst.contains(std::string(family.model_type)));
  }
  for (const auto& [family, d] : worst)
    MESSAGE(family, ": largest difference: norm ", d.norm, ", max ", d.max);
}

TEST_CASE("forward pass: chunks, packing and stopping early change nothing but rounding") {
  constexpr double kAllowed = 1e-5;
  for (const std::string name :
       {"llama-long",       "mistral-long", "mistral-4",       "qwen2-8",   "qwen3-2",      "smollm3-1",
        "phi3-2",           "gemma2-1",     "gpt_neox-1",      "mixtral-1", "gpt_oss-long", "deepseek_v2-2",
        "deepseek_v3-long", "qwen3_next-1", "qwen3_next-long", "qwen3_5-1", "gemma4-1",     "gemma4-2",
        "gemma4-3",         "lfm2-1",       "lfm2-long",       "gpt2-1"}) {
    CAPTURE(name);
    const Model model(folder_of(name));
    const Sequences documents = read_documents(folder_of(name));
    PrefillOptions options;
    options.chunk = documents.tokens.size();
    options.logits = LogitRows::all;
    options.queries = options.before_rope = true;
    const Tensors whole = run(model.model, documents, options);

    for (const size_t chunk : {size_t{1}, size_t{7}, size_t{64}, size_t{333}, size_t{1} << 40}) {
      if (chunk == 1 && documents.tokens.size() > 200) continue;
      CAPTURE(chunk);
      options.chunk = chunk;
      const Tensors chunked = run(model.model, documents, options);
      CHECK_EQ(chunked.size(), whole.size());
      for (const auto& [tensor, values] : whole)
        CHECK_LE(difference(chunked.at(tensor), values).norm, kAllowed);
    }

    options.chunk = 50;
    for (size_t i = 0; i + 1 < documents.offsets.size(); ++i) {
      Sequences alone;
      alone.add(documents.document(i));
      for (const auto& [tensor, values] : run(model.model, alone, options)) {
        const size_t width = values.size() / alone.tokens.size();
        const auto packed = std::span(whole.at(tensor)).subspan(documents.offsets[i] * width, values.size());
        CHECK_LE(difference(values, packed).norm, kAllowed);
      }
    }

    options.chunk = documents.tokens.size();
    options.logits = LogitRows::none;
    options.before_rope = false;
    options.layers = 1;
    const Tensors first = run(model.model, documents, options);
    const ModelConfig& config = model.model.config();
    CHECK_EQ(first.size(), config.is_delta(0) ? 0 : config.is_latent() ? 2 : 3);
    for (const auto& [tensor, values] : first) CHECK_EQ(values, whole.at(tensor));
  }
}

namespace {

/// Keys and values of one document's first tokens, from a run over it.
class Remembered final : public PastCache {
 public:
  Remembered(const Collector& run, size_t tokens)
      : tensors_(run.found), states_(run.states), tokens_(tokens) {}
  void read(int layer, size_t, MatrixView<float> keys, MatrixView<float> values) override {
    fill(fmt::format("key.{}", layer), keys);
    fill(fmt::format("value.{}", layer), values);
  }
  std::span<const float> state(int layer, size_t document) const override {
    return states_.at({layer, document});
  }

 private:
  void fill(const std::string& name, MatrixView<float> rows) const {
    REQUIRE_EQ(rows.rows(), tokens_);
    for (size_t i = 0; i < rows.rows() && rows.cols() > 0; ++i)
      std::ranges::copy(std::span(tensors_.at(name)).subspan(i * rows.cols(), rows.cols()),
                        rows.row(i).begin());
  }

  const Tensors& tensors_;
  const std::map<std::pair<int, size_t>, std::vector<float>>& states_;
  size_t tokens_;
};

}  // namespace

TEST_CASE("forward pass: a document goes on from the cache of its beginning") {
  for (const std::string name :
       {"llama-4", "mistral-1", "deepseek_v2-2", "deepseek_v3-1", "deepseek_v3-2", "qwen3_next-1",
        "qwen3_5-1", "gemma4-1", "gemma4-2", "lfm2-1", "lfm2-2", "gpt2-2"}) {
    CAPTURE(name);
    const Model model(folder_of(name));
    const Sequences all = read_documents(folder_of(name));
    Sequences alone, rest;
    alone.add(all.document(2));
    PrefillOptions options;
    options.queries = true;
    options.logits = LogitRows::all;
    constexpr size_t kPast = 20;
    options.state_at = kPast, options.chunk = 13;
    Collector of_whole(alone.tokens.size());
    model.model.prefill(alone.batch(), options, of_whole);
    const Tensors& whole = of_whole.found;
    options.state_at = 0;
    rest.add(all.document(2).subspan(kPast));
    Remembered cache(of_whole, kPast);
    const std::vector<uint64_t> past = {kPast};
    Collector collector(rest.tokens.size());
    PrefillBatch batch = rest.batch();
    batch.past = past, batch.cache = &cache;
    model.model.prefill(batch, options, collector);
    for (const auto& found : collector.found) {
      const std::string& tensor = found.first;  // clang 14 captures no binding
      const auto& values = found.second;
      CAPTURE(tensor);
      const std::vector<float>& expected = whole.at(tensor);
      CHECK_LE(difference(values, std::span(expected).last(values.size())).norm, 1e-5);
    }
  }
}

TEST_CASE("forward pass: empty documents and empty batches") {
  const Model model(folder_of("llama-2"));
  const Sequences documents = read_documents(folder_of("llama-2"));
  PrefillOptions options;
  options.queries = true;
  options.logits = LogitRows::last;
  Sequences with_empty;
  with_empty.add({});
  for (size_t i = 0; i + 1 < documents.offsets.size(); ++i)
    with_empty.add(documents.document(i)), with_empty.add({});
  CHECK(same_bytes(run(model.model, documents, options), run(model.model, with_empty, options)));
  Sequences none;
  CHECK(run(model.model, none, options).empty());
  none.add({});
  CHECK(run(model.model, none, options).empty());
}

TEST_CASE("forward pass: the same bytes for any number of threads and any instruction set") {
  for (const std::string name : {"llama-4", "mistral-long", "qwen3-4", "granite-1", "gpt_oss-1", "gemma2-1",
                                 "deepseek_v3-1", "qwen3_next-1", "gemma4-1"}) {
    CAPTURE(name);
    const Model model(folder_of(name));
    const Sequences documents = read_documents(folder_of(name));
    PrefillOptions options;
    options.chunk = 90;
    options.logits = LogitRows::all;
    options.queries = options.before_rope = true;
    set_num_threads(1);
    const Tensors one = run(model.model, documents, options);
    for (const int threads : {2, 3}) {
      set_num_threads(threads);
      CHECK(same_bytes(one, run(model.model, documents, options)));
    }
    set_num_threads(0);
    for (const SimdLevel level : test::simd_levels()) {
      const test::AtLevel at(level);
      CAPTURE(name_of(level));
      CHECK(same_bytes(one, run(model.model, documents, options)));
    }
  }
}

TEST_CASE("forward pass: what is asked wrongly is refused") {
  const Model model(folder_of("qwen2-1"));
  const Sequences documents = read_documents(folder_of("qwen2-1"));
  Collector sink(documents.tokens.size());
  PrefillOptions options;
  options.layers = 3;
  CHECK_THROWS_WITH(model.model.prefill(documents.batch(), options, sink),
                    "3 layers asked for; the model has 2");
  options.layers = 1;
  options.logits = LogitRows::last;
  CHECK_THROWS_WITH(model.model.prefill(documents.batch(), options, sink), "logits need all 2 layers, not 1");
  options = {};
  options.chunk = 0;
  CHECK_THROWS_WITH(model.model.prefill(documents.batch(), options, sink),
                    "a chunk of 0 tokens; it must have at least 1");
  Sequences beyond;
  beyond.add(std::vector<uint32_t>{5, 64});
  CHECK_THROWS_WITH(model.model.prefill(beyond.batch(), {}, sink),
                    "token 1 has id 64; the model's vocabulary has 64");
  const Model learned(folder_of("gpt2-1"));
  beyond = {};
  beyond.add(std::vector<uint32_t>(2049));
  CHECK_THROWS_WITH(learned.model.prefill(beyond.batch(), {}, sink),
                    "a document of 2049 tokens; the model has vectors for 2048 positions");
  const std::vector<uint64_t> past = {2040};
  beyond = {};
  beyond.add(std::vector<uint32_t>(9));
  PrefillBatch later = beyond.batch();
  Collector nothing(0);
  Remembered cache(nothing, 2040);
  later.past = past, later.cache = &cache;
  CHECK_THROWS_WITH(learned.model.prefill(later, {}, sink),
                    "a document of 2049 tokens; the model has vectors for 2048 positions");
  const std::vector<uint64_t> wrong = {0, 1};
  CHECK_THROWS_AS(model.model.prefill({documents.tokens, wrong}, {}, sink), Error);
}

TEST_CASE(
    "rotary embedding: frequencies, cosines and sines are those of transformers up to position 131071") {
  for (const std::string name : {"rope-default", "rope-linear", "rope-llama3", "rope-yarn"}) {
    CAPTURE(name);
    const ModelConfig config = read_model_config(folder_of(name)).config;
    const Safetensors reference = Safetensors::open_file(folder_of(name) + "/reference.safetensors");
    const auto tensor = [&](const char* key) { return read_floats(*reference.find(key)); };
    const std::vector<float> frequencies = rope_frequencies(config.rope, config.head_dim),
                             expected = tensor("frequency");
    REQUIRE_EQ(frequencies.size(), expected.size());
    // A power with an error of one unit in the last place, and a few more roundings.
    for (size_t j = 0; j < expected.size(); ++j)
      CHECK_LE(std::abs(frequencies[j] - expected[j]), 0x1p-22 * expected[j]);
    const std::vector<float> positions = tensor("position"), cosines = tensor("cosine"),
                             sines = tensor("sine");
    const RopeTable table(config.rope, config.head_dim, static_cast<size_t>(positions.back()) + 1);
    for (size_t i = 0; i < positions.size(); ++i)
      for (size_t j = 0; j < expected.size(); ++j) {
        const auto position = static_cast<size_t>(positions[i]);
        // The effect of such a difference in the frequency at that position, and the last place of the cosine.
        const double allowed = positions[i] * expected[j] * 0x1p-22 + 0x1p-23;
        CHECK_LE(std::abs(table.cosines(position)[j] - cosines[i * expected.size() + j]), allowed);
        CHECK_LE(std::abs(table.sines(position)[j] - sines[i * expected.size() + j]), allowed);
      }
  }
}

TEST_CASE("rotary embedding: what kv files say of it is enough to do it") {
  for (const std::string& name : test::golden_models()) {
    CAPTURE(name);
    const ModelDescription description = read_model_config(folder_of(name));
    const ModelConfig& config = description.config;
    ModelConfig found;
    found.num_layers = config.num_layers, found.head_dim = config.head_dim,
    found.local_head_dim = config.local_head_dim, found.rope.theta = config.rope.theta;
    read_rope_description(description.rope_scaling, found);
    constexpr size_t kLongest = 100;
    const RopeTables tables(config, kLongest), same(found, kLongest);
    for (int layer = 0; layer < config.num_layers; ++layer)
      for (const size_t tokens : {size_t{5}, kLongest}) {
        const RopeTable *const a = tables.table(layer, tokens), *const b = same.table(layer, tokens);
        REQUIRE_EQ(a == nullptr, b == nullptr);
        if (!a) continue;
        const auto cosines = a->cosines(kLongest - 1), others = b->cosines(kLongest - 1);
        CHECK(std::ranges::equal(cosines, others));
        CHECK(std::ranges::equal(a->sines(3), b->sines(3)));
      }
  }
}

TEST_CASE("forward pass: a trained model continues <s> with its sentence") {
  const std::string folder = test::source_dir() + "/../shared/models/stories260K";
  if (!std::filesystem::exists(folder)) SKIP("no ../shared/models/stories260K");
  // " Once upon a time, there was a little girl named Lily. She loved to play outside in the park." in its
  // vocabulary.
  const std::vector<uint32_t> sentence = {403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315,
                                          421, 395, 317, 426, 338, 401, 396, 267, 337, 410, 408,
                                          419, 292, 411, 322, 265, 282, 295, 433, 426};
  const Model model(folder);
  std::vector<uint32_t> ids = {1};
  PrefillOptions options;
  options.logits = LogitRows::last;
  while (ids.size() <= sentence.size()) {
    Sequences text;
    text.add(ids);
    Collector sink(ids.size());
    model.model.prefill(text.batch(), options, sink);
    const std::vector<float>& logits = sink.last_logits.at(0);
    ids.push_back(static_cast<uint32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
  }
  ids.erase(ids.begin());
  CHECK_EQ(ids, sentence);
}

}  // namespace model_test
