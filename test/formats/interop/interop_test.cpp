// Caches of other programs have in common: planes of arrays, settling of documents, and what files remember of them.
// Golden files are in test/golden/interop_test.cpp, refusals of files in test/cli/cases/interop_refusals.
#include <cstring>

#include <nlohmann/json.hpp>

#include "formats/cache/kv_file.hpp"
#include "formats/interop/arrays.hpp"
#include "formats/interop/foreign.hpp"
#include "formats/interop/plane.hpp"
#include "lib/core/error.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/interop/foreign_source.hpp"
#include "test/formats/refusal.hpp"
#include "test/formats/samples.hpp"
#include "test/test.hpp"

namespace interop_test {

using namespace kvcodec;
using namespace kvcodec::interop;
using test::Folder;
using test::message_of;

namespace {

/// Values that encode their place: 100 * token + 10 * head + dimension.
Matrix<float> telling_rows(size_t tokens, size_t heads, size_t dims) {
  Matrix<float> rows(tokens, heads * dims);
  for (size_t t = 0; t < tokens; ++t)
    for (size_t v = 0; v < heads * dims; ++v)
      rows(t, v) = static_cast<float>(100 * t + 10 * (v / dims) + v % dims);
  return rows;
}

/// A cache of one layer with so many tokens per document, of which the layer holds the last ones.
ForeignCache cache_of(const std::vector<std::pair<uint64_t, uint64_t>>& lengths) {
  ForeignCache cache;
  std::vector<std::string> notes;
  cache.model = model_of({usual_layer(1, 2)}, {}, "test", notes);
  for (const auto& [tokens, held] : lengths) {
    ForeignDocument document{
        .name = "d", .tokens = {}, .positions = numbers_below<uint64_t>(tokens), .layers = {}};
    const ReadRows ones = [](uint64_t, MatrixView<float> out) {
      for (size_t i = 0; i < out.rows(); ++i) std::fill(out.row(i).begin(), out.row(i).end(), 1.0f);
    };
    document.layers.emplace(0, ForeignLayer{.rows = held, .sides = {ones, ones}});
    cache.documents.push_back(std::move(document));
  }
  return cache;
}

}  // namespace

TEST_CASE("planes: every order of axes is written and read alike, of every type") {
  const Folder folder;
  const size_t tokens = 5, heads = 2, dims = 3;
  const Matrix<float> rows = telling_rows(tokens, heads, dims);
  std::string layout = "htd";
  std::sort(layout.begin(), layout.end());
  do {
    for (const Cell cell : {Cell::f32, Cell::f16, Cell::bf16, Cell::f64, Cell::e5m2}) {
      CAPTURE(layout);
      CAPTURE(name_of(cell));
      std::vector<Axis> axes = axes_of(layout, "--layout");
      for (Axis& axis : axes) axis.extent = axis.name == 't' ? tokens : axis.name == 'h' ? heads : dims;
      const Plane plane = plane_in_array(cell, 7, axes, {});
      const std::string path = folder / "plane";
      TargetFile file(path, true);
      file.write(plane, 0, rows.view().rows(0, 2));
      file.write(plane, 2, rows.view().rows(2, 3));
      CHECK_EQ(file.commit(), 7 + tokens * heads * dims * block_of(cell).bytes);
      const Bytes bytes = map_file(path);
      check_plane(plane, bytes.bytes.size(), "elements");
      CHECK_NE(message_of([&] { check_plane(plane, bytes.bytes.size() - 1, "elements"); }), "accepted");
      Matrix<float> got(3, heads * dims);
      reader_of(bytes, plane)(1, got);
      for (size_t t = 0; t < 3; ++t)
        for (size_t v = 0; v < heads * dims; ++v) {
          float wanted = rows(t + 1, v);
          std::byte stored[8];
          encode(cell, {&wanted, 1}, std::span(stored, block_of(cell).bytes));
          decode(cell, std::span(stored, block_of(cell).bytes), {&wanted, 1});
          CHECK_EQ(got(t, v), wanted);
        }
    }
  } while (std::next_permutation(layout.begin(), layout.end()));
}

TEST_CASE("planes: sizes that overflow, and values beyond a type") {
  Plane plane = plane_of_rows(Cell::f32, 0, 4, 1, 4);
  plane.token_step = uint64_t{1} << 63;
  CHECK(message_of([&] { check_plane(plane, 64, "rows"); }).find("64 bits") != std::string::npos);
  const float large = 1e6f;
  std::byte stored[2];
  CHECK(message_of([&] {
          encode(Cell::f16, {&large, 1}, stored);
        }).find("range of f16") != std::string::npos);
  CHECK(message_of([&] { row_bytes(Cell::q8_0, 33); }).find("blocks of 32") != std::string::npos);
}

TEST_CASE("planes: 8-bit floats are the nearest ones, of values that lie close to the middle of two, too") {
  const auto stored = [](float value) {
    std::byte code;
    encode(Cell::e5m2, {&value, 1}, {&code, 1});
    decode(Cell::e5m2, {&code, 1}, {&value, 1});
    return value;
  };
  CHECK_EQ(stored(1.1251220703125f), 1.25f);  // as f16 it would be 1.125, a tie
  CHECK_EQ(stored(-1.1251220703125f), -1.25f);
  CHECK_EQ(stored(1.125f), 1.0f);
  CHECK_EQ(stored(1.375f), 1.5f);
  CHECK_EQ(stored(1.3749999f), 1.25f);
}

TEST_CASE("caches: layers that keep their last tokens only") {
  ForeignCache cache = cache_of({{9, 4}, {3, 3}, {4, 4}});
  settle(cache, {}, "x");
  const auto left_out = [&](size_t document) { return left_out_of(cache, cache.documents[document]); };
  CHECK_EQ(left_out(0), std::vector<uint64_t>{5});
  CHECK_EQ(left_out(1), std::vector<uint64_t>{0});
  CHECK_EQ(left_out(2), std::vector<uint64_t>{0});
  cache = cache_of({{9, 9}, {3, 3}});
  settle(cache, {}, "x");
  CHECK_EQ(left_out(0), std::vector<uint64_t>{0});
  const auto refused = [](const std::vector<std::pair<uint64_t, uint64_t>>& lengths) {
    return message_of([&] {
      ForeignCache other = cache_of(lengths);
      settle(other, {}, "x");
    });
  };
  CHECK_EQ(refused({{9, 4}, {8, 5}}), "accepted");
  CHECK_EQ(refused({{9, 0}}), "x: layer 0 has 0 tokens of document 'd', which has 9");
  CHECK_EQ(refused({{3, 4}}), "x: layer 0 has 4 tokens of document 'd', which has 3");
}

TEST_CASE("caches: ids of the user, for all tokens or for those there are") {
  ForeignCache cache = cache_of({{3, 3}});
  cache.documents[0].positions = {0, 2, 5};
  ImportOptions options;
  options.ids = {{10, 11, 12, 13, 14, 15}};
  settle(cache, options, "x");
  CHECK_EQ(cache.documents[0].tokens, std::vector<uint32_t>{10, 12, 15});
  options.ids = {{10, 11}};
  CHECK_THROWS_AS(settle(cache, options, "x"), Error);
}

TEST_CASE("kv files remember where a cache was imported from") {
  const Folder folder;
  const std::string path = folder / "kv.h5";
  ModelInfo model = test::sample_model(2, 1, 4);
  model.imported = R"({"format":"llama","version":3,"list":[1,-2],"flag":true,"pairs":[[0,1]],"bad":{}})";
  {
    OutputFile output(path, true);
    KvWriter writer(output, model, DType::f32, {0, 1}, std::nullopt);
    writer.add_document("d", {}, std::vector<uint64_t>{0, 1, 2, 3, 4});
    for (const int layer : {0, 1})
      for (const Side side : kSides) writer.append(side, layer, test::random_rows(5, 4, 1));
    writer.finish({"test", {}});
    output.commit();
  }
  const KvReader reader(path);
  CHECK_EQ(reader.model(), model);

  ForeignCache cache = cache_of({{2, 2}});
  cache.model.imported = model.imported;
  const test::ForeignSource source(std::move(cache));
  const Imported imported(source, "llama");
  CHECK_EQ(imported.number("version", 2, 10), 3);
  CHECK_EQ(imported.number("version", 2, 2), 2);  // beyond the most there can be: as if absent
  CHECK_EQ(imported.list("list"), std::vector<int64_t>{1, -2});
  CHECK(imported.flag("flag"));
  CHECK_EQ(imported.pairs("pairs").size(), 1);
  CHECK_EQ(imported.text("bad"), "");
  CHECK_EQ(imported.text("given", "bad"), "given");
  CHECK_FALSE(Imported(source, "mlx").has("version"));
}

}  // namespace interop_test
