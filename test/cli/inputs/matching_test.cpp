// Documents of two files that are the same.
#include "cli/inputs/documents.hpp"
#include "lib/core/error.hpp"
#include "test/test.hpp"

namespace kvcodec::cli::matching_test {
namespace {

/// Documents of these names and lengths; positions begin anew in each.
Documents documents_of(const std::vector<std::pair<std::string, uint64_t>>& all) {
  Documents documents;
  for (const auto& [name, length] : all) documents.add(name, length);
  return documents;
}

/// A file with these documents, which counts the requests for positions.
class CountingFile final : public TokenFile {
 public:
  CountingFile(const Documents& documents, size_t& reads) : documents_(documents), reads_(reads) {}
  const std::string& name() const override { return name_; }
  const Documents& documents() const override { return documents_; }
  bool has_tokens() const override { return false; }
  std::vector<uint32_t> tokens(uint64_t, uint64_t count) const override {
    return std::vector<uint32_t>(count);
  }
  std::vector<uint64_t> positions(uint64_t first, uint64_t count) const override {
    ++reads_;
    size_t document = 0;
    while (documents_.offsets[document + 1] <= first) ++document;
    std::vector<uint64_t> positions;
    for (uint64_t i = 0; i < count; ++i) positions.push_back(first - documents_.offsets[document] + i);
    return positions;
  }

 private:
  std::string name_ = "file";
  const Documents& documents_;
  size_t& reads_;
};

TEST_CASE("documents of one name are each matched once, in order, by the positions they have") {
  const Documents original = documents_of({{"a", 3}, {"b", 2}, {"a", 5}, {"a", 4}}),
                  other = documents_of({{"a", 4}, {"b", 2}, {"a", 4}});
  size_t reads = 0, other_reads = 0;
  const auto matches = match_documents(CountingFile(original, reads), CountingFile(other, other_reads));
  REQUIRE(matches.size() == 3);
  CHECK_EQ(matches[0].original_document, 2);  // the first is too short
  CHECK_EQ(matches[1].original_document, 1);
  CHECK_EQ(matches[2].original_document, 3);
  CHECK_EQ(matches[2].original, 10);
  CHECK_EQ(matches[2].other, 6);
  const Documents more = documents_of({{"b", 2}, {"b", 2}});
  CHECK_THROWS_AS(match_documents(CountingFile(original, reads), CountingFile(more, other_reads)), Error);
}

TEST_CASE("only documents of the name that is looked for are read") {
  Documents original;
  for (int i = 0; i < 1000; ++i) original.add(fmt::format("document {}", i), 2);
  const Documents other = documents_of({{"document 999", 2}, {"document 500", 2}});
  size_t reads = 0, other_reads = 0;
  CHECK_EQ(match_documents(CountingFile(original, reads), CountingFile(other, other_reads)).size(), 2);
  CHECK_EQ(reads, 2);
  CHECK_EQ(other_reads, 2);
}

}  // namespace
}  // namespace kvcodec::cli::matching_test
