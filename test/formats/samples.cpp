#include "test/formats/samples.hpp"

#include <bit>
#include <memory>
#include <numeric>

#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"

namespace kvcodec::test {
namespace {

constexpr int32_t kTable[] = {1, -2, 3, -4};

}  // namespace

ModelInfo sample_model(int layers, int heads, int head_dim) {
  ModelInfo model;
  model.model = "sample";
  model.num_layers = layers;
  model.num_q_heads = 2 * heads;
  model.num_kv_heads = heads;
  model.head_dim = head_dim;
  model.rope_theta = 500000;
  model.rope_scaling = R"({"type":"linear","factor":2.0})";
  model.source = "made up";
  return model;
}

Matrix<float> random_rows(size_t rows, size_t width, uint64_t seed) {
  Rng rng(seed);
  Matrix<float> matrix(rows, width);
  for (size_t i = 0; i < rows; ++i)
    for (float& value : matrix.row(i)) value = static_cast<float>(rng.normal());
  return matrix;
}

Matrix<float> rounded(const Matrix<float>& rows, DType type) {
  Matrix<float> result = rows;
  for (size_t i = 0; i < rows.size(); ++i) result.data()[i] = round_to(type, rows.data()[i]);
  return result;
}

std::vector<uint64_t> counting(uint64_t first, uint64_t count) {
  std::vector<uint64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

Record SampleCodec::parameters() const {
  Record record;
  record.set("layer-group", int64_t{layer_group_});
  record.set("gain", 1.0);
  record.set("kind", std::string("sample"));
  record.set("exact", true);
  return record;
}

std::vector<StreamSpec> SampleCodec::streams(const GroupShape& shape) const {
  return {{"flags", DType::u8, {}, Category::offsets, 0, false},
          {"ids", DType::u16, {3}, Category::ids, 1000, false},
          {"wide-ids", DType::u32, {}, Category::ids, 5'000'000, false},
          {"byte-ids", DType::u8, {2}, Category::ids, 256, false},  // packing gains nothing
          {"values", DType::f32, {uint64_t{shape.layers.size()}, 2}, Category::payload, 0, false},
          {"tail", DType::f64, {}, Category::exempt, 0, false},
          {"table", DType::i32, {4}, Category::tables, 0, true}};
}

void SampleCodec::append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const {
  if (document.rows("table") == 0)
    document.append_values(std::string_view("table"), std::span<const int32_t>(kTable));
  std::vector<double> tail = document.read<double>("tail", 0, document.rows("tail"), 1);
  document.truncate("tail", 0);
  for (size_t i = 0; i < rows.rows(); ++i) {
    const auto row = rows.row(i);
    const auto bits = std::bit_cast<uint32_t>(row[0]);
    const uint8_t flag = bits & 3;
    document.append_values("flags", std::span<const uint8_t>(&flag, 1));
    for (uint8_t k = 0; k < flag; ++k) {
      const uint16_t ids[] = {static_cast<uint16_t>(bits % 1000), static_cast<uint16_t>(bits % 999), k};
      document.append_values("ids", std::span<const uint16_t>(ids));
    }
    const uint32_t wide = bits % 5'000'000;
    document.append_values("wide-ids", std::span<const uint32_t>(&wide, 1));
    const uint8_t bytes[] = {static_cast<uint8_t>(bits), static_cast<uint8_t>(bits >> 8)};
    document.append_values("byte-ids", std::span<const uint8_t>(bytes));
    const std::vector<float> values(shape.layers.size() * 2, row[row.size() - 1]);
    document.append_values("values", std::span<const float>(values));
    tail.push_back(row[0]);
    if (tail.size() == 5) tail.clear();
  }
  document.append_values("tail", std::span<const double>(tail));
}

std::unique_ptr<DocumentView> SampleCodec::view_of(const GroupShape& shape,
                                                   const StreamReader& document) const {
  return std::make_unique<CountingView>(shape, document, "flags");
}

void write_sample_kv(const std::string& path, DType dtype) {
  const ModelInfo model = sample_model(2, 2, 4);
  OutputFile output(path, true);
  KvWriter writer(output, model, dtype, {0, 1}, dtype);
  const std::vector<uint32_t> five{1, 2, 3, 4, 5}, three{7, 8, 9};
  writer.add_document("first", five, counting(0, 5));
  writer.add_document("empty", {}, {});
  writer.add_document("third", three, counting(10, 3));
  for (const int layer : {0, 1}) {
    for (const Side side : kSides)
      writer.append(side, layer, random_rows(8, 8, 10 + static_cast<uint64_t>(layer)));
    const std::vector<uint64_t> last{4, 7};
    writer.append_queries(layer, last, random_rows(2, 16, 20));
  }
  writer.finish({"kvcodec test", {"earlier"}});
  output.commit();
}

void write_sample_outputs(const std::string& path) {
  OutputsInfo info{.model = sample_model(3, 2, 4), .codec = "none", .layers = {0, 2}, .documents = {}};
  info.documents.add("first", 3);
  info.documents.add("empty", 0);
  info.documents.add("third", 2);
  OutputFile output(path, true);
  const std::vector<uint64_t> positions{4, 5, 9, 10, uint64_t{1} << 40}, rows{4, 5, 9, 21, 30};
  OutputsWriter writer(output, info, positions, rows);
  for (const int layer : {2, 0}) {  // layers in any order, rows in pieces
    const Matrix<float> values = random_rows(5, 16, static_cast<uint64_t>(layer));
    writer.append(layer, values.view().rows(0, 2));
    writer.append(layer, values.view().rows(2, 3));
  }
  writer.finish({"kvcodec test", {"earlier"}});
  output.commit();
}

SampleCodes::SampleCodes(int layer_group, const std::vector<uint64_t>& lengths, bool packed, uint64_t seed)
    : codec(layer_group) {
  info.model = sample_model(4, 2, 4);
  info.codec = "sample";
  info.parameters = codec.parameters();
  info.layer_group = layer_group;
  info.packed = packed;
  for (int layer = 0; layer < info.model.num_layers; layer += layer_group) info.groups.push_back(layer);
  for (const int layer : info.groups)
    for (const Side side : kSides) rows[{layer, side}] = {};
  for (size_t d = 0; d < lengths.size(); ++d) add_document(lengths[d], seed + d);
}

void SampleCodes::add_document(uint64_t length, uint64_t seed) {
  const size_t d = info.documents.count();
  info.documents.add("document " + std::to_string(d), length);
  for (uint64_t t = 0; t < length; ++t) tokens.push_back(static_cast<uint32_t>(seed * 31 + t));
  for (uint64_t t = 0; t < length; ++t) positions.push_back(t);
  for (const int layer : info.groups)
    for (const Side side : kSides)
      rows[{layer, side}].push_back(
          random_rows(length, shape(layer, side).width(),
                      seed * 100 + static_cast<uint64_t>(layer) * 2 + (side == Side::value)));
}

GroupShape SampleCodes::shape(int layer, Side side) const { return info.shape(layer, side); }

Encoded SampleCodes::encoded(int layer, Side side) const {
  Encoded result(codec.streams(shape(layer, side)));
  for (const auto& document : rows.at({layer, side}))
    codec.append(shape(layer, side), document.view(), result.add_document());
  return result;
}

void SampleCodes::append_to(CodesWriter& writer, uint64_t seed, size_t first, uint64_t skip) const {
  Rng rng(seed);
  for (const auto& [place, documents] : rows)
    for (size_t d = first; d < documents.size(); ++d) {
      StreamStore& store = writer.document(place.second, place.first, d);
      const MatrixView<const float> all = documents[d].view();
      size_t done = d == first ? skip : 0;
      do {
        const size_t n = std::min<size_t>(all.rows() - done, 1 + rng.below(7));
        codec.append(shape(place.first, place.second), all.rows(done, n), store);
        done += n;
      } while (done < all.rows());
    }
}

void SampleCodes::write(const std::string& path, uint64_t seed, const Book* book) const {
  OutputFile output(path, true);
  CodesWriter writer(output, info, codec, {tokens, positions}, book);
  append_to(writer, seed);
  writer.finish({"kvcodec test", {}});
  output.commit();
}

Book sample_book() {
  Book book;
  book.type = "dictionary";
  book.parameters.set("atoms", int64_t{3});
  book.parameters.set("rate", 5e-4);
  const std::vector<float> atoms{1, 0, 0, 1, -1, 0}, more{0, 1, 1, 0, 0, -1};
  const std::vector<double> loss{0.5, 0.25};
  book.arrays.push_back(
      Array::of<float>("value/atoms", DType::f32, {3, 2}, more));  // not in alphabetical order
  book.arrays.push_back(Array::of<float>("key/atoms", DType::f32, {3, 2}, atoms));
  book.arrays.push_back(Array::of<double>("training/loss", DType::f64, {2}, loss));
  return book;
}

}  // namespace kvcodec::test
