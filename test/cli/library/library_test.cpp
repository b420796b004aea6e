// The C interface: what is written comes back, through files and codes, and what is wrong is a status and a sentence.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "cli/library/kvcodec.h"
#include "test/formats/folder.hpp"
#include "test/test.hpp"

using kvcodec::test::Folder;

namespace {

constexpr uint32_t kHeads = 2, kDims = 16;
constexpr int32_t kLayers = 3;

/// Values of a token in a layer, which bf16 and f16 hold exactly.
std::vector<float> rows_of(uint64_t tokens, uint32_t width, int seed) {
  std::vector<float> rows(tokens * width);
  for (size_t i = 0; i < rows.size(); ++i)
    rows[i] = static_cast<float>((static_cast<int>(i) * 37 + seed * 101) % 255 - 127) / 64;
  return rows;
}

std::vector<kvcodec_layer> plain_layers() {
  return std::vector<kvcodec_layer>(kLayers, {kHeads, kDims, kDims, 0, -1});
}

kvcodec_model sample_model() {
  kvcodec_model model{};
  model.name = "sample", model.layers = kLayers, model.query_heads = 4, model.rope_theta = 10000;
  model.scores = "{\"cap\":30}";
  return model;
}

kvcodec_writer* begin(const char* name, const std::vector<kvcodec_layer>& layers,
                      kvcodec_type type = KVCODEC_BF16) {
  const kvcodec_model model = sample_model();
  kvcodec_writer* writer = nullptr;
  REQUIRE_MESSAGE(kvcodec_create(name, 0, &model, layers.data(), type, 0, &writer) == 0,
                  std::string(kvcodec_error()));
  return writer;
}

/// Adds a document whose values depend on its number.
void add(kvcodec_writer* writer, const char* name, uint64_t tokens, int number,
         const std::vector<kvcodec_layer>& layers, const std::vector<uint64_t>& left_out = {}) {
  std::vector<uint32_t> ids(tokens);
  std::vector<uint64_t> positions(tokens);
  for (uint64_t i = 0; i < tokens; ++i) ids[i] = static_cast<uint32_t>(i * 7 + 1), positions[i] = i + 10;
  const kvcodec_document facts{name, tokens, 1700000000, "{\"number\":1}"};
  REQUIRE_MESSAGE(kvcodec_add(writer, &facts, ids.data(), positions.data(),
                              left_out.empty() ? nullptr : left_out.data()) == 0,
                  std::string(kvcodec_error()));
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    const kvcodec_layer& shape = layers[static_cast<size_t>(layer)];
    if (shape.heads == 0) continue;
    const uint64_t held = tokens - (left_out.empty() ? 0 : left_out[static_cast<size_t>(layer)]);
    const auto keys = rows_of(held, shape.heads * shape.key_dims, number * 10 + layer),
               values = rows_of(held, shape.heads * shape.value_dims, number * 10 + layer + 5);
    REQUIRE_MESSAGE(kvcodec_append(writer, layer, KVCODEC_KEY, KVCODEC_F32, held, keys.data()) == 0,
                    std::string(kvcodec_error()));
    if (shape.values_in_keys == 0)
      REQUIRE_MESSAGE(kvcodec_append(writer, layer, KVCODEC_VALUE, KVCODEC_F32, held, values.data()) == 0,
                      std::string(kvcodec_error()));
  }
}

/// The first float in a buffer, of 16 more than are wanted, whose address no larger power of two than 4 divides.
float* barely_aligned(std::vector<float>& buffer) {
  float* place = buffer.data();
  while (reinterpret_cast<uintptr_t>(place) % 64 != 4) ++place;
  return place;
}

struct Opened {
  explicit Opened(const std::string& name, const char* book = nullptr) {
    REQUIRE_MESSAGE(kvcodec_open(name.c_str(), book, &file) == 0, std::string(kvcodec_error()));
  }
  ~Opened() { kvcodec_close(file); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  std::vector<float> decode(uint64_t document, int32_t layer, kvcodec_side side, uint64_t first,
                            uint64_t count) const {
    const size_t size = count * kHeads * kDims;
    std::vector<float> buffer(size + 16);
    float* const out = barely_aligned(buffer);
    REQUIRE_MESSAGE(kvcodec_decode(file, document, layer, side, first, count, KVCODEC_F32, out) == 0,
                    std::string(kvcodec_error()));
    return {out, out + size};
  }

  kvcodec_file* file = nullptr;
};

int run(std::vector<const char*> words) {
  const int status = kvcodec_run(static_cast<int>(words.size()), words.data(), nullptr);
  CHECK_MESSAGE(status == 0, std::string(kvcodec_error()));
  return status;
}

}  // namespace

TEST_CASE("C interface: a cache comes back as it was written") {
  const Folder folder;
  const std::string name = folder / "kv.h5";
  kvcodec_writer* const writer = begin(name.c_str(), plain_layers());
  add(writer, "a", 50, 1, plain_layers());
  add(writer, "b", 7, 2, plain_layers());
  CHECK_FALSE(std::filesystem::exists(name));
  REQUIRE_MESSAGE(kvcodec_finish(writer, "a test") == 0, std::string(kvcodec_error()));

  const Opened opened(name);
  CHECK_EQ(kvcodec_documents(opened.file), 2);
  CHECK_EQ(std::string(kvcodec_codec(opened.file)), "");
  CHECK_EQ(kvcodec_stored_type(opened.file), KVCODEC_BF16);
  CHECK_EQ(kvcodec_has_ids(opened.file), 1);
  kvcodec_model model;
  REQUIRE_EQ(kvcodec_get_model(opened.file, &model), 0);
  CHECK_EQ(std::string(model.name), "sample");
  CHECK_EQ(model.layers, kLayers);
  CHECK_EQ(model.rope_theta, 10000);
  CHECK_EQ(std::string(model.scores), "{\"cap\":30}");
  kvcodec_document facts;
  REQUIRE_EQ(kvcodec_get_document(opened.file, 1, &facts), 0);
  CHECK_EQ(std::string(facts.name), "b");
  CHECK_EQ(facts.tokens, 7);
  CHECK_EQ(facts.time, 1700000000);
  CHECK_EQ(std::string(facts.metadata), "{\"number\":1}");
  uint32_t ids[2];
  uint64_t positions[2];
  REQUIRE_EQ(kvcodec_ids(opened.file, 1, 3, 2, ids), 0);
  REQUIRE_EQ(kvcodec_positions(opened.file, 1, 3, 2, positions), 0);
  CHECK_EQ(ids[1], 29);
  CHECK_EQ(positions[1], 14);
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    CHECK(opened.decode(0, layer, KVCODEC_KEY, 0, 50) == rows_of(50, kHeads * kDims, 10 + layer));
    const auto all = rows_of(7, kHeads * kDims, 20 + layer + 5);
    CHECK(opened.decode(1, layer, KVCODEC_VALUE, 2, 3) ==
          std::vector<float>(all.begin() + 2 * kHeads * kDims, all.begin() + 5 * kHeads * kDims));
  }
  // The same numbers in 16 bits.
  std::vector<uint16_t> halves(50 * kHeads * kDims);
  REQUIRE_EQ(kvcodec_decode(opened.file, 0, 0, KVCODEC_KEY, 0, 50, KVCODEC_BF16, halves.data()), 0);
  const auto wanted = rows_of(50, kHeads * kDims, 10);
  for (size_t i = 0; i < halves.size(); ++i) {
    const uint32_t bits = uint32_t{halves[i]} << 16;
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    REQUIRE_EQ(value, wanted[i]);
  }
}

TEST_CASE("C interface: values beyond a 16-bit type become its largest ones") {
  const Folder folder;
  const std::string name = folder / "kv.h5";
  const std::vector<kvcodec_layer> layers(kLayers, {1, 2, 2, 0, -1});
  kvcodec_writer* const writer = begin(name.c_str(), layers, KVCODEC_F32);
  const uint64_t position = 0;
  const kvcodec_document facts{"a", 1, 0, ""};
  REQUIRE_EQ(kvcodec_add(writer, &facts, nullptr, &position, nullptr), 0);
  const float row[2] = {-3.4e38f, 0.5f};
  for (int32_t layer = 0; layer < kLayers; ++layer)
    for (const kvcodec_side side : {KVCODEC_KEY, KVCODEC_VALUE})
      REQUIRE_EQ(kvcodec_append(writer, layer, side, KVCODEC_F32, 1, row), 0);
  REQUIRE_MESSAGE(kvcodec_finish(writer, "a test") == 0, std::string(kvcodec_error()));
  const Opened opened(name);
  uint16_t halves[2];
  REQUIRE_EQ(kvcodec_decode(opened.file, 0, 0, KVCODEC_KEY, 0, 1, KVCODEC_F16, halves), 0);
  CHECK_EQ(halves[0], 0xfbff);  // -65504
  CHECK_EQ(halves[1], 0x3800);
  REQUIRE_EQ(kvcodec_decode(opened.file, 0, 0, KVCODEC_KEY, 0, 1, KVCODEC_BF16, halves), 0);
  CHECK_EQ(halves[0], 0xff7f);
}

TEST_CASE("C interface: rows lie at multiples of their type's size, or are refused") {
  const Folder folder;
  const std::string name = folder / "kv.h5";
  kvcodec_writer* const writer = begin(name.c_str(), plain_layers());
  const uint64_t positions[] = {0};
  const kvcodec_document one{"a", 1, 0, nullptr};
  REQUIRE_EQ(kvcodec_add(writer, &one, nullptr, positions, nullptr), 0);
  const std::vector<float> row = rows_of(1, kHeads * kDims, 3);
  std::vector<float> buffer(row.size() + 32);
  float* const place = barely_aligned(buffer);
  std::copy(row.begin(), row.end(), place);
  std::vector<uint16_t> halves(row.size() + 1);
  for (size_t i = 0; i < row.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, &row[i], sizeof bits);
    halves[i + 1] = static_cast<uint16_t>(bits >> 16);
  }
  auto* const bytes = reinterpret_cast<char*>(place);
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    for (const auto& [type, off] :
         {std::pair(KVCODEC_F32, 2), {KVCODEC_F32, 1}, {KVCODEC_BF16, 1}, {KVCODEC_F16, 1}})
      CHECK_EQ(kvcodec_append(writer, layer, KVCODEC_KEY, type, 1, bytes + off), 2);
    REQUIRE_EQ(kvcodec_append(writer, layer, KVCODEC_KEY, KVCODEC_F32, 1, place), 0);
    REQUIRE_EQ(kvcodec_append(writer, layer, KVCODEC_VALUE, KVCODEC_BF16, 1, &halves[1]), 0);
  }
  REQUIRE_MESSAGE(kvcodec_finish(writer, nullptr) == 0, std::string(kvcodec_error()));

  const Opened opened(name);
  CHECK(opened.decode(0, 1, KVCODEC_VALUE, 0, 1) == row);
  std::ranges::fill(buffer, 7.0f);
  for (const auto& [type, off] :
       {std::pair(KVCODEC_F32, 2), {KVCODEC_F32, 1}, {KVCODEC_BF16, 1}, {KVCODEC_F16, 1}})
    CHECK_EQ(kvcodec_decode(opened.file, 0, 0, KVCODEC_KEY, 0, 1, type, bytes + off), 2);
  CHECK_EQ(std::string(kvcodec_error()), "out is at no multiple of 2 bytes, as f16 must be");
  CHECK(std::ranges::all_of(buffer, [](float value) { return value == 7; }));
  REQUIRE_EQ(kvcodec_decode(opened.file, 0, 0, KVCODEC_KEY, 0, 1, KVCODEC_BF16, bytes + 2), 0);
  CHECK(std::memcmp(bytes + 2, &halves[1], row.size() * 2) == 0);
}

TEST_CASE("C interface: documents that begin before the first row leave no chunk nearly empty") {
  const Folder folder;
  constexpr uint64_t kRows = 16400;  // of 64 bytes: 16,384 fill a chunk
  const auto size_of = [&](const std::vector<uint64_t>& lengths) {
    const std::string name = folder / std::to_string(lengths.size());
    kvcodec_writer* const writer = begin(name.c_str(), plain_layers());
    uint64_t total = 0;
    for (const uint64_t length : lengths) {
      std::vector<uint64_t> positions(length);
      std::iota(positions.begin(), positions.end(), uint64_t{0});
      const kvcodec_document facts{"some", length, 0, ""};
      REQUIRE_EQ(kvcodec_add(writer, &facts, nullptr, positions.data(), nullptr), 0);
      total += length;
    }
    const auto rows = rows_of(total, kHeads * kDims, 1);
    for (int32_t layer = 0; layer < kLayers; ++layer)
      for (const kvcodec_side side : {KVCODEC_KEY, KVCODEC_VALUE})
        REQUIRE_EQ(kvcodec_append(writer, layer, side, KVCODEC_F32, total, rows.data()), 0);
    REQUIRE_MESSAGE(kvcodec_finish(writer, "") == 0, std::string(kvcodec_error()));
    return std::filesystem::file_size(name);
  };
  const uint64_t values = kRows * kHeads * kDims * 2 * kLayers * 2;  // bytes
  CHECK_LT(size_of({kRows}), values + values / 8);
  CHECK_LT(size_of({10, 0, kRows - 10}), values + values / 8);
}

TEST_CASE("C interface: layers of several shapes, and layers that leave out tokens") {
  const Folder folder;
  const std::string name = folder / "kv.h5";
  const std::vector<kvcodec_layer> layers = {{1, 24, 16, 1, -1}, {0, 0, 0, 0, 0}, {2, 8, 4, 0, -1}};
  kvcodec_writer* const writer = begin(name.c_str(), layers, KVCODEC_F32);
  add(writer, "a", 20, 1, layers, {0, 0, 12});
  const uint64_t sizes[] = {2, 3};
  const float matrix[] = {1, 2, 3, 4, 5, 6};
  const void* bytes[] = {matrix};
  kvcodec_tensor tensor{"layers.1.matrix", "f32", 2, sizes, sizeof(matrix)};
  REQUIRE_EQ(kvcodec_set_state(writer, 1, &tensor, bytes), 0);
  tensor.bytes = 20;
  CHECK_EQ(kvcodec_set_state(writer, 1, &tensor, bytes), 2);
  REQUIRE_MESSAGE(kvcodec_finish(writer, nullptr) == 0, std::string(kvcodec_error()));
  const Opened opened(name);
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    const kvcodec_layer& wanted = layers[static_cast<size_t>(layer)];
    kvcodec_layer shape;
    int stored = -1;
    REQUIRE_EQ(kvcodec_get_layer(opened.file, layer, &shape, &stored), 0);
    CHECK_EQ(stored, layer != 1);
    CHECK_EQ(shape.heads, wanted.heads);
    CHECK_EQ(shape.key_dims, wanted.key_dims);
    CHECK_EQ(shape.value_dims, wanted.value_dims);
    CHECK_EQ(shape.values_in_keys, wanted.values_in_keys);
    CHECK_EQ(shape.source, wanted.source);
  }
  uint64_t tensors = 0;
  REQUIRE_EQ(kvcodec_state_count(opened.file, 0, &tensors), 0);
  CHECK_EQ(tensors, 1);
  float read[6] = {};
  REQUIRE_EQ(kvcodec_get_state(opened.file, 0, 0, &tensor, read), 0);
  CHECK_EQ(std::string(tensor.name) + tensor.type, "layers.1.matrixf32");
  CHECK(std::equal(tensor.shape, tensor.shape + tensor.dims, sizes, sizes + 2));
  CHECK(std::ranges::equal(read, matrix));
  CHECK_EQ(kvcodec_get_state(opened.file, 0, 1, &tensor, nullptr), 2);
  uint64_t left_out = 0;
  REQUIRE_EQ(kvcodec_left_out(opened.file, 0, 2, &left_out), 0);
  CHECK_EQ(left_out, 12);
  std::vector<float> rows(8 * 8);
  REQUIRE_MESSAGE(kvcodec_decode(opened.file, 0, 2, KVCODEC_VALUE, 12, 8, KVCODEC_F32, rows.data()) == 0,
                  std::string(kvcodec_error()));
  CHECK(rows == rows_of(8, 8, 17));
  CHECK_EQ(kvcodec_decode(opened.file, 0, 2, KVCODEC_VALUE, 11, 8, KVCODEC_F32, rows.data()), 2);
  CHECK_EQ(kvcodec_decode(opened.file, 0, 0, KVCODEC_VALUE, 0, 1, KVCODEC_F32, rows.data()), 2);
  CHECK_EQ(kvcodec_decode(opened.file, 0, 1, KVCODEC_KEY, 0, 1, KVCODEC_F32, rows.data()), 2);
}

TEST_CASE("C interface: codes decode as the program decodes them") {
  const Folder folder;
  const std::string cache = folder / "kv.h5", codes = folder / "codes.h5", decoded = folder / "decoded.h5",
                    book = folder / "dict.h5";
  kvcodec_writer* const writer = begin(cache.c_str(), plain_layers());
  add(writer, "a", 300, 1, plain_layers());
  add(writer, "b", 41, 2, plain_layers());
  REQUIRE_MESSAGE(kvcodec_finish(writer, nullptr) == 0, std::string(kvcodec_error()));
  run({"train-dict", cache.c_str(), "--atoms", "64", "--sparsity", "4", "--epochs", "1", "--layer-group", "3",
       "--quiet", "-o", book.c_str()});
  for (const std::string codec :
       {"none", "lossless", "fp8", "q4", "kivi", "kvcomp", "selfindex", "q4+kvcomp", "sparse"}) {
    CAPTURE(codec);
    const bool sparse = codec == "sparse";
    std::vector<const char*> encode = {"encode",      cache.c_str(), "--codec", codec.c_str(),
                                       "--overwrite", "--quiet",     "-o",      codes.c_str()},
                             decode = {"decode",      codes.c_str(), "--dtype", "f32",
                                       "--overwrite", "--quiet",     "-o",      decoded.c_str()};
    if (sparse)
      for (auto* const words : {&encode, &decode}) words->insert(words->end(), {"--book", book.c_str()});
    run(encode);
    run(decode);
    const Opened mine(codes, sparse ? book.c_str() : nullptr), program(decoded);
    CHECK_EQ(std::string(kvcodec_codec(mine.file)), codec);
    for (int32_t layer = 0; layer < kLayers; ++layer)
      for (const kvcodec_side side : {KVCODEC_KEY, KVCODEC_VALUE}) {
        CHECK(mine.decode(0, layer, side, 0, 300) == program.decode(0, layer, side, 0, 300));
        CHECK(mine.decode(1, layer, side, 5, 30) == program.decode(1, layer, side, 5, 30));
      }
  }
}

TEST_CASE("C interface: a cache in memory is encoded without a file of its own") {
  const Folder folder;
  const std::string codes = folder / "codes.h5";
  kvcodec_writer* const writer = begin(nullptr, plain_layers(), KVCODEC_F16);
  add(writer, "a", 100, 1, plain_layers());
  const std::vector<const char*> words = {"--codec", "lossless", "--quiet", "-o", codes.c_str()};
  REQUIRE_MESSAGE(kvcodec_encode(writer, "a test", static_cast<int>(words.size()), words.data()) == 0,
                  std::string(kvcodec_error()));
  CHECK(Opened(codes).decode(0, 1, KVCODEC_KEY, 0, 100) == rows_of(100, kHeads * kDims, 11));
}

TEST_CASE("C interface: what is wrong is a status and a sentence, and nothing stays behind") {
  const Folder folder;
  const std::string name = folder / "kv.h5";
  kvcodec_file* file = nullptr;
  CHECK_EQ(kvcodec_open((folder / "none.h5").c_str(), nullptr, &file), 3);
  CHECK_NE(std::string(kvcodec_error()).find("none.h5"), std::string::npos);
  CHECK_EQ(kvcodec_open(nullptr, nullptr, &file), 2);
  CHECK_EQ(std::string(kvcodec_error()), "name is NULL");
  CHECK_EQ(file, nullptr);
  const char* printed = nullptr;
  const char* const version[] = {"--version"};
  CHECK_EQ(kvcodec_run(1, version, &printed), 0);
  CHECK_EQ(std::string(printed), std::string("kvcodec ") + kvcodec_release() + "\n");
  const char* const wrong[] = {"ecode"};
  CHECK_EQ(kvcodec_run(1, wrong, &printed), 2);
  CHECK_NE(std::string(kvcodec_error()).find("did you mean"), std::string::npos);

  kvcodec_discard(begin(name.c_str(), plain_layers()));
  CHECK(std::filesystem::is_empty(folder.path()));
  kvcodec_writer* writer = begin(name.c_str(), plain_layers());
  const std::vector<float> infinite(kHeads * kDims, INFINITY);
  const uint64_t positions[] = {0};
  const kvcodec_document one{"a", 1, 0, nullptr};
  REQUIRE_EQ(kvcodec_add(writer, &one, nullptr, positions, nullptr), 0);
  CHECK_EQ(kvcodec_append(writer, 0, KVCODEC_KEY, KVCODEC_F32, 1, infinite.data()), 3);
  CHECK_EQ(kvcodec_append(writer, 9, KVCODEC_KEY, KVCODEC_F32, 1, infinite.data()), 2);
  CHECK_NE(kvcodec_finish(writer, nullptr), 0);  // rows are missing
  CHECK(std::filesystem::is_empty(folder.path()));

  std::ofstream(name) << "mine";
  const kvcodec_model model = sample_model();
  const auto layers = plain_layers();
  writer = nullptr;
  CHECK_EQ(kvcodec_create(name.c_str(), 0, &model, layers.data(), KVCODEC_F16, 0, &writer), 2);
  CHECK_EQ(writer, nullptr);
  CHECK_EQ(kvcodec_open(name.c_str(), nullptr, &file), 3);
}
