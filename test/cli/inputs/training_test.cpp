// The tokens of caches that are trained on.
#include "cli/inputs/training.hpp"

#include "test/formats/folder.hpp"
#include "test/formats/samples.hpp"
#include "test/test.hpp"

namespace kvcodec::cli::training_test {
namespace {

using namespace kvcodec::test;

/// One layer with hardly any values, documents of these lengths.
void write_documents(const std::string& path, const std::vector<uint64_t>& lengths) {
  OutputFile output(path, true);
  KvWriter writer(output, sample_model(1, 1, 16), DType::bf16, {0}, std::nullopt);
  uint64_t tokens = 0;
  for (const uint64_t length : lengths) {
    const std::vector<uint32_t> ids(length, 7);
    writer.add_document(fmt::format("document {}", tokens), ids, counting(0, length));
    tokens += length;
  }
  for (const Side side : kSides) writer.append(side, 0, Matrix<float>(tokens, 16));
  writer.finish({"kvcodec test", {}});
  output.commit();
}

TEST_CASE("samples that are trained on: as many tokens as asked for, each once, and each of its document") {
  const Folder folder;
  write_documents(folder / "kv.h5", {961, 0, 1189});
  std::vector<KvReader> files;
  files.emplace_back(folder / "kv.h5");
  const Documents& documents = files.front().documents();
  const std::vector<int> layers{0};
  for (const uint64_t skip : std::vector<uint64_t>{0, 1})
    for (const uint64_t limit :
         std::vector<uint64_t>{1, 255, 256, 257, 1000, 1900, 2047, 2048, 2049, 2100, 2147, 2148}) {
      CAPTURE(skip);
      CAPTURE(limit);
      uint64_t tokens = 0, end = 0;
      for (const Run& run : choose_runs(files, {layers, {}, limit, skip})) {
        CHECK(run.count > 0);
        CHECK(run.first >= end);
        const size_t document = run.first < 961 ? 0 : 2;
        CHECK_EQ(run.index, run.first - documents.offsets[document]);
        CHECK(run.index >= skip);
        CHECK(run.index + run.count <= documents.length(document));
        end = run.first + run.count;
        tokens += run.count;
      }
      CHECK_EQ(tokens, limit);
    }
}

}  // namespace
}  // namespace kvcodec::cli::training_test
