#include <fstream>
#include <functional>

#include "formats/hdf5/hdf5.hpp"
#include "formats/results/results.hpp"
#include "lib/core/rng.hpp"
#include "test/formats/edit.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/samples.hpp"
#include "test/test.hpp"

namespace selection_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

SelectionInfo sample_info() {
  SelectionInfo info;
  info.model = sample_model(3, 2, 8);
  info.parameters.set("by", std::string("codes"));
  info.parameters.set("budget", int64_t{5});
  info.heads = 2;
  info.query_rows = {7, 8, 30};
  info.documents.add("one", 2);
  info.documents.add("two", 1);
  info.beside = {0, 2, 5};
  return info;
}

/// Selections of different lengths, one of them empty.
LayerSelections sample_selections(uint64_t seed) {
  Rng rng(seed);
  LayerSelections layer;
  layer.chosen.resize(6);
  for (size_t i = 0; i < layer.chosen.size(); ++i)
    for (size_t n = 0; n < i; ++n)
      layer.chosen[i].push_back({static_cast<float>(rng.normal()), static_cast<uint32_t>(rng.below(31))});
  return layer;
}

void write(const std::string& path) {
  OutputFile output(path, true);
  write_selections(output, sample_info(), {{0, sample_selections(1)}, {2, sample_selections(2)}},
                   {"kvcodec test", {"kvcodec before"}});
  output.commit();
}

}  // namespace

TEST_CASE("selection: a group that cannot be read is not taken for one that is missing (long)") {
  const Folder folder;
  const std::string path = folder / "s.h5";
  write(path);
  const std::string good = file_bytes(path);
  const SelectionFile wanted = read_selection_info(path);
  size_t refused = 0, tried = 0;
  for (size_t place = 0; place < good.size(); place += std::max<size_t>(3, kDamageStride)) {
    ++tried;
    std::string bad = good;
    bad[place] = static_cast<char>(bad[place] ^ 0x10);
    std::ofstream(path, std::ios::binary) << bad;
    try {
      const SelectionFile found = read_selection_info(path);
      CAPTURE(place);
      CHECK(found.info.documents.names == wanted.info.documents.names);
      CHECK(found.info.query_rows == wanted.info.query_rows);
      CHECK(found.budgets == wanted.budgets);
    } catch (const Error&) {
      ++refused;
    }
  }
  CHECK(refused > tried / 4);
}

TEST_CASE("selection: what was written comes back") {
  const Folder folder;
  write(folder / "s.h5");
  CHECK(identify(folder / "s.h5").type == "selection");
  const SelectionFile file = read_selection_info(folder / "s.h5");
  CHECK(file.info.model == sample_info().model);
  CHECK(file.info.parameters == sample_info().parameters);
  CHECK(file.info.query_rows == sample_info().query_rows);
  CHECK(file.info.documents.names == sample_info().documents.names);
  CHECK(file.info.documents.offsets == sample_info().documents.offsets);
  CHECK_EQ(file.info.heads, 2);
  CHECK(file.info.beside == sample_info().beside);
  CHECK(file.budgets == std::map<int, uint64_t>{{0, 5}, {2, 5}});
  CHECK(read_selections(folder / "s.h5", 0).chosen == sample_selections(1).chosen);
  CHECK(read_selections(folder / "s.h5", 2).chosen == sample_selections(2).chosen);
  CHECK_THROWS_AS(read_selections(folder / "s.h5", 1), Error);
}

TEST_CASE("selection: without queries no memory is allocated for what the datasets claim") {
  const Folder folder;
  const std::string path = folder / "s.h5";
  SelectionInfo info = sample_info();
  info.heads = 1;
  info.query_rows = {};
  info.documents = {};
  info.beside = {};
  {
    OutputFile output(path, true);
    write_selections(output, info, {{0, {}}}, {"kvcodec test", {}});
    output.commit();
  }
  CHECK(read_selections(path, 0).chosen.empty());
  {
    Edit edit(path);
    const std::vector<hsize_t> claimed{0, 1, hsize_t{1} << 40};
    edit.put("/layers/0/token", H5T_STD_U32LE, H5T_NATIVE_UINT32, claimed, std::vector<uint32_t>());
    edit.put_floats("/layers/0/score", claimed, {});
  }
  CHECK(read_selections(path, 0).chosen.empty());
}

TEST_CASE("selection: sizes that do not fit are refused, on writing and reading") {
  const Folder folder;
  {
    OutputFile output(folder / "bad.h5", true);
    LayerSelections few = sample_selections(1);
    few.chosen.pop_back();
    CHECK_THROWS_AS(write_selections(output, sample_info(), {{0, few}}, {"kvcodec test", {}}), Error);
  }
  const auto refused = [&](const std::function<void(Edit&)>& damage) {
    write(folder / "s.h5");
    {
      Edit edit(folder / "s.h5");
      damage(edit);
    }
    CHECK_THROWS_AS(read_selection_info(folder / "s.h5"), Error);
  };
  refused([](Edit& edit) { edit.remove("/layers/0/score"); });
  refused([](Edit& edit) { edit.remove("/query_position"); });
  refused([](Edit& edit) { edit.remove("/documents"); });
  refused([](Edit& edit) { edit.put("/beside", {0, 2}); });
  refused([](Edit& edit) { edit.put("/documents/offset", {0, 2, 4}); });
  refused([](Edit& edit) { edit.set("/", "heads", int64_t{3}); });
  refused([](Edit& edit) { edit.set("/", "kvcodec_version", int64_t{99}); });
  refused([](Edit& edit) {
    edit.put("/layers/2/score", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, {3, 2, 4}, std::vector<float>(24));
  });
}

}  // namespace selection_test
