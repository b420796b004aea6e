// Texts as documents that a model is run on.
#include <fcntl.h>
#include <sys/stat.h>

#include "cli/inputs/documents.hpp"
#include "cli/inputs/model_runner.hpp"
#include "formats/io/descriptor.hpp"
#include "lib/core/error.hpp"
#include "test/formats/folder.hpp"
#include "test/test.hpp"

namespace kvcodec::cli::judged_texts_test {
namespace {

/// The first tokens of documents that are taken of `count`, of which each begins with its number.
std::vector<uint32_t> taken(uint32_t count, size_t limit) {
  std::vector<LoopDocument> documents;
  for (uint32_t i = 0; i < count; ++i) documents.push_back({{i, 0, 0}, 1});
  std::vector<uint32_t> first;
  for (const LoopDocument& document : spread_documents(std::move(documents), limit))
    first.push_back(document.tokens.front());
  return first;
}

TEST_CASE("folders of texts that lie too deep to be opened are refused in a few words") {
  const test::Folder folder;
  Descriptor place(::open(folder.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::string name(250, 'd');
  for (int level = 0; level < 30; ++level) {
    REQUIRE(::mkdirat(place.get(), name.c_str(), 0700) == 0);
    place = Descriptor(::openat(place.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    REQUIRE(place.get() >= 0);
  }
  std::string message;
  try {
    text_files({folder.path().string()});
  } catch (const Error& error) {
    message = error.what();
  }
  CHECK(message.starts_with(folder.path().string() +
                            ": folders lie so deep in it that the system opens no file there"));
  CHECK_LT(message.size(), 200);
}

TEST_CASE("documents that stand for all are spread evenly over them") {
  CHECK_EQ(taken(3, 6), std::vector<uint32_t>{0, 1, 2});
  CHECK_EQ(taken(6, 6), std::vector<uint32_t>{0, 1, 2, 3, 4, 5});
  CHECK_EQ(taken(7, 6), std::vector<uint32_t>{0, 1, 2, 4, 5, 6});
  CHECK_EQ(taken(60, 6), std::vector<uint32_t>{5, 15, 25, 35, 45, 55});
  CHECK_EQ(taken(1000, 1), std::vector<uint32_t>{500});
}

}  // namespace
}  // namespace kvcodec::cli::judged_texts_test
