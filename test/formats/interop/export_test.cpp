// Promises of export for every format: no value is lost, no file is overwritten or left over, and properties of the
// imported file are kept as long as they apply. Golden files are in test/golden/interop_test.cpp.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "formats/interop/arrays.hpp"
#include "formats/interop/foreign.hpp"
#include "formats/models/safetensors.hpp"
#include "lib/core/digest.hpp"
#include "lib/core/error.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/interop/foreign_source.hpp"
#include "test/test.hpp"

namespace export_test {

using namespace kvcodec;
using namespace kvcodec::interop;
using test::Folder;
using test::ForeignSource;

namespace {

constexpr int kHeadDim = 32, kCacheHeads = 2;

/// Small whole numbers, all different within a side of a layer; each layer and side has others.
ReadRows numbered_rows(int layer, Side side) {
  return [=](uint64_t first, MatrixView<float> out) {
    for (size_t t = 0; t < out.rows(); ++t)
      for (size_t v = 0; v < out.cols(); ++v)
        out(t, v) = static_cast<float>((first + t) * out.cols() + v) + 10000.0f * static_cast<float>(layer) +
                    5000.0f * static_cast<float>(side == Side::value);
  };
}

/// Documents of these lengths, whose layers hold at most `limit` tokens, with ids that are 100, 101, …
ForeignCache numbered_cache(int layers, const std::vector<uint64_t>& lengths, uint64_t limit = UINT64_MAX) {
  ForeignCache cache;
  std::vector<std::string> notes;
  cache.model = model_of(std::vector(static_cast<size_t>(layers), usual_layer(kCacheHeads, kHeadDim)), {},
                         "test", notes);
  for (const uint64_t length : lengths) {
    ForeignDocument document{
        .name = "d", .tokens = {}, .positions = numbers_below<uint64_t>(length), .layers = {}};
    for (uint64_t t = 0; t < length; ++t) document.tokens.push_back(static_cast<uint32_t>(100 + t));
    for (int layer = 0; layer < layers; ++layer)
      document.layers.emplace(
          layer, ForeignLayer{.rows = std::min(length, limit),
                              .sides = {numbered_rows(layer, Side::key), numbered_rows(layer, Side::value)}});
    cache.documents.push_back(std::move(document));
  }
  return cache;
}

/// The content of the file when it is opened again.
ForeignSource imported_back(const char* format, const std::vector<std::string>& files,
                            const ImportOptions& options) {
  ForeignCache cache = foreign_format(format).open(files, options);
  settle(cache, options, files.front());
  return ForeignSource(std::move(cache));
}

ExportResult exported(const char* format, const CacheSource& source, const ExportJob& job) {
  return foreign_format(format).write(source, job);
}

/// The message of the Error(usage) that the action throws; "accepted" where it throws none.
std::string usage_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    CHECK_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "accepted";
}

void check_same_cache(const ForeignSource& wanted, const ForeignSource& got) {
  REQUIRE_EQ(got.layers(), wanted.layers());
  for (const int layer : wanted.layers())
    for (const Side side : kSides) {
      CAPTURE(layer);
      const Matrix<float> a = wanted.all(side, layer, 0), b = got.all(side, layer, 0);
      REQUIRE_GE(b.rows(), a.rows());  // the last raw page is filled up with zeros
      REQUIRE_EQ(a.cols(), b.cols());
      CHECK(std::equal(a.data(), a.data() + a.size(), b.data()));
    }
}

bool differ(const ForeignSource& a, const ForeignSource& b, Side side) {
  const Matrix<float> one = a.all(side, 0, 0), other = b.all(side, 0, 0);
  return !std::equal(one.data(), one.data() + one.size(), other.data());
}

/// The list of tokens of a sequence state, which follows magic number and version.
std::vector<int32_t> token_list(const std::string& file) {
  const std::string bytes = test::file_bytes(file);
  uint32_t count = 0;
  std::memcpy(&count, bytes.data() + 8, 4);
  std::vector<int32_t> tokens(count);
  std::memcpy(tokens.data(), bytes.data() + 12, uint64_t{4} * count);
  return tokens;
}

std::vector<int32_t> counted_from_100(size_t count) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(100 + i));
  return tokens;
}

}  // namespace

TEST_CASE("exports: a layout has a place for every value, or is refused") {
  const ForeignSource source(numbered_cache(2, {7}));
  const struct {
    const char* format;
    const char* name;
  } kinds[] = {{"numpy", "out.npy"}, {"sglang", "out"}, {"vllm-blocks", "out"}};
  for (const auto& kind : kinds)
    for (const std::string letters : {"slhtd", "slbhtd", "sltd", "lhtd", "shtd", "lbhtd", "slbtd", "sbhtd"}) {
      // In its own layout, and transposed.
      for (const bool reversed : {false, true}) {
        const std::string layout = reversed ? std::string(letters.rbegin(), letters.rend()) : letters;
        CAPTURE(kind.format);
        CAPTURE(layout);
        const Folder folder;
        ExportJob job{.documents = {0}, .options = {}, .path = folder / kind.name};
        job.options.layout = layout, job.options.page_tokens = 7;
        ExportResult result;
        const std::string message = usage_of([&] { result = exported(kind.format, source, job); });
        const auto lacks = [&](char letter) { return layout.find(letter) == std::string::npos; };
        // Pages may have all heads in d.
        const bool whole = !lacks('s') && !lacks('l') && (!lacks('h') || job.path == folder / "out");
        CHECK_MESSAGE((message == "accepted") == whole, message);
        if (!whole) {
          CHECK_FALSE(std::filesystem::exists(job.path));
          continue;
        }
        uint64_t bytes = 0;
        for (const std::string& file : result.files) bytes += std::filesystem::file_size(file);
        const uint64_t values = uint64_t{2} * 2 * 7 * kCacheHeads * kHeadDim * 4;
        CHECK_GE(bytes, values);
        CHECK_LT(bytes, values + 200);  // only headers besides
        ImportOptions options;
        options.layout = layout, options.type = "f32";
        options.heads = kCacheHeads, options.head_dim = kHeadDim, options.layers = 2;
        check_same_cache(source, imported_back(kind.format, result.files, options));
      }
    }
}

TEST_CASE("exports: a folder holds nothing of an earlier export, and keeps what is not of one") {
  const ForeignSource large(numbered_cache(3, {220})), small(numbered_cache(2, {48}));
  for (const char* format : {"lmcache", "vllm", "vllm-blocks", "sglang"})
    for (const char* kind : {"1", "2"}) {
      if (std::string_view(format) != "lmcache" && std::string_view(kind) == "2") continue;
      CAPTURE(format);
      CAPTURE(kind);
      const Folder folder;
      ExportJob job{.documents = {0}, .options = {}, .path = folder / "out"};
      job.options.page_tokens = 16;
      if (std::string_view(format) == "lmcache") job.options.kind = kind;
      exported(format, large, job);
      const std::string others[] = {job.path + "/notes.txt", job.path + "/0abc12.bin", job.path + "/0.data",
                                    job.path + "/model.layers.0.safetensors"};
      for (const std::string& other : others) std::ofstream(other) << "not of an export";
      CHECK(usage_of([&] { exported(format, small, job); }).find("is not empty") != std::string::npos);
      job.overwrite = true;
      const auto result = exported(format, small, job);
      std::vector<std::string> wanted(result.files);
      wanted.insert(wanted.end(), std::begin(others), std::end(others));
      std::vector<std::string> found;
      for (const auto& entry : std::filesystem::directory_iterator(job.path)) found.push_back(entry.path());
      std::sort(wanted.begin(), wanted.end()), std::sort(found.begin(), found.end());
      CHECK_EQ(found, wanted);
      // An input file of the command is not removed.
      job.keep = {"nowhere",
                  folder.path() / "." / "out" / std::filesystem::path(result.files.back()).filename()};
      const std::string before = test::file_bytes(result.files.back());
      CHECK(usage_of([&] { exported(format, large, job); }).find("add --force") != std::string::npos);
      CHECK_EQ(test::file_bytes(result.files.back()), before);
      CHECK(std::filesystem::exists(result.files.front()));
    }
}

TEST_CASE("exports to llama: rotated as requested, or else as imported if the type is quantized") {
  const ForeignSource plain(numbered_cache(1, {5}));
  ForeignCache quantized = numbered_cache(1, {5});
  quantized.model.imported = R"({"format":"llama","key_type":"q8_0","value_type":"q8_0","rotated":[32,16]})";
  const ForeignSource source(std::move(quantized));
  const Folder folder;
  const auto written = [&](ExportOptions options) {
    exported("llama", source,
             {.documents = {0}, .options = std::move(options), .path = folder / "x", .overwrite = true});
    ImportOptions as_it_is;
    as_it_is.heads = kCacheHeads;
    return imported_back("llama", {folder / "x"}, as_it_is);
  };
  ExportOptions options;
  options.key_type = "f32";
  check_same_cache(plain, written(options));
  options = {};
  options.rotated = {0, 0};
  options.key_type = options.value_type = "f32";
  check_same_cache(plain, written(options));
  options = {};
  options.value_type = "f32";
  CHECK_FALSE(differ(plain, written(options), Side::value));
  options.key_type = "f32", options.value_type = "q8_0";
  CHECK_FALSE(differ(plain, written(options), Side::key));

  // Export rotates quantized rows as their original file did, unless asked otherwise; 8 bits are near enough to tell.
  const auto error = [&](const ForeignSource& got, Side side) {
    const Matrix<float> a = plain.all(side, 0, 0), b = got.all(side, 0, 0);
    double sum = 0, energy = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      sum += (a.data()[i] - b.data()[i]) * (a.data()[i] - b.data()[i]);
      energy += a.data()[i] * a.data()[i];
    }
    return sum / energy;
  };
  options = {};
  options.rotated = {0, 0};
  ForeignSource got = written(options);
  CHECK_LT(error(got, Side::key), 1e-3);
  CHECK_LT(error(got, Side::value), 1e-3);
  got = written({});
  CHECK_GT(error(got, Side::key), 0.1);
  CHECK_GT(error(got, Side::value), 0.1);
  ImportOptions turned;
  turned.heads = kCacheHeads, turned.rotated = {32, 16};
  const ForeignSource back = imported_back("llama", {folder / "x"}, turned);
  CHECK_LT(error(back, Side::key), 1e-3);
  CHECK_LT(error(back, Side::value), 1e-3);
}

TEST_CASE("exports to llama: tokens behind a document go with that document alone") {
  const Folder folder;
  const auto written = [&](ForeignCache cache) {
    exported("llama", ForeignSource(std::move(cache)),
             {.documents = {0}, .options = {}, .path = folder / "x", .overwrite = true});
    return token_list(folder / "x");
  };
  // A state whose list has two tokens more than there are cells.
  const auto state = [&](std::vector<uint64_t> positions, size_t listed) {
    ForeignCache cache = numbered_cache(1, {positions.size()});
    cache.documents[0].positions = std::move(positions);
    written(std::move(cache));
    std::string bytes = test::file_bytes(folder / "x");
    uint32_t count = 0;
    std::memcpy(&count, bytes.data() + 8, 4);
    const auto number = static_cast<uint32_t>(listed);
    const auto tokens = counted_from_100(listed);
    std::string list(4 + 4 * listed, '\0');
    std::memcpy(list.data(), &number, 4);
    std::memcpy(list.data() + 4, tokens.data(), 4 * listed);
    bytes.replace(8, 4 + size_t{4} * count, list);
    std::ofstream(folder / "state", std::ios::binary) << bytes;
    ImportOptions options;
    options.heads = kCacheHeads;
    return foreign_format("llama").open({folder / "state"}, options);
  };
  const auto cut = [](ForeignCache cache, size_t first, size_t end) {
    ForeignDocument& document = cache.documents[0];
    const auto part = [&](auto& list) {
      list = {list.begin() + static_cast<std::ptrdiff_t>(first),
              list.begin() + static_cast<std::ptrdiff_t>(end)};
    };
    part(document.tokens), part(document.positions);
    document.layers.at(0).rows = end - first;
    return cache;
  };

  const ForeignCache whole = state({0, 1, 2, 3, 4, 5}, 8);
  CHECK_EQ(written(whole), counted_from_100(8));
  CHECK_EQ(written(cut(whole, 0, 4)), counted_from_100(4));
  CHECK_EQ(written(cut(whole, 2, 4)), std::vector<int32_t>{102, 103});
  // Another document with as many tokens, such as one to which codes were appended.
  ForeignCache other = whole;
  other.documents[0].tokens[3] = 7;
  CHECK_EQ(written(other), std::vector<int32_t>{100, 101, 102, 7, 104, 105});
  // Files of earlier versions do not say which document the tokens follow.
  ForeignCache old = whole;
  old.model.imported = R"({"format":"llama","tokens_behind":[106,107]})";
  CHECK_EQ(written(old), counted_from_100(6));

  // Positions with gaps: the list has a token for each position up to the last one.
  const ForeignCache gaps = state({0, 1, 4, 5}, 8);
  CHECK_EQ(written(gaps), counted_from_100(8));
  CHECK_EQ(written(cut(gaps, 0, 3)), counted_from_100(5));
  CHECK_EQ(written(cut(gaps, 0, 2)), counted_from_100(2));
  old = gaps;
  old.model.imported = R"({"format":"llama","tokens":[100,101,102,103,104,105,106,107]})";
  CHECK_EQ(written(old), counted_from_100(6));
  other = gaps;
  other.documents[0].tokens[3] = 7;
  CHECK_EQ(written(other), std::vector<int32_t>{100, 101, 104, 7});
}

TEST_CASE("exports to llama: layers with a window are layers of the model, and not all of them") {
  const ForeignSource source(numbered_cache(3, {5}));
  const Folder folder;
  const auto said = [&](std::vector<int> layers) {
    ExportJob job{.documents = {0}, .options = {}, .path = folder / "x", .overwrite = true};
    job.options.window_layers = std::move(layers);
    return usage_of([&] { exported("llama", source, job); });
  };
  CHECK_EQ(said({0, 2}), "accepted");
  CHECK_EQ(said({1, 99}), "cache: --window-layers names layer 99, but there are layers 0 to 2");
  CHECK_EQ(said({3}), "cache: --window-layers names layer 3, but there are layers 0 to 2");
  CHECK_EQ(
      said({0, 1, 2}),
      "cache: with --window-layers no layer is left without a window; a state of llama.cpp has such layers");
  const ForeignSource windows(numbered_cache(3, {9}, 4));
  CHECK_EQ(
      usage_of([&] { exported("llama", windows, {.documents = {0}, .options = {}, .path = folder / "x"}); }),
      "cache: all layers keep their last tokens only; a state of llama.cpp has layers that keep all");
}

TEST_CASE("exports to mlx: a short document gets the window that longer ones show") {
  const Folder folder;
  const auto window = [&](const ForeignSource& source, size_t document) {
    exported("mlx", source,
             {.documents = {document}, .options = {}, .path = folder / "x", .overwrite = true});
    const Safetensors file = Safetensors::open_file(folder / "x");
    REQUIRE_EQ(file.metadata().at("1.0"), "RotatingKVCache");
    int32_t size = 0;
    std::memcpy(&size, file.stored("0.4")->bytes.data(), 4);
    return size;
  };
  const ForeignSource source(numbered_cache(1, {30, 5, 12, 9}, 8));
  for (size_t i = 0; i < source.documents().count(); ++i) CHECK_EQ(window(source, i), 8);
}

TEST_CASE("exports to mlx: groups are those of codes") {
  const ForeignSource source(numbered_cache(1, {5}));
  const Folder folder;
  ExportJob job{.documents = {0}, .options = {}, .path = folder / "x", .overwrite = true};
  job.options.group = 32;
  CHECK(usage_of([&] { exported("mlx", source, job); }).find("--bits") != std::string::npos);
  job.options.bits = 4;
  CHECK_EQ(usage_of([&] { exported("mlx", source, job); }), "accepted");
  const ForeignSource large(numbered_cache(8, {5}));  // its last layer begins at 70,000
  job.options.key_type = "f16";
  CHECK_THROWS_WITH_AS(exported("mlx", large, job),
                       doctest::Contains("row 0: values are beyond the range of f16; name another type"),
                       Error);
}

TEST_CASE("imports of transformers: a rope_scaling that is no object, or nested without end, is left out") {
  const Folder folder;
  const auto imported = [&](const std::string& scaling) {
    ForeignCache cache = numbered_cache(1, {5});
    cache.model.rope_theta = 10000;
    cache.model.rope_scaling = scaling;
    const std::string file = folder / "x.safetensors";
    exported("transformers", ForeignSource(std::move(cache)),
             {.documents = {0}, .options = {}, .path = file, .overwrite = true});
    return foreign_format("transformers").open({file}, {}).model.rope_scaling;
  };
  CHECK_EQ(imported(R"({"factor":2.0})"), R"({"factor":2.0})");
  for (const char* scaling : {"7", "{", R"({"a":1,"a":2})"}) CHECK_EQ(imported(scaling), "");
  const std::string deep = R"({"a":)" + std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}";
  CHECK_EQ(imported(deep), "");
}

TEST_CASE("imports of transformers: metadata are checked, and the state of keys stays") {
  ForeignCache cache = numbered_cache(1, {5});
  cache.model.num_q_heads = 100;  // as long as what is put in its place
  cache.model.key_state = "pre-rope";
  const ForeignSource source(std::move(cache));
  const Folder folder;
  const std::string file = folder / "x.safetensors";
  exported("transformers", source, {.documents = {0}, .options = {}, .path = file});
  const std::string bytes = test::file_bytes(file);
  const auto opened_with = [&](const std::string& heads, const ImportOptions& options) {
    std::string changed = bytes;
    const std::string before = R"("num_attention_heads":"100")";
    const size_t at = changed.find(before);
    REQUIRE_NE(at, std::string::npos);
    changed.replace(at, before.size(), R"("num_attention_heads":")" + heads + "\"");
    std::ofstream(file, std::ios::binary) << changed;
    return foreign_format("transformers").open({file}, options);
  };
  const auto heads_of = [&](const std::string& heads, size_t notes) {
    CAPTURE(heads);
    const ForeignCache got = opened_with(heads, {});
    CHECK_EQ(got.notes.size(), notes);
    return got.model.num_q_heads;
  };
  CHECK_EQ(heads_of("100", 0), 100);
  CHECK_EQ(heads_of("004", 0), 4);
  for (const char* wrong : {"0.5", "000", "-02", "003", "4.0", "4e0", "4x ", "1e9", "nan"})
    CHECK_EQ(heads_of(wrong, 1), kCacheHeads);

  CHECK_EQ(opened_with("100", {}).model.key_state, "pre-rope");
  ImportOptions options;
  options.model = source.model();
  options.model->key_state = "post-rope";
  CHECK_EQ(opened_with("100", options).model.key_state, "pre-rope");
}

}  // namespace export_test
