#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include <hdf5.h>

#include "formats/cache/kv_file.hpp"
#include "formats/cache/score_forms.hpp"
#include "formats/hdf5/hdf5.hpp"
#include "formats/io/journal.hpp"
#include "lib/core/parallel.hpp"
#include "lib/core/rng.hpp"
#include "test/formats/edit.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/samples.hpp"
#include "test/test.hpp"

namespace kv_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

struct Written {
  ModelInfo model;
  std::vector<int> layers;
  Documents documents;
  std::vector<uint32_t> tokens;
  std::vector<uint64_t> positions;
  std::map<std::pair<int, Side>, Matrix<float>> rows;  // as stored
};

/// Writes random documents with rows in random pieces, the layers interleaved, and returns the expected content.
Written write_random(const std::string& path, int heads, int head_dim, DType dtype,
                     const std::vector<uint64_t>& lengths, uint64_t seed, bool with_tokens, bool announce) {
  Rng rng(seed);
  Written w;
  w.model = sample_model(5, heads, head_dim);
  w.layers = {1, 2, 4};
  const size_t width = static_cast<size_t>(heads) * static_cast<size_t>(head_dim);
  OutputFile output(path, true);
  KvWriter writer(output, w.model, dtype, w.layers, std::nullopt);
  for (const uint64_t length : lengths)
    w.documents.add("text " + std::to_string(w.documents.count()), length);
  if (announce) writer.expect(w.documents);
  std::map<std::pair<int, Side>, uint64_t> done;
  for (const int layer : w.layers)
    for (const Side side : kSides) {
      const Matrix<float> rows = random_rows(w.documents.tokens(), width,
                                             seed + static_cast<uint64_t>(layer) * 2 + (side == Side::value));
      w.rows[{layer, side}] = rows;
      done[{layer, side}] = 0;
    }
  for (size_t d = 0; d < lengths.size(); ++d) {
    std::vector<uint32_t> tokens(lengths[d]);
    for (auto& token : tokens) token = static_cast<uint32_t>(rng.below(100000));
    const auto positions = counting(d * 7, lengths[d]);
    writer.add_document(w.documents.names[d], with_tokens ? tokens : std::vector<uint32_t>{}, positions);
    w.tokens.insert(w.tokens.end(), tokens.begin(), tokens.end());
    w.positions.insert(w.positions.end(), positions.begin(), positions.end());
    // Sometimes the rows of a document wait until the next one is there as well.
    while (rng.below(8) != 0)
      for (auto& [place, count] : done) {
        const uint64_t left = w.documents.offsets[d + 1] - count;
        const uint64_t n = std::min(left, rng.below(3) == 0 ? left : rng.below(2000));
        writer.append(place.second, place.first, w.rows[place].view().rows(count, n));
        count += n;
      }
  }
  for (auto& [place, count] : done)
    writer.append(place.second, place.first, w.rows[place].view().rows(count, w.documents.tokens() - count));
  writer.finish({"kvcodec test", {"one", "two"}});
  output.commit();
  for (auto& [place, rows] : w.rows) rows = rounded(rows, dtype);
  return w;
}

bool same(MatrixView<const float> a, MatrixView<const float> b) {
  for (size_t i = 0; i < a.rows(); ++i)
    if (!std::equal(a.row(i).begin(), a.row(i).end(), b.row(i).begin())) return false;
  return a.rows() == b.rows();
}

void check_content(const std::string& path, const Written& w, DType dtype, uint64_t seed, bool with_tokens) {
  Rng rng(seed);
  const KvReader reader(path);
  CHECK(reader.type().type == "kv");
  CHECK(reader.type().version == 1);
  CHECK(reader.type().history == std::vector<std::string>{"one", "two", "kvcodec test"});
  CHECK(reader.model() == w.model);
  CHECK(reader.layers() == w.layers);
  CHECK(reader.dtype() == dtype);
  CHECK(reader.documents().names == w.documents.names);
  CHECK(reader.documents().offsets == w.documents.offsets);
  const uint64_t total = w.documents.tokens();
  CHECK(reader.positions(0, total) == w.positions);
  CHECK(reader.has_tokens() == with_tokens);
  if (with_tokens) CHECK(reader.tokens(0, total) == w.tokens);
  CHECK(reader.file_bytes() == file_bytes(path).size());
  const size_t width = w.rows.begin()->second.cols();
  for (const auto& [place, expected] : w.rows) {
    Matrix<float> all(total, width);
    reader.read(place.second, place.first, 0, all);
    CHECK(same(all.view(), expected.view()));
    for (int repeat = 0; repeat < 5; ++repeat) {
      const uint64_t first = rng.below(total + 1), count = rng.below(total - first + 1);
      Matrix<float> part(count, width);
      reader.read(place.second, place.first, first, part);
      CHECK(same(part.view(), expected.view().rows(first, count)));
    }
  }
  // Two layers side by side, as codecs take them.
  Matrix<float> group(total, 2 * width);
  reader.read(usual_group(1, 2, w.model.num_kv_heads, w.model.head_dim, Side::value), 0, group);
  CHECK(same(group.view().columns(0, width), w.rows.at({1, Side::value}).view()));
  CHECK(same(group.view().columns(width, width), w.rows.at({2, Side::value}).view()));
}

}  // namespace

TEST_CASE("kv: what a model does to scores comes back, and is refused where it makes no sense") {
  const Folder folder;
  const std::string file = folder / "kv.h5";
  const auto written = [&](const std::string& scores) {
    ModelInfo model = sample_model(2, 2, 12);
    model.scores = scores;
    OutputFile output(file, true);
    KvWriter writer(output, model, DType::f32, {0}, std::nullopt);
    writer.add_document("a", std::vector<uint32_t>(3), counting(0, 3));
    for (const Side side : kSides) writer.append(side, 0, random_rows(3, 24, 1));
    writer.finish({"kvcodec test", {}});
    output.commit();
    return KvReader(file).model();
  };
  CHECK_FALSE(score_forms(written("")).known);
  const ScoreForms plain = score_forms(written("{}"));
  CHECK(plain.known);
  CHECK(plain.of(1).is_plain());
  ScoreForms forms{
      .known = true, .cap = 50, .windows = {0, 3}, .q_heads = size_t(sample_model(2, 2, 12).num_q_heads)};
  for (size_t i = 0; i < 2 * forms.q_heads; ++i) forms.sinks.push_back(0.1f * float(i));
  const ScoreForms found = score_forms(written(text_of(forms)));
  CHECK_EQ(text_of(found), text_of(forms));
  CHECK(found.sinks == forms.sinks);
  CHECK_EQ(found.of(1).sinks.size(), forms.q_heads);
  CHECK_EQ(found.of(1).sinks[0], forms.sinks[forms.q_heads]);
  const std::vector<uint64_t> positions = {0, 1, 2, 5, 6};
  CHECK_EQ(found.first_seen(0, positions, 6), 0);
  CHECK_EQ(found.first_seen(1, positions, 2), 0);
  CHECK_EQ(found.first_seen(1, positions, 6), 3);
  CHECK_EQ(found.first_seen(1, positions, 20), 5);
  for (const char* bad :
       {"[]", R"({"cap":0})", R"({"cap":"x"})", R"({"windows":[1]})", R"({"windows":[1,-1]})",
        R"({"windows":[1,0.5]})", R"({"sinks":[1,2]})", R"({"sinks":[[1],[2]]})"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(written(bad), Error);
  }
}

TEST_CASE("kv: layers of several shapes come back, with what their queries meet") {
  const Folder folder;
  ModelInfo model = sample_model(5, 2, 12);
  const std::vector<LayerShape> shapes = {{.heads = 2, .key_dim = 12, .value_dim = 7},
                                          {.heads = 1, .key_dim = 12, .value_dim = 9, .values_in_keys = true},
                                          {.source = 1},
                                          {},
                                          {.heads = 2, .key_dim = 5, .value_dim = 20}};
  CHECK(with_layer_shapes(model, std::vector(5, usual_layer(2, 12))).one_shape());
  model = with_layer_shapes(model, shapes);
  CHECK_EQ(group_shape(model, {4}, Side::value).width(), 40);
  CHECK_EQ(group_shape(model, {1}, Side::key).width(), 12);
  CHECK_THROWS_AS(group_shape(model, {1}, Side::value), Error);
  CHECK_THROWS_AS(group_shape(model, {0, 1}, Side::key), Error);
  CHECK_THROWS_AS(group_shape(model, {3}, Side::key), Error);

  const std::string path = folder / "kv.h5";
  const uint64_t tokens = 300;
  std::map<std::pair<int, Side>, Matrix<float>> rows;
  std::map<int, Matrix<float>> queries;
  const std::vector<uint64_t> asking = {3, 299};
  {
    OutputFile output(path, true);
    KvWriter writer(output, model, DType::f32, {0, 1, 4}, DType::f32);
    writer.add_document("a", {}, counting(0, tokens));
    for (const int layer : {0, 1, 4}) {
      const LayerShape& shape = shapes[static_cast<size_t>(layer)];
      for (const Side side : kSides) {
        const auto width = static_cast<size_t>(shape.heads * shape.stored_dim(side));
        rows[{layer, side}] =
            random_rows(tokens, width, static_cast<uint64_t>(layer * 2 + (side == Side::value)));
        writer.append(side, layer, rows[{layer, side}]);
      }
      queries[layer] =
          random_rows(2, static_cast<size_t>(4 * shape.key_dim), 50 + static_cast<uint64_t>(layer));
      writer.append_queries(layer, asking, queries[layer]);
    }
    writer.finish({"kvcodec test", {}});
    output.commit();
  }
  const KvReader reader(path);
  CHECK(reader.model() == model);
  CHECK(reader.layers() == std::vector{0, 1, 4});
  for (const auto& [place, expected] : rows) {
    Matrix<float> all(tokens, expected.cols());
    reader.read(place.second, place.first, 0, all);
    CHECK(same(all.view(), expected.view()));
  }
  CHECK_EQ(rows.at({1, Side::value}).cols(), 0);
  for (const auto& [layer, expected] : queries) {
    Matrix<float> all(2, expected.cols());
    reader.read_queries(layer, 0, all);
    CHECK(same(all.view(), expected.view()));
    const auto together = reader.queries(layer);
    CHECK(std::equal(together->values.begin(), together->values.end(), expected.data()));
  }

  // Wrong attributes of layers.
  const auto refused = [&](const char* name, std::vector<uint64_t> numbers, const char* why) {
    std::filesystem::copy_file(path, folder / "copy.h5", std::filesystem::copy_options::overwrite_existing);
    {
      Edit edit(folder / "copy.h5");
      edit.set("/", name, numbers);
    }
    CAPTURE(name);
    CHECK_THROWS_WITH_AS(KvReader(folder / "copy.h5"), doctest::Contains(why), Error);
  };
  refused("layer_heads", {2, 1, 0, 0}, "has 4 numbers for 5 layers");
  refused("layer_heads", {2, 3, 0, 0, 2}, "layer 1: 3 heads");
  refused("layer_heads", {2, 1, 1, 0, 2}, "layer 2: it has heads of its own, and those of another layer");
  refused("layer_heads", {2, 0, 0, 0, 2}, "layer 1: it has no heads, but dimensions");
  refused("layer_key_dim", {13, 12, 0, 0, 5}, "layer 0: keys of 13 dimensions");
  refused("layer_value_dim", {7, 13, 0, 0, 20}, "layer 1: values of 13 dimensions cannot lie in keys of 12");
  refused("layer_value_dim", {8, 9, 0, 0, 20}, "/layers/0/value");
  refused("layer_source", {0, 1, 3, 3, 4}, "layer 2: its keys and values are those of layer 3");
  refused("layer_source", {0, 1, 5, 3, 4}, "has a 5; at most 4");
}

TEST_CASE("kv: layers hold the last tokens of documents, and are read by token") {
  const Folder folder;
  const std::string path = folder / "kv.h5";
  const ModelInfo model = sample_model(3, 2, 12);
  // Numbers of tokens that layers leave out of documents of 30, none, 5 and 8; the first layer has nothing of the last.
  const std::vector<uint64_t> lengths = {30, 0, 5, 8};
  const std::vector<std::vector<uint64_t>> left_out = {{20, 0, 3}, {0, 0, 0}, {}, {8, 0, 1}};
  std::map<std::pair<int, Side>, Matrix<float>> rows;  // of all tokens
  for (const int layer : {0, 1, 2})
    for (const Side side : kSides)
      rows[{layer, side}] = random_rows(43, 24, static_cast<uint64_t>(layer * 2 + (side == Side::value)));
  {
    OutputFile output(path, true);
    KvWriter writer(output, model, DType::f32, {0, 1, 2}, std::nullopt);
    uint64_t before = 0;
    for (size_t d = 0; d < lengths.size(); ++d) {
      writer.add_document("d" + std::to_string(d), {}, counting(0, lengths[d]), left_out[d]);
      for (const auto& [place, all] : rows) {
        const uint64_t none = left_out[d].empty() ? 0 : left_out[d][static_cast<size_t>(place.first)];
        const auto own = all.view().rows(before + none, lengths[d] - none);
        writer.append(place.second, place.first, own);
      }
      before += lengths[d];
    }
    CHECK_THROWS_WITH_AS(writer.append(Side::key, 0, rows.begin()->second.view().rows(0, 1)),
                         doctest::Contains("more rows than the documents have tokens there (15)"), Error);
    CHECK_THROWS_WITH_AS(writer.add_document("x", {}, counting(0, 5), std::vector<uint64_t>{6, 0, 0}),
                         doctest::Contains("layer 0 leaves out 6 of 5 tokens"), Error);
    CHECK_THROWS_AS(writer.add_document("x", {}, counting(0, 5), std::vector<uint64_t>{1, 0}), Error);
    writer.finish({"kvcodec test", {}});
    output.commit();
  }
  const KvReader reader(path);
  CHECK(reader.model() == model);
  const Documents& documents = reader.documents();
  CHECK_FALSE(documents.whole());
  CHECK_EQ(documents.held(0), 15);
  CHECK_EQ(documents.held(1), 43);
  CHECK_EQ(documents.held(2), 39);
  for (const auto& [place, all] : rows)
    for (size_t d = 0; d < lengths.size(); ++d)
      for (uint64_t first = documents.left_out_of(place.first, d); first < lengths[d]; ++first) {
        const uint64_t token = documents.offsets[d] + first, count = lengths[d] - first;
        Matrix<float> some(count, 24);
        reader.read(place.second, place.first, token, some);
        CHECK(same(some.view(), all.view().rows(token, count)));
      }
  Matrix<float> two(2, 24), none(0, 24);
  CHECK_THROWS_WITH_AS(reader.read(Side::key, 0, 19, two),
                       doctest::Contains("/layers/0/key: tokens 19 to 20 are wanted"), Error);
  CHECK_THROWS_AS(reader.read(Side::key, 0, 34, two), Error);  // of two documents
  CHECK_THROWS_AS(reader.read(Side::key, 0, 41, two), Error);  // the layer has none of that document
  CHECK_THROWS_AS(reader.read(Side::key, 1, 42, two), Error);  // beyond the end
  reader.read(Side::key, 0, 43, none);

  // Wrong data about left-out tokens.
  const auto refused = [&](const std::vector<uint64_t>& numbers, const char* why) {
    std::filesystem::copy_file(path, folder / "copy.h5", std::filesystem::copy_options::overwrite_existing);
    {
      Edit edit(folder / "copy.h5");
      edit.put("/documents/left_out", H5T_STD_U64LE, H5T_NATIVE_UINT64, {4, 3}, numbers);
    }
    CHECK_THROWS_WITH_AS(KvReader(folder / "copy.h5"), doctest::Contains(why), Error);
  };
  refused({20, 0, 3, 1, 0, 0, 0, 0, 0, 8, 0, 1}, "leaves out 1 tokens of document 1 in layer 0; that has 0");
  refused({20, 0, 3, 0, 0, 0, 0, 0, 0, 7, 0, 1}, "/layers/0/key");
}

namespace {

/// Documents with queries, and layers that leave out tokens of long ones. The content of a document depends only on its number.
class GrowingSample {
 public:
  GrowingSample(DType dtype, bool window) : dtype_(dtype), window_(window) { model_ = sample_model(3, 2, 8); }

  Documents documents(size_t first, size_t end) const {
    Documents table;
    for (size_t i = first; i < end; ++i) table.add(name(i), length(i), left_out(i), facts(i));
    return table;
  }

  void create(const std::string& path, size_t end) const {
    OutputFile output(path, true);
    KvWriter writer(output, model_, dtype_, {0, 2}, DType::f32);
    write(writer, 0, 0, end);
    output.commit();
  }
  /// commit: false leaves the file as it is.
  void add(const std::string& path, size_t first, size_t end, bool commit = true) const {
    const HeldFile held(path, [] { FAIL("nobody else holds the file"); });
    OutputFile output(path, held);
    {
      const KvReader before(path);
      KvWriter writer(output, before);
      write(writer, before.documents().tokens(), first, end);
    }
    if (commit) output.commit();
  }

  /// The file must hold documents [0, end).
  void check(const KvReader& kv, size_t end) const {
    const Documents wanted = documents(0, end);
    CHECK(kv.documents().names == wanted.names);
    REQUIRE(kv.documents().offsets == wanted.offsets);
    CHECK(kv.documents().left_out == wanted.left_out);
    CHECK(kv.documents().facts == wanted.facts);
    CHECK_EQ(kv.dtype(), dtype_);
    CHECK(kv.query_dtype() == DType::f32);
    std::vector<uint64_t> asking;
    for (size_t i = 0; i < end; ++i) {
      const uint64_t begin = wanted.offsets[i], count = length(i);
      CHECK(kv.tokens(begin, count) == tokens(i));
      CHECK(kv.positions(begin, count) == counting(0, count));
      for (const int layer : {0, 2})
        for (const Side side : kSides) {
          const uint64_t missing = wanted.left_out_of(layer, i);
          Matrix<float> found(count - missing, 16);
          kv.read(side, layer, begin + missing, found);
          CHECK(same(found, rounded(rows(i, layer, side), dtype_)));
        }
      if (count > 0) asking.push_back(begin + count - 1);
    }
    CHECK(kv.query_token_rows(0, kv.query_tokens()) == asking);
    for (const int layer : {0, 2}) {
      Matrix<float> found(asking.size(), 32);
      kv.read_queries(layer, 0, found);
      size_t query = 0;
      for (size_t i = 0; i < end; ++i)
        if (length(i) > 0) CHECK(same(found.view().rows(query++, 1), random_rows(1, 32, i * 7 + 5)));
    }
  }

 private:
  static std::string name(size_t i) { return fmt::format("document {}", i); }
  static uint64_t length(size_t i) { return i % 5 == 3 ? 0 : i % 7 == 6 ? 900 : 1 + i * 13 % 40; }
  static DocumentFacts facts(size_t i) {
    DocumentFacts facts{
        .digest = token_digest(tokens(i)), .metadata = i % 4 == 2 ? R"({"a":1})" : "", .time = i};
    if (i % 3 == 1)
      facts.state = {
          state_tensor("matrix", DType::bf16, {2, i}, std::vector<std::byte>(4 * i, std::byte{7}))};
    return facts;
  }
  static std::vector<uint32_t> tokens(size_t i) {
    std::vector<uint32_t> ids(length(i));
    for (size_t t = 0; t < ids.size(); ++t) ids[t] = static_cast<uint32_t>(i * 1000 + t);
    return ids;
  }
  std::vector<uint64_t> left_out(size_t i) const {
    constexpr uint64_t kWindow = 20;
    if (!window_ || length(i) <= kWindow) return {};
    return {0, 0, length(i) - kWindow};
  }
  /// Those that the layer holds.
  Matrix<float> rows(size_t i, int layer, Side side) const {
    const auto missing = left_out(i);
    const uint64_t count = length(i) - (missing.empty() ? 0 : missing[static_cast<size_t>(layer)]);
    return random_rows(count, 16, i * 31 + static_cast<uint64_t>(layer) * 2 + (side == Side::value));
  }
  void write(KvWriter& writer, uint64_t token, size_t first, size_t end) const {
    writer.expect(documents(first, end));
    for (size_t i = first; i < end; ++i) {
      writer.add_document(name(i), tokens(i), counting(0, length(i)), left_out(i), facts(i));
      token += length(i);
      for (const int layer : {0, 2}) {
        for (const Side side : kSides) writer.append(side, layer, rows(i, layer, side));
        if (length(i) > 0)
          writer.append_queries(layer, std::vector<uint64_t>{token - 1}, random_rows(1, 32, i * 7 + 5));
      }
    }
    writer.finish({"kvcodec test", {}});
  }

  DType dtype_;
  bool window_;
  ModelInfo model_;
};

uint64_t rows_of(const std::string& path, const std::string& dataset) {
  return h5::File::open(path).dataset(dataset).rows();
}

}  // namespace

TEST_CASE("kv: documents are added in place, and the file holds what one that is written at once holds") {
  const Folder folder;
  const std::string path = folder / "kv.h5";
  struct Kind {
    DType dtype;
    bool window;
  };
  for (const Kind& kind : {Kind{DType::bf16, false}, Kind{DType::f32, true}}) {
    const GrowingSample sample(kind.dtype, kind.window);
    size_t end = 0;
    sample.create(path, end);
    for (const size_t now : std::vector<size_t>{1, 1, 2, 4, 7, 8, 9, 20, 60, 61}) {
      CAPTURE(now);
      sample.add(path, end, now, false);
      sample.check(KvReader(path), end);
      {
        std::optional<KvReader> before;  // a commit waits for readers
        if (now == 9 && kind.dtype == DType::f32) before.emplace(path);
        sample.add(path, end, now);
        if (before) sample.check(*before, end);
      }
      end = now;
      const KvReader after(path);
      sample.check(after, end);
      const h5::File file = h5::File::open(path);
      for (const std::string& dataset : file.datasets()) {
        file.dataset(dataset).verify();
        CHECK(file.dataset(dataset).has_digests());
      }
    }
  }
}

TEST_CASE("kv: the table of digests of a file that grows stays in proportion to its pieces") {
  const Folder folder;
  const std::string path = folder / "kv.h5";
  const GrowingSample sample(DType::f32, false);
  sample.create(path, 1);
  uint64_t largest = 0;
  for (size_t end = 2; end <= 60; ++end) {
    sample.add(path, end - 1, end);
    const h5::File file = h5::File::open(path);
    uint64_t pieces = 0;
    for (const std::string& dataset : file.datasets()) {
      const uint64_t rows = file.extents(dataset, "digests").front();
      pieces += (file.dataset(dataset).rows() + rows - 1) / rows;
    }
    largest = std::max(largest, pieces);
  }
  CHECK_LT(rows_of(path, "/digests"), 4 * largest);
}

TEST_CASE("kv: what is added goes behind the file's end, also where datasets get larger chunks") {
  const Folder folder;
  const std::string path = folder / "kv.h5";
  const auto write = [](KvWriter& writer, uint64_t tokens) {
    Documents document;
    document.add("d", tokens);
    writer.expect(document);
    writer.add_document("d", {}, counting(0, tokens));
    for (const int layer : {0, 1})
      for (const Side side : kSides) writer.append(side, layer, random_rows(tokens, 16, tokens));
    writer.finish({"kvcodec test", {}});
  };
  {
    OutputFile output(path, true);
    KvWriter writer(output, sample_model(2, 1, 16), DType::f32, {0, 1}, std::nullopt);
    write(writer, 100);
    output.commit();
  }
  uint64_t chunk = 0;
  for (const uint64_t tokens : {30000, 300000}) {
    const HeldFile held(path, [] { FAIL("nobody else holds the file"); });
    OutputFile output(path, held);
    {
      const KvReader before(path);
      KvWriter writer(output, before);
      write(writer, tokens);
    }
    // A page for each change to what was there: headers, indices, the rows of a last chunk.
    CHECK_LT(output.in_place()->overlay()->pages.size() * Overlay::kPageBytes, uint64_t{1} << 20);
    output.commit();
    const uint64_t was =
        std::exchange(chunk, h5::File::open(path).extents("/layers/1/value", "digests").front());
    CHECK_GT(chunk, was);
  }
}

TEST_CASE("kv: nothing is added behind rows whose digests do not hold") {
  const Folder folder;
  const std::string path = folder / "kv.h5";
  const GrowingSample sample(DType::f32, false);
  sample.create(path, 1);
  for (size_t end = 2; end < 30; ++end) sample.add(path, end - 1, end);
  uint64_t table = 0;
  {
    const Edit edit(path);
    const hid_t dataset = Edit::check(H5Dopen2(edit.file(), "/digests", H5P_DEFAULT));
    const hsize_t first[2] = {};
    Edit::check(H5Dget_chunk_info_by_coord(dataset, first, nullptr, &table, nullptr));
    H5Dclose(dataset);
  }
  const uint64_t rows = rows_of(path, "/digests");
  const std::string good = file_bytes(path);
  const auto put = [&](const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; };
  size_t refused = 0;
  for (uint64_t row = 0; row < rows && row < 32; ++row) {
    std::string bad = good;
    bad[table + row * 16 + 3] ^= 1;
    put(bad);
    try {
      sample.add(path, 29, 30, false);
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find("digest") != std::string::npos);
      ++refused;
    }
    put(good);
  }
  CHECK(refused > 0);
  sample.add(path, 29, 30);
  sample.check(KvReader(path), 30);
}

TEST_CASE("kv: where layers hold all tokens and have one shape, nothing is said of either") {
  const Folder folder;
  OutputFile output(folder / "kv.h5", true);
  KvWriter writer(output, sample_model(2, 1, 4), DType::f32, {0}, std::nullopt);
  writer.add_document("a", {}, counting(0, 3), std::vector<uint64_t>{0, 0});
  for (const Side side : kSides) writer.append(side, 0, random_rows(3, 4, 1).view());
  writer.finish({"kvcodec test", {}});
  output.commit();
  const h5::File file = h5::File::open(folder / "kv.h5");
  CHECK_FALSE(file.has("/documents/left_out"));
  CHECK_FALSE(file.has_attribute("/", "layer_heads"));
}

TEST_CASE("kv: rows, documents and tokens come back, any shape, type and order of writing") {
  const Folder folder;
  uint64_t seed = 100;
  struct Shape {
    int heads, head_dim;
    std::vector<uint64_t> lengths;
  };
  for (const Shape& shape : {Shape{1, 1, {}}, Shape{1, 1, {0}}, Shape{2, 3, {1}}, Shape{3, 5, {7, 0, 100, 1}},
                             Shape{8, 128, {530, 0, 40, 70}}, Shape{1, 64, {0, 8300}}})
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
      for (const bool announce : {false, true}) {
        ++seed;
        // Under sanitizers long ones take each type once.
        if (kSanitized && std::ranges::any_of(shape.lengths, [](uint64_t length) { return length > 500; }) &&
            announce == (dtype == DType::f16))
          continue;
        CAPTURE(seed);
        const bool with_tokens = seed % 3 != 0;
        const Written w = write_random(folder / "kv.h5", shape.heads, shape.head_dim, dtype, shape.lengths,
                                       seed, with_tokens, announce);
        check_content(folder / "kv.h5", w, dtype, seed, with_tokens || w.positions.empty());
      }
}

TEST_CASE("kv: same bytes for any number of threads (long)") {
  const std::vector<uint64_t> lengths =
      kSanitized ? std::vector<uint64_t>{600, 500} : std::vector<uint64_t>{3000, 2000};
  const Environment epoch("SOURCE_DATE_EPOCH", "1700000000");
  const Folder folder;
  for (const bool announce : {false, true}) {
    set_num_threads(1);
    write_random(folder / "one.h5", 8, 128, DType::bf16, lengths, 5, true, announce);
    set_num_threads(4);
    write_random(folder / "four.h5", 8, 128, DType::bf16, lengths, 5, true, announce);
    set_num_threads(0);
    CHECK(file_bytes(folder / "one.h5") == file_bytes(folder / "four.h5"));
  }
}

TEST_CASE("kv: HDF5's own pipeline accepts our chunks and reads the same numbers, 16-bit floats too") {
  const Folder folder;
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    CAPTURE(name_of(dtype));
    const Written w = write_random(folder / "kv.h5", 4, 64, dtype, {1500, 3000}, 9, true, true);
    const hid_t file = H5Fopen((folder / "kv.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
    REQUIRE(file >= 0);
    for (const auto& [place, expected] : w.rows) {
      const std::string path = fmt::format("/layers/{}/{}", place.first, name_of(place.second));
      const hid_t dataset = H5Dopen2(file, path.c_str(), H5P_DEFAULT);
      std::vector<float> values(expected.size());
      REQUIRE(H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
      CHECK(std::equal(values.begin(), values.end(), expected.data()));
      const hid_t creation = H5Dget_create_plist(dataset);
      CHECK(H5Pget_filter_by_id2(creation, H5Z_FILTER_FLETCHER32, nullptr, nullptr, nullptr, 0, nullptr,
                                 nullptr) >= 0);
      hsize_t chunk[3] = {};
      H5Pget_chunk(creation, 3, chunk);
      CHECK(chunk[0] * 256 * size_of(dtype) <= 1 << 20);
      H5Pclose(creation);
      H5Dclose(dataset);
    }
    H5Fclose(file);
  }
}

TEST_CASE(
    "kv: what HDF5 wrote in its own ways is read: contiguous, compressed, other chunks, another byte order") {
  const Folder folder;
  const std::string path = folder / "kv.h5";
  write_sample_kv(path, DType::f32);
  std::vector<float> values(8 * 8);
  std::iota(values.begin(), values.end(), -3.5f);
  {
    Edit edit(path);
    edit.put("/layers/0/key", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, {8, 2, 4}, values);
    edit.put("/layers/0/value", H5T_IEEE_F32BE, H5T_NATIVE_FLOAT, {8, 2, 4}, values, {.shape = {3, 2, 4}});
    edit.put("/layers/1/key", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, {8, 2, 4}, values,
             {.shape = {2, 2, 4}, .filters = {H5Z_FILTER_DEFLATE}});
    edit.put("/layers/1/value", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, {8, 2, 4}, values, {.shape = {3, 2, 4}});
    edit.put("/positions", H5T_STD_I32BE, H5T_NATIVE_INT, {8}, std::vector<int>{0, 1, 2, 3, 4, 0, 1, 2});
    edit.put("/tokens", H5T_STD_I64LE, H5T_NATIVE_INT, {8}, std::vector<int>{0, 1, 2, 3, 4, 0, 1, 2});
  }
  const KvReader reader(path);
  CHECK(reader.positions(3, 3) == std::vector<uint64_t>{3, 4, 0});
  CHECK(reader.tokens(4, 2) == std::vector<uint32_t>{4, 0});
  for (const int layer : {0, 1})
    for (const Side side : kSides)
      for (size_t first = 0; first < 8; ++first) {
        Matrix<float> rows(8 - first, 8);
        reader.read(side, layer, first, rows);
        CHECK(std::equal(rows.data(), rows.data() + rows.size(),
                         values.begin() + static_cast<ptrdiff_t>(first * 8)));
      }
}

TEST_CASE("kv: queries come back with the rows of their tokens") {
  const Folder folder;
  for (const DType dtype : {DType::bf16, DType::f32}) {
    write_sample_kv(folder / "kv.h5", dtype);
    const KvReader reader(folder / "kv.h5");
    const auto queries = reader.queries(1);
    REQUIRE(queries);
    CHECK(queries->token_rows == std::vector<uint64_t>{4, 7});
    const auto expected = rounded(random_rows(2, 16, 20), dtype);
    CHECK(std::equal(queries->values.begin(), queries->values.end(), expected.data()));
    CHECK(!reader.queries(3));
    CHECK(reader.query_layers() == std::vector<int>{0, 1});
    CHECK(reader.query_token_rows(1, 1) == std::vector<uint64_t>{7});
    Matrix<float> wide(1, 20);  // one query, into the middle of a row
    reader.read_queries(0, 1, wide.view().columns(2, 16));
    CHECK(std::equal(wide.data() + 2, wide.data() + 18, expected.row(1).begin()));
    CHECK((wide(0, 1) == 0 && wide(0, 18) == 0));
    CHECK_THROWS_AS(reader.read_queries(3, 0, wide.view().columns(0, 16)), Error);
    CHECK_THROWS_AS(reader.read_queries(1, 2, wide.view().columns(0, 16)), Error);
  }
}

TEST_CASE("kv: queries that are not in the order of their tokens are not written") {
  const Folder folder;
  OutputFile output(folder / "kv.h5", true);
  KvWriter writer(output, sample_model(1, 1, 2), DType::f32, {0}, DType::f32);
  writer.add_document("d", {}, counting(0, 9));
  const auto append = [&](const std::vector<uint64_t>& tokens) {
    writer.append_queries(0, tokens, random_rows(tokens.size(), 4, 1));
  };
  append({1, 3});
  CHECK_THROWS_AS(append({3}), Error);
  CHECK_THROWS_AS(append({2}), Error);
  CHECK_THROWS_AS(append({5, 4}), Error);
  append({});
  append({4, 8});
  CHECK_THROWS_AS(append({9}), Error);
}

TEST_CASE("kv: values that are not finite are refused on writing and on reading, and named") {
  const Folder folder;
  const ModelInfo model = sample_model(1, 2, 4);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
    for (const float bad : {inf, -inf, nan}) {
      CAPTURE(name_of(dtype));
      OutputFile output(folder / "kv.h5", false);
      KvWriter writer(output, model, dtype, {0}, std::nullopt);
      writer.add_document("d", {}, counting(0, 10));
      writer.append(Side::key, 0, random_rows(4, 8, 1).view());
      Matrix<float> rows = random_rows(6, 8, 2);
      rows(3, 5) = bad;
      CHECK_THROWS_WITH_AS(writer.append(Side::key, 0, rows),
                           doctest::Contains("/layers/0/key: token 7, head 1, dimension 1 is not finite"),
                           Error);
    }
  {
    OutputFile output(folder / "kv.h5", false);
    KvWriter writer(output, model, DType::f16, {0}, std::nullopt);
    writer.add_document("d", {}, counting(0, 1));
    Matrix<float> rows(1, 8);
    rows(0, 2) = 65519.0f;  // the largest that rounds to a finite f16 is just below 65520
    writer.append(Side::key, 0, rows);
    rows(0, 2) = 70000.0f;
    CHECK_THROWS_WITH_AS(writer.append(Side::value, 0, rows),
                         doctest::Contains("token 0, head 0, dimension 2 is not finite in f16 (70000); "
                                           "--dtype f32 can hold it"),
                         Error);
  }
  for (const DType dtype : {DType::bf16, DType::f16}) {
    CAPTURE(name_of(dtype));
    OutputFile output(folder / "clipped.h5", true);
    KvWriter writer(output, model, dtype, {0}, std::nullopt);
    writer.clip();
    writer.add_document("d", {}, counting(0, 1));
    Matrix<float> rows(1, 8);
    const float beyond = dtype == DType::f16 ? 65536.0f : std::numeric_limits<float>::max();
    rows(0, 2) = beyond, rows(0, 3) = -beyond, rows(0, 4) = 1.5f;
    writer.append(Side::key, 0, rows);
    writer.append(Side::value, 0, rows);
    writer.finish({});
    output.commit();
    const KvReader clipped(folder / "clipped.h5");
    Matrix<float> back(1, 8);
    clipped.read(Side::key, 0, 0, back);
    CHECK_EQ(back(0, 2), dtype == DType::f16 ? 65504.0f : 0x1.fep127f);
    CHECK_EQ(back(0, 3), -back(0, 2));
    CHECK_EQ(back(0, 4), 1.5f);
    OutputFile other(folder / "other.h5", true);
    KvWriter strict(other, model, dtype, {0}, std::nullopt);
    strict.clip();
    strict.add_document("d", {}, counting(0, 1));
    rows(0, 5) = inf;
    CHECK_THROWS_WITH_AS(strict.append(Side::key, 0, rows),
                         doctest::Contains("head 1, dimension 1 is not finite"), Error);
  }
  write_sample_kv(folder / "kv.h5", DType::f32);
  std::vector<float> values(64, 1.0f);
  values[5 * 8 + 6] = nan;
  Edit(folder / "kv.h5").put_floats("/layers/1/value", {8, 2, 4}, values);
  const KvReader reader(folder / "kv.h5");
  Matrix<float> rows(8, 8);
  reader.read(Side::value, 1, 0, rows.view().rows(0, 5));
  CHECK_THROWS_WITH_AS(
      reader.read(Side::value, 1, 0, rows),
      doctest::Contains("kv.h5: /layers/1/value: token 5, head 1, dimension 2 is not finite"), Error);
}

TEST_CASE("kv: the writer refuses rows that do not fit the documents") {
  const Folder folder;
  OutputFile output(folder / "kv.h5", false);
  KvWriter writer(output, sample_model(4, 2, 4), DType::bf16, {0, 2}, std::nullopt);
  writer.add_document("d", std::vector<uint32_t>{1, 2, 3}, counting(0, 3));
  CHECK_THROWS_AS(writer.append(Side::key, 1, random_rows(3, 8, 1).view()), Error);  // a layer not announced
  CHECK_THROWS_AS(writer.append(Side::key, 0, random_rows(4, 8, 1).view()), Error);  // more rows than tokens
  CHECK_THROWS_AS(writer.append(Side::key, 0, random_rows(3, 7, 1).view()), Error);  // another width
  CHECK_THROWS_AS(writer.add_document("e", {}, counting(0, 3)), Error);  // tokens for some documents only
  CHECK_THROWS_AS(writer.add_document("e", std::vector<uint32_t>{1, 2}, std::vector<uint64_t>{5, 5}), Error);
  writer.append(Side::key, 0, random_rows(3, 8, 1).view());
  CHECK_THROWS_WITH_AS(writer.finish({"t", {}}),
                       doctest::Contains("/layers/0/value: 0 rows written for 3 tokens"), Error);
}

TEST_CASE("kv: files stay small where caches are small") {
  const Folder folder;
  write_sample_kv(folder / "kv.h5");
  CHECK(file_bytes(folder / "kv.h5").size() < 8000);
  // Announced, a dataset of a little more than a chunk has two half chunks, not one full and one nearly
  // empty.
  const auto write = [&](bool announce) {
    OutputFile output(folder / "large.h5", true);
    KvWriter writer(output, sample_model(1, 8, 64), DType::bf16, {0}, std::nullopt);
    Documents announced;
    announced.add("d", 1100);
    if (announce) writer.expect(announced);
    writer.add_document("d", {}, counting(0, 1100));
    for (const Side side : kSides) writer.append(side, 0, random_rows(1100, 512, 1).view());
    writer.finish({"t", {}});
    output.commit();
    return file_bytes(folder / "large.h5").size();
  };
  const size_t payload = 2 * 1100 * 512 * 2 + 1100 * 4;
  CHECK(write(true) < payload + 8000);
  CHECK(write(false) < payload + 8000 + 2 * (1 << 20));
}

TEST_CASE("kv: histories and names of any length and language") {
  const Folder folder;
  OutputFile output(folder / "kv.h5", false);
  KvWriter writer(output, sample_model(1, 1, 2), DType::bf16, {0}, std::nullopt);
  const std::string long_name(5000, 'x');
  for (const std::string& name : {std::string("日本語/ファイル.txt"), std::string(), long_name})
    writer.add_document(name, {}, {});
  Provenance provenance{"kvcodec last\nline", {}};
  for (int i = 0; i < 300; ++i) provenance.history.push_back(std::string(400, 'a') + std::to_string(i));
  writer.finish(provenance);
  output.commit();
  const KvReader reader(folder / "kv.h5");
  CHECK(reader.documents().names == TextList{"日本語/ファイル.txt", "", long_name});
  provenance.history.push_back("kvcodec last line");
  CHECK(reader.type().history == provenance.history);  // 120 kB, beyond what an object header holds
}

}  // namespace kv_test
