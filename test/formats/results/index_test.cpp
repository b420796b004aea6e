#include <filesystem>
#include <functional>
#include <limits>

#include "formats/hdf5/hdf5.hpp"
#include "formats/results/results.hpp"
#include "lib/core/rng.hpp"
#include "test/formats/flips.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/samples.hpp"
#include "test/test.hpp"

namespace index_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

constexpr uint64_t kLengths[] = {50, 0, 3, 40};
constexpr int kLayers[] = {0, 2};

IndexInfo sample_info() {
  IndexInfo info;
  info.model = sample_model(3, 2, 8);
  info.parameters.set("metric", std::string("cosine"));
  info.sink = 4;
  for (size_t i = 0; i < std::size(kLengths); ++i)
    info.documents.add("d" + std::to_string(i % 3), kLengths[i]);
  info.batch_ends = {{30, 40, 50}, {}, {3}, {40}};
  return info;
}

/// Indices of one layer, (documents, heads).
std::vector<ClusterIndex> sample_layer(uint64_t seed) {
  Rng rng(seed);
  const IndexInfo info = sample_info();
  ClusterOptions options;
  options.sink = 4, options.clusters = 5, options.batch = 10, options.batch_clusters = 2;
  std::vector<ClusterIndex> indices;
  for (const uint64_t length : kLengths) {
    Matrix<float> keys(length, 16);
    for (size_t i = 0; i < keys.size(); ++i) keys.data()[i] = static_cast<float>(rng.normal());
    for (size_t head = 0; head < 2; ++head) {
      indices.emplace_back(8, 4);
      const ClusterTask task{&indices.back(), keys.view().columns(head * 8, 8),
                             info.batch_ends[indices.size() / 2 - (head == 1)], head};
      add_batches({&task, 1}, options, 1);
    }
  }
  return indices;
}

std::vector<uint64_t> sample_positions() {
  std::vector<uint64_t> positions;
  for (const uint64_t length : kLengths)
    for (uint64_t i = 0; i < length; ++i) positions.push_back(5 + i);
  return positions;
}

void write(const std::string& path) {
  OutputFile output(path, true);
  const auto positions = sample_positions();
  const std::vector<uint32_t> tokens(positions.begin(), positions.end());
  IndexWriter writer(output, sample_info(), tokens, positions);
  for (const int layer : kLayers) writer.add_layer(layer, sample_layer(static_cast<uint64_t>(layer)));
  writer.finish({"kvcodec test", {"kvcodec before"}});
  output.commit();
}

void check_same(const ClusterIndex& a, const ClusterIndex& b) {
  CHECK_EQ(a.sink(), b.sink());
  CHECK_EQ(a.dims(), b.dims());
  CHECK(std::ranges::equal(a.batch_ends(), b.batch_ends()));
  CHECK(std::ranges::equal(a.offsets(), b.offsets()));
  CHECK(std::ranges::equal(a.ids(), b.ids()));
  REQUIRE_EQ(a.clusters(), b.clusters());
  CHECK(
      std::equal(a.centroids().data(), a.centroids().data() + a.clusters() * a.dims(), b.centroids().data()));
}

}  // namespace

TEST_CASE("index: what was written comes back") {
  const Folder folder;
  write(folder / "i.h5");
  CHECK(identify(folder / "i.h5").type == "index");
  const IndexReader index(folder / "i.h5");
  const IndexInfo expected = sample_info();
  CHECK(index.info().model == expected.model);
  CHECK(index.info().parameters == expected.parameters);
  CHECK_EQ(index.info().sink, 4);
  CHECK(index.info().documents.names == expected.documents.names);
  CHECK(index.info().documents.offsets == expected.documents.offsets);
  CHECK(index.info().batch_ends == expected.batch_ends);
  CHECK(index.layers() == std::vector<int>{0, 2});
  CHECK(index.has_tokens());
  CHECK(index.positions(50, 4) == std::vector<uint64_t>{5, 6, 7, 5});
  CHECK(index.tokens(52, 2) == std::vector<uint32_t>{7, 5});
  for (const int layer : kLayers) {
    const auto indices = sample_layer(static_cast<uint64_t>(layer));
    uint64_t clusters = 0;
    for (size_t i = 0; i < indices.size(); ++i) {
      check_same(index.read(layer, i / 2, i % 2), indices[i]);
      clusters += indices[i].clusters();
    }
    CHECK_EQ(index.clusters(layer), clusters);
  }
  CHECK_THROWS_AS((void)index.read(1, 0, 0), Error);
}

TEST_CASE("index: what does not fit is not written") {
  const Folder folder;
  OutputFile output(folder / "i.h5", true);
  const auto positions = sample_positions();
  CHECK_THROWS_AS(IndexWriter(output, sample_info(), {}, std::span(positions).first(92)), Error);
  IndexWriter writer(output, sample_info(), {}, positions);
  auto indices = sample_layer(1);
  CHECK_THROWS_AS(writer.add_layer(0, std::span(indices).first(7)), Error);
  std::swap(indices[0], indices[2]);
  CHECK_THROWS_AS(writer.add_layer(0, indices), Error);
}

TEST_CASE("index: damage is refused, and what is left is not believed") {
  const Folder folder;
  const std::string good = folder / "i.h5";
  write(good);
  const auto refused = [&](const char* why, const std::function<void(Edit&)>& damage) {
    const std::string bad = folder / "bad.h5";
    std::filesystem::copy_file(good, bad, std::filesystem::copy_options::overwrite_existing);
    {
      Edit edit(bad);
      damage(edit);
    }
    const auto read_all = [&] {
      const IndexReader index(bad);
      for (const int layer : index.layers())
        for (size_t i = 0; i < index.info().documents.count() * 2; ++i) (void)index.read(layer, i / 2, i % 2);
    };
    CHECK_THROWS_WITH_AS(read_all(), doctest::Contains(why), Error);
  };
  const auto first = sample_layer(0);
  size_t clusters = 0;
  std::vector<uint64_t> counts, sizes, ends, tokens;
  for (const ClusterIndex& index : first) {
    counts.push_back(index.clusters());
    clusters += index.clusters();
    for (size_t c = 0; c < index.clusters(); ++c) {
      sizes.push_back(index.tokens_of(c).size());
      ends.push_back((ends.empty() ? 0 : ends.back()) + sizes.back());
    }
    tokens.insert(tokens.end(), index.ids().begin(), index.ids().end());
  }
  const auto put32 = [](const char* path, std::vector<uint64_t> values) {
    return [=](Edit& f) { f.put(path, H5T_STD_U32LE, H5T_NATIVE_UINT64, {values.size()}, values); };
  };
  const auto changed = [](std::vector<uint64_t> values, size_t at, uint64_t value) {
    values[at] = value;
    return values;
  };
  refused("parameters", [](Edit& f) { f.set("/", "parameters", std::string("[]")); });
  refused("sink", [](Edit& f) { f.set("/", "sink", int64_t{-1}); });
  refused("is wanted", [](Edit& f) { f.set("/", "sink", int64_t{3}); });
  refused("/positions", [](Edit& f) { f.put("/positions", std::vector<uint64_t>(7)); });
  refused("/tokens", [](Edit& f) { f.put("/tokens", std::vector<uint64_t>(7)); });
  refused("u64 [5] is wanted", [](Edit& f) { f.put("/batches/offset", {0, 3, 3, 5}); });
  refused("does not rise", [](Edit& f) { f.put("/batches/offset", {0, 3, 2, 4, 5}); });
  refused("its batches end at 49", [](Edit& f) { f.put("/batches/end", {30, 40, 49, 3, 40}); });
  refused("position 5 is followed by 5", [](Edit& f) {
    auto positions = sample_positions();
    positions[1] = 5;
    f.put("/positions", positions);
  });
  refused("batches of document 0 do not rise", [](Edit& f) { f.put("/batches/end", {40, 40, 50, 3, 40}); });
  refused("not of its batch", [](Edit& f) { f.put("/batches/end", {30, 35, 50, 3, 40}); });
  refused("/layers/0/clusters", [](Edit& f) { f.remove("/layers/0/clusters"); });
  refused("u32 [8] is wanted", put32("/layers/0/clusters", {1, 2}));
  refused("/layers/0/", put32("/layers/0/clusters", changed(counts, 1, 1u << 31)));
  refused("fit together",
          put32("/layers/0/clusters", changed(changed(counts, 0, counts[0] - 1), 1, counts[1] + 1)));
  refused("/layers/0/centroid", [&](Edit& f) {
    f.put_floats("/layers/0/centroid", {clusters, 4}, std::vector<float>(clusters * 4));
  });
  refused("not a finite number", [&](Edit& f) {
    f.put_floats("/layers/0/centroid", {clusters, 8},
                 std::vector<float>(clusters * 8, std::numeric_limits<float>::infinity()));
  });
  refused("by the sizes", put32("/layers/0/size", changed(sizes, 2, sizes[2] + 1)));
  refused("by the sizes", [&](Edit& f) { f.put("/layers/0/end", changed(ends, 0, ends[0] + 1)); });
  refused("not of its batch", put32("/layers/0/token", changed(tokens, 0, 2)));
  refused("cluster", put32("/layers/0/token", changed(tokens, 0, tokens[1])));
  refused("not of its batch", put32("/layers/0/token", changed(tokens, 0, 0xffffffff)));
  refused("/layers/0/token", put32("/layers/0/token", {1, 2, 3}));
}

TEST_CASE("index: any byte may be wrong without a crash, and no wrong cluster comes out unnoticed (long)") {
  const Folder folder;
  const std::string good = folder / "i.h5", bad = folder / "bad.h5";
  write(good);
  const auto values = [](const std::string& path) {
    const IndexReader index(path);
    std::vector<float> all;
    for (size_t i = 0; i < index.info().documents.count() * 2; ++i) {
      const ClusterIndex own = index.read(2, i / 2, i % 2);
      all.insert(all.end(), own.ids().begin(), own.ids().end());
      all.insert(all.end(), own.centroids().data(), own.centroids().data() + own.clusters() * own.dims());
    }
    return all;
  };
  CHECK_GT(refused_share(good, bad, 7 * kDamageStride, values), 0.1);
}

}  // namespace index_test
