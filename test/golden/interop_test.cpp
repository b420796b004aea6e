// Caches saved by other programs: make_interop_fixtures.py made them, and describes their content.
#include <fstream>
#include <iterator>

#include <nlohmann/json.hpp>

#include "formats/interop/foreign.hpp"
#include "formats/models/safetensors.hpp"
#include "lib/core/error.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/interop/foreign_source.hpp"
#include "test/golden/fixtures.hpp"
#include "test/mismatch.hpp"
#include "test/test.hpp"

namespace interop_test {

using namespace kvcodec;
using Json = nlohmann::json;
using test::ForeignSource;

namespace {

std::string golden(const std::string& name) { return test::source_dir() + "/test/golden/interop/" + name; }

const Json& cases() {
  static const Json all = [] {
    std::ifstream file(golden("cases.json"));
    REQUIRE(file);
    return Json::parse(file);
  }();
  return all;
}

std::vector<std::string> files_of(const Json& one) {
  std::vector<std::string> files;
  for (const auto& name : one["files"]) files.push_back(golden(name));
  return files;
}

interop::ImportOptions options_of(const Json& one) {
  const Json& given = one["options"];
  interop::ImportOptions options;
  options.heads = given.value("heads", 0), options.head_dim = given.value("head_dim", 0);
  options.layers = given.value("layer_count", 0);
  options.layout = given.value("layout", "");
  options.window_layers = given.value("window_layers", std::vector<int>());
  return options;
}

const interop::ForeignFormat& format_of(const Json& one) {
  const std::string from = one["options"].value("from", "");
  return from.empty() ? interop::guess_format(files_of(one).front()) : interop::foreign_format(from);
}

ForeignSource open(const Json& one) {
  const auto files = files_of(one);
  const auto options = options_of(one);
  interop::ForeignCache cache = format_of(one).open(files, options);
  interop::settle(cache, options, files.front());
  return ForeignSource(std::move(cache));
}

/// Every tensor of one file is in the other, and so are the metadata of mlx-lm.
void check_same_tensors(const std::string& original, const std::string& written, bool metadata) {
  const Safetensors first = Safetensors::open_file(original), second = Safetensors::open_file(written);
  for (const std::string& name : first.names()) {
    CAPTURE(name);
    const auto a = first.stored(name), b = second.stored(name);
    REQUIRE(b);
    CHECK_EQ(a->dtype, b->dtype);
    CHECK_EQ(a->shape, b->shape);
    CHECK(std::equal(a->bytes.begin(), a->bytes.end(), b->bytes.begin(), b->bytes.end()));
  }
  if (metadata) CHECK_EQ(first.metadata(), second.metadata());
}

/// Exports the cache to its original format: byte for byte the same if a format has no free bytes.
void check_written_back(const Json& one, const ForeignSource& source) {
  const test::Folder folder;
  const interop::ForeignFormat& format = format_of(one);
  interop::ExportJob job{.documents = source.all_documents(), .options = {}, .path = folder / "out"};
  job.options.page_tokens = one["options"].value("page_tokens", uint64_t{0});
  if (files_of(one).front().ends_with(".npy")) job.path += ".npy";
  job.buffer_bytes = 500;  // a few rows at a time
  const auto result = format.write(source, job);
  const auto files = files_of(one);
  REQUIRE_EQ(result.files.size(), files.size());
  for (size_t i = 0; i < files.size(); ++i) {
    CAPTURE(files[i]);
    if (files[i].ends_with(".safetensors"))
      check_same_tensors(files[i], result.files[i], format.name == "mlx");
    else
      CHECK(test::file_bytes(files[i]) == test::file_bytes(result.files[i]));
  }
}

}  // namespace

TEST_CASE("caches of other programs: what is in them, and the way back") {
  for (const auto& item : cases().items()) {
    const std::string& name = item.key();
    const auto& one = item.value();
    CAPTURE(name);
    if (!one["options"].contains("from")) CHECK(name.starts_with(format_of(one).name));
    const ForeignSource source = open(one);
    CHECK_EQ(source.layers(), one["layers"].get<std::vector<int>>());
    REQUIRE_EQ(source.documents().count(), one["documents"].size());
    test::Fixtures values("interop/" + name + ".f32");
    for (size_t d = 0; d < source.documents().count(); ++d) {
      const Json& document = one["documents"][d];
      CHECK_EQ(source.positions_of(d), document["positions"].get<std::vector<uint64_t>>());
      CHECK_EQ(source.tokens_of(d), document["tokens"].is_null()
                                        ? std::vector<uint32_t>()
                                        : document["tokens"].get<std::vector<uint32_t>>());
      for (size_t i = 0; i < source.layers().size(); ++i)
        for (const Side side : kSides) {
          const auto shape = document["shapes"][i][static_cast<size_t>(side)].get<std::vector<size_t>>();
          const LayerShape own = source.model().layer_shape(source.layers()[i]);
          CHECK_EQ(as_size(own.heads), shape[1]);
          CHECK_EQ(as_size(own.stored_dim(side)), shape[2]);
          const Matrix<float> wanted = values.matrix(shape[0], shape[1] * shape[2]),
                              got = source.all(side, source.layers()[i], d);
          REQUIRE_EQ(got.size(), wanted.size());
          CHECK(std::equal(got.data(), got.data() + got.size(), wanted.data()));
        }
    }
    CHECK(values.at_end());
    if (one["same"].get<bool>()) check_written_back(one, source);
  }
}

TEST_CASE("caches of other programs: through every other format and back") {
  // For one document whose layers keep all tokens and have one shape, so that every format can hold it.
  const ForeignSource source = open(cases()["transformers-llama"]);
  for (const interop::ForeignFormat& format : interop::foreign_formats()) {
    CAPTURE(format.name);
    const test::Folder folder;
    interop::ExportJob job{.documents = {0}, .options = {}, .path = folder / "out"};
    job.options.page_tokens = 3;
    const auto result = format.write(source, job);
    interop::ImportOptions options;
    options.model = source.model(), options.layers = 2;
    interop::ForeignCache cache = format.open(result.files, options);
    interop::settle(cache, options, result.files.front());
    const ForeignSource back(std::move(cache));
    for (const int layer : source.layers())
      for (const Side side : kSides) {
        const Matrix<float> wanted = source.all(side, layer, 0), got = back.all(side, layer, 0);
        REQUIRE_GE(got.rows(), wanted.rows());  // raw pages are filled up
        CHECK(std::equal(wanted.data(), wanted.data() + wanted.size(), got.data()));
      }
    if (format.recognises(result.files.front()))
      CHECK_EQ(interop::guess_format(result.files.front()).name, format.name);
  }
}

TEST_CASE("caches of other programs: arrays of a .npz file are of one side") {
  interop::ImportOptions options;
  options.layout = "slhtd";
  CHECK_THROWS_WITH_AS(interop::foreign_format("numpy").open({golden("numpy-stacked.npz")}, options),
                       doctest::Contains("so --layout has no sides (s)"), Error);
}

}  // namespace interop_test
