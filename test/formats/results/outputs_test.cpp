#include <algorithm>
#include <limits>

#include "formats/results/results.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/samples.hpp"
#include "test/test.hpp"

namespace outputs_test {

using namespace kvcodec;
using namespace kvcodec::test;

TEST_CASE("outputs: what is written comes back, any part of it") {
  const Folder folder;
  write_sample_outputs(folder / "out.h5");
  const OutputsReader reader(folder / "out.h5");
  CHECK_EQ(reader.type().type, "outputs");
  CHECK(reader.type().history == std::vector<std::string>{"earlier", "kvcodec test"});
  CHECK(reader.info().model == sample_model(3, 2, 4));
  CHECK_EQ(reader.info().codec, "none");
  CHECK(reader.info().layers == std::vector<int>{0, 2});
  CHECK(reader.info().documents.names == TextList{"first", "empty", "third"});
  CHECK(reader.info().documents.offsets == std::vector<uint64_t>{0, 3, 3, 5});
  CHECK_EQ(reader.queries(), 5);
  CHECK(reader.positions(0, 5) == std::vector<uint64_t>{4, 5, 9, 10, uint64_t{1} << 40});
  CHECK(reader.token_rows(1, 3) == std::vector<uint64_t>{5, 9, 21});
  for (const int layer : {0, 2})
    for (size_t first = 0; first <= 5; ++first) {
      const Matrix<float> expected = random_rows(5, 16, static_cast<uint64_t>(layer));
      Matrix<float> rows(5 - first, 20);  // into the middle of longer rows
      reader.read(layer, first, rows.view().columns(3, 16));
      for (size_t i = 0; i < rows.rows(); ++i)
        CHECK(std::equal(expected.row(first + i).begin(), expected.row(first + i).end(),
                         rows.row(i).begin() + 3));
    }
  Matrix<float> one(1, 16), narrow(1, 15);
  CHECK_THROWS_AS(reader.read(1, 0, one), Error);
  CHECK_THROWS_AS(reader.read(0, 5, one), Error);
  CHECK_THROWS_AS(reader.read(0, 0, narrow), Error);
}

TEST_CASE("outputs: no queries at all make a file") {
  const Folder folder;
  OutputFile output(folder / "out.h5", false);
  OutputsWriter writer(
      output, {.model = sample_model(1, 1, 2), .codec = "none", .layers = {0}, .documents = {}}, {}, {});
  writer.finish({"kvcodec test", {}});
  output.commit();
  CHECK_EQ(OutputsReader(folder / "out.h5").queries(), 0);
}

TEST_CASE("outputs: what does not fit or is not finite is refused on writing") {
  const Folder folder;
  OutputsInfo info{.model = sample_model(2, 1, 4), .codec = "none", .layers = {1}, .documents = {}};
  info.documents.add("d", 3);
  const std::vector<uint64_t> two{1, 2}, three{1, 2, 3};
  OutputFile output(folder / "out.h5", false);
  CHECK_THROWS_AS(OutputsWriter(output, info, two, three), Error);
  CHECK_THROWS_AS(OutputsWriter(output, info, three, two), Error);
  OutputsWriter writer(output, info, three, three);
  CHECK_THROWS_AS(writer.append(0, random_rows(1, 8, 1).view()), Error);
  CHECK_THROWS_AS(writer.append(1, random_rows(1, 7, 1).view()), Error);
  writer.append(1, random_rows(1, 8, 1).view());
  CHECK_THROWS_AS(writer.finish({"kvcodec test", {}}), Error);
  Matrix<float> rows = random_rows(2, 8, 1);
  rows(1, 6) = std::numeric_limits<float>::infinity();
  try {
    writer.append(1, rows);
    FAIL("an infinity was written");
  } catch (const Error& error) {
    CHECK_EQ(std::string(error.what()), "/layers/1/output: query 2, head 1, dimension 2 is not finite");
  }
}

}  // namespace outputs_test
