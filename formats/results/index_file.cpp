#include "formats/results/index_file.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "formats/cache/header_io.hpp"
#include "formats/cache/record_json.hpp"
#include "formats/hdf5/hdf5.hpp"
#include "lib/core/checked.hpp"

namespace kvcodec {
namespace {

constexpr std::string_view kIndexType = "index";
constexpr char kTokens[] = "/tokens";
constexpr char kPositions[] = "/positions";
constexpr char kBatchOffset[] = "/batches/offset";
constexpr char kBatchEnd[] = "/batches/end";

/// Tokens of a document that are in clusters.
uint64_t clustered(uint64_t length, uint64_t sink) { return length - std::min(length, sink); }

void write_numbers(h5::File& file, const std::string& path, std::span<const uint64_t> values) {
  h5::DatasetWriter writer(file, path, DType::u64, {}, values.size());
  writer.append_values<uint64_t>(values);
  writer.finish();
}

template <class T>
void write_values(h5::File& file, const std::string& path, DType type, std::vector<uint64_t> row_shape,
                  std::span<const T> values, uint64_t rows) {
  h5::DatasetWriter writer(file, path, type, std::move(row_shape), rows);
  writer.append_values<T>(values);
  writer.finish();
}

}  // namespace

// Reading -------------------------------------------------------------------------------------------

struct IndexReader::Impl {
  struct Layer {
    h5::Dataset centroids, sizes, ends, tokens;
    std::vector<uint64_t> first_cluster;  // of each document and head, and the end
  };

  FileType type;
  h5::File file;
  IndexInfo info;
  std::vector<int> layer_list;
  std::map<int, Layer> layers;
  std::vector<uint64_t> first_token;  // of each document in a layer's tokens: H heads of them, and the end

  explicit Impl(const std::string& name) : file(open_file(name, kIndexType, type)) {
    info.model = read_model(file, type);
    info.parameters = with_context(file.name() + ": attribute 'parameters'",
                                   [&] { return record_from_json(file.text(kRoot, "parameters")); });
    info.sink = static_cast<uint64_t>(file.integer(kRoot, "sink", 0, UINT32_MAX));
    info.documents = read_documents(file);
    check_rows(kPositions);
    check_positions(file.dataset(kPositions), info.documents);
    if (file.has(kTokens)) check_rows(kTokens);
    read_batches();
    first_token.push_back(0);
    for (size_t i = 0; i < info.documents.count(); ++i)
      first_token.push_back(checked_add(
          first_token.back(), checked_mul(clustered(info.documents.length(i), info.sink), heads())));
    layer_list = layer_numbers(file, info.model.num_layers);
    for (const int layer : layer_list) layers.emplace(layer, open_layer(layer));
  }

  uint64_t heads() const { return static_cast<uint64_t>(info.model.num_kv_heads); }

  void check_rows(const char* path) const {
    const h5::Dataset dataset = file.dataset(path);
    if (dataset.shape() != std::vector<uint64_t>{info.documents.tokens()})
      throw dataset.error("has the shape [{}]; the documents have {} tokens",
                          fmt::join(dataset.shape(), ", "), info.documents.tokens());
  }

  void read_batches() {
    const h5::Dataset offset = file.dataset(kBatchOffset), end = file.dataset(kBatchEnd);
    const uint64_t documents = info.documents.count();
    if (offset.shape() != std::vector<uint64_t>{documents + 1})
      throw offset.error("has the shape [{}]; there are {} documents", fmt::join(offset.shape(), ", "),
                         documents);
    if (end.shape().size() != 1) throw end.error("has {} dimensions; there is 1", end.shape().size());
    const auto offsets = offset.integers(0, documents + 1, kMaxNumber);
    const auto ends = end.integers(0, end.rows(), UINT32_MAX);
    if (offsets.front() != 0 || offsets.back() != ends.size() || !std::ranges::is_sorted(offsets))
      throw offset.error("does not rise from 0 to {}, the batches there are", ends.size());
    for (size_t i = 0; i < documents; ++i) {
      info.batch_ends.emplace_back(ends.begin() + static_cast<ptrdiff_t>(offsets[i]),
                                   ends.begin() + static_cast<ptrdiff_t>(offsets[i + 1]));
      const auto& own = info.batch_ends.back();
      if (std::ranges::adjacent_find(own, std::ranges::greater_equal{}) != own.end())
        throw end.error("the batches of document {} do not rise", i);
      if ((own.empty() ? 0 : own.back()) != info.documents.length(i))
        throw end.error("document {} has {} tokens; its batches end at {}", i, info.documents.length(i),
                        own.empty() ? 0 : own.back());
    }
  }

  Layer open_layer(int number) const {
    const auto dataset = [&](const char* name) { return file.dataset(layer_path(number, name)); };
    const h5::Dataset counts = dataset("clusters");
    const uint64_t documents = info.documents.count();
    if (counts.shape() != std::vector<uint64_t>{documents * heads()})
      throw counts.error("has the shape [{}]; there are {} documents of {} heads",
                         fmt::join(counts.shape(), ", "), documents, heads());
    Layer layer{dataset("centroid"), dataset("size"), dataset("end"), dataset("token"), {0}};
    for (const uint64_t count : counts.integers(0, documents * heads(), UINT32_MAX))
      layer.first_cluster.push_back(checked_add(layer.first_cluster.back(), count));
    const uint64_t total = layer.first_cluster.back();
    layer.centroids.expect(DType::f32,
                           std::vector<uint64_t>{total, static_cast<uint64_t>(info.model.head_dim)});
    layer.sizes.expect(DType::u32, std::vector<uint64_t>{total});
    layer.ends.expect(DType::u64, std::vector<uint64_t>{total});
    layer.tokens.expect(DType::u32, std::vector<uint64_t>{first_token.back()});
    return layer;
  }

  ClusterIndex read(int number, size_t document, size_t head) const {
    const auto place = layers.find(number);
    if (place == layers.end()) throw file.error(kRoot, "has no layer {}", number);
    const Layer& layer = place->second;
    const uint64_t head_tokens = clustered(info.documents.length(document), info.sink);
    const uint64_t first_token_of_head = first_token[document] + head * head_tokens;
    const uint64_t first = layer.first_cluster[document * heads() + head];
    const uint64_t count = layer.first_cluster[document * heads() + head + 1] - first;
    ClusterIndex::Parts parts{.sink = info.sink,
                              .batch_ends = info.batch_ends[document],
                              .centroids = Matrix<float>(count, static_cast<size_t>(info.model.head_dim)),
                              .offsets = {0},
                              .ids = std::vector<uint32_t>(head_tokens)};
    std::vector<uint32_t> sizes(count);
    layer.sizes.read(first, count, std::as_writable_bytes(std::span(sizes)));
    const auto ends = layer.ends.integers(first, count, kMaxNumber);
    for (size_t c = 0; c < count; ++c) {
      parts.offsets.push_back(checked_add(parts.offsets.back(), sizes[c]));
      if (ends[c] != first_token_of_head + parts.offsets.back())
        throw layer.ends.error("cluster {} ends at {}; by the sizes it ends at {}", first + c, ends[c],
                               first_token_of_head + parts.offsets.back());
    }
    layer.centroids.read(first, count,
                         std::as_writable_bytes(std::span(parts.centroids.data(), parts.centroids.size())));
    layer.tokens.read(first_token_of_head, head_tokens, std::as_writable_bytes(std::span(parts.ids)));
    return with_context(
        fmt::format("{}: /layers/{}: document {}, head {}", file.name(), number, document, head),
        [&] { return ClusterIndex(std::move(parts)); });
  }
};

IndexReader::IndexReader(const std::string& file) : impl_(std::make_unique<Impl>(file)) {}
IndexReader::~IndexReader() = default;
IndexReader::IndexReader(IndexReader&&) noexcept = default;
IndexReader& IndexReader::operator=(IndexReader&&) noexcept = default;

const std::string& IndexReader::name() const { return impl_->file.name(); }
const FileType& IndexReader::type() const { return impl_->type; }
const IndexInfo& IndexReader::info() const { return impl_->info; }
const std::vector<int>& IndexReader::layers() const { return impl_->layer_list; }
bool IndexReader::has_tokens() const { return impl_->file.has(kTokens); }
uint64_t IndexReader::file_bytes() const { return impl_->file.size(); }
uint64_t IndexReader::clusters(int layer) const { return impl_->layers.at(layer).first_cluster.back(); }

std::vector<uint32_t> IndexReader::tokens(uint64_t first, uint64_t count) const {
  const auto wide = impl_->file.dataset(kTokens).integers(first, count, UINT32_MAX);
  return {wide.begin(), wide.end()};
}

std::vector<uint64_t> IndexReader::positions(uint64_t first, uint64_t count) const {
  return impl_->file.dataset(kPositions).integers(first, count, kMaxNumber);
}

ClusterIndex IndexReader::read(int layer, size_t document, size_t head) const {
  return impl_->read(layer, document, head);
}

// Writing -------------------------------------------------------------------------------------------

struct IndexWriter::Impl {
  h5::File file;
  IndexInfo info;

  Impl(OutputFile& output, IndexInfo own) : file(h5::File::create(output)), info(std::move(own)) {}
};

IndexWriter::IndexWriter(OutputFile& output, IndexInfo info, std::span<const uint32_t> tokens,
                         std::span<const uint64_t> positions)
    : impl_(std::make_unique<Impl>(output, std::move(info))) {
  h5::File& file = impl_->file;
  const Documents& documents = impl_->info.documents;
  if (positions.size() != documents.tokens() || (!tokens.empty() && tokens.size() != documents.tokens()) ||
      impl_->info.batch_ends.size() != documents.count())
    throw failed("{}: {} positions, {} token ids, {} lists of batches for {} documents of {} tokens",
                 output.target(), positions.size(), tokens.size(), impl_->info.batch_ends.size(),
                 documents.count(), documents.tokens());
  write_documents(file, documents);
  if (!tokens.empty()) write_values<uint32_t>(file, kTokens, DType::u32, {}, tokens, tokens.size());
  const uint64_t largest = positions.empty() ? 0 : std::ranges::max(positions);
  if (position_type(largest) == DType::u32) {
    const std::vector<uint32_t> narrow(positions.begin(), positions.end());
    write_values<uint32_t>(file, kPositions, DType::u32, {}, narrow, narrow.size());
  } else {
    write_numbers(file, kPositions, positions);
  }
  std::vector<uint64_t> offsets{0}, ends;
  for (const auto& own : impl_->info.batch_ends) {
    ends.insert(ends.end(), own.begin(), own.end());
    offsets.push_back(ends.size());
  }
  file.make_group("/batches");
  write_numbers(file, kBatchOffset, offsets);
  write_numbers(file, kBatchEnd, ends);
}

IndexWriter::~IndexWriter() = default;

void IndexWriter::add_layer(int layer, std::span<const ClusterIndex> indices) {
  const IndexInfo& info = impl_->info;
  const auto heads = static_cast<size_t>(info.model.num_kv_heads);
  const auto dims = static_cast<uint64_t>(info.model.head_dim);
  if (indices.size() != info.documents.count() * heads)
    throw failed("{} indices for {} documents of {} heads", indices.size(), info.documents.count(), heads);
  std::vector<uint32_t> counts, sizes, tokens;
  std::vector<uint64_t> ends;
  std::vector<float> centroids;
  for (size_t i = 0; i < indices.size(); ++i) {
    const ClusterIndex& index = indices[i];
    if (!std::ranges::equal(index.batch_ends(), info.batch_ends[i / heads]) || index.sink() != info.sink ||
        index.dims() != dims)
      throw failed("layer {}: document {}, head {} has other batches", layer, i / heads, i % heads);
    counts.push_back(static_cast<uint32_t>(index.clusters()));
    const uint64_t before = tokens.size();
    for (size_t c = 0; c < index.clusters(); ++c) {
      sizes.push_back(static_cast<uint32_t>(index.tokens_of(c).size()));
      ends.push_back(before + index.offsets()[c + 1]);
    }
    tokens.insert(tokens.end(), index.ids().begin(), index.ids().end());
    const auto own = index.centroids();
    centroids.insert(centroids.end(), own.data(), own.data() + own.rows() * own.cols());
  }
  h5::File& file = impl_->file;
  file.make_group(fmt::format("/layers/{}", layer));
  write_values<uint32_t>(file, layer_path(layer, "clusters"), DType::u32, {}, counts, counts.size());
  write_values<float>(file, layer_path(layer, "centroid"), DType::f32, {dims}, centroids, sizes.size());
  write_values<uint32_t>(file, layer_path(layer, "size"), DType::u32, {}, sizes, sizes.size());
  write_numbers(file, layer_path(layer, "end"), ends);
  write_values<uint32_t>(file, layer_path(layer, "token"), DType::u32, {}, tokens, tokens.size());
}

void IndexWriter::finish(const Provenance& provenance) {
  h5::File& file = impl_->file;
  write_model(file, impl_->info.model);
  file.set_text(kRoot, "parameters", to_json_text(impl_->info.parameters));
  file.set_integer(kRoot, "sink", static_cast<int64_t>(impl_->info.sink));
  write_file_type(file, std::string(kIndexType), impl_->info.model, provenance);
  file.close();
}

}  // namespace kvcodec
