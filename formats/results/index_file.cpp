#include "formats/results/index_file.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "formats/cache/header_io.hpp"
#include "lib/core/checked.hpp"

namespace kvcodec {
namespace {

constexpr char kIndexType[] = "index", kSink[] = "sink";
constexpr char kTokens[] = "/tokens", kPositions[] = "/positions", kBatchOffset[] = "/batches/offset",
               kBatchEnd[] = "/batches/end";

/// Tokens of a document that are in clusters.
uint64_t clustered(uint64_t length, uint64_t sink) { return length - std::min(length, sink); }

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
    info = {.model = read_model(file),
            .parameters = read_parameters(file),
            .sink = static_cast<uint64_t>(file.integer(kRoot, kSink, 0, UINT32_MAX)),
            .documents = read_documents(file),
            .batch_ends = {}};
    check_positions(column(kPositions), info.documents);
    if (file.has(kTokens)) (void)column(kTokens);
    read_batches();
    first_token.push_back(0);
    for (size_t i = 0; i < info.documents.count(); ++i)
      first_token.push_back(checked_add(
          first_token.back(), checked_mul(clustered(info.documents.length(i), info.sink), heads())));
    layer_list = layer_numbers(file, info.model.num_layers);
    for (const int layer : layer_list) layers.emplace(layer, open_layer(layer));
  }

  uint64_t heads() const { return static_cast<uint64_t>(info.model.num_kv_heads); }
  h5::Dataset column(const char* path) const { return open_column(file, path, info.documents.tokens()); }

  void read_batches() {
    const uint64_t documents = info.documents.count();
    const h5::Dataset offset = open_dataset(file, kBatchOffset, DType::u64, {documents + 1}),
                      end = file.dataset(kBatchEnd);
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
    const auto open = [&](const char* name, DType element, std::initializer_list<uint64_t> shape) {
      return open_dataset(file, layer_path(number, name), element, shape);
    };
    const h5::Dataset counts = open("clusters", DType::u32, {info.documents.count() * heads()});
    std::vector<uint64_t> first_cluster{0};
    for (const uint64_t count : counts.integers(0, counts.rows(), UINT32_MAX))
      first_cluster.push_back(checked_add(first_cluster.back(), count));
    const uint64_t total = first_cluster.back();
    return {open("centroid", DType::f32, {total, static_cast<uint64_t>(info.model.head_dim)}),
            open("size", DType::u32, {total}), open("end", DType::u64, {total}),
            open("token", DType::u32, {first_token.back()}), std::move(first_cluster)};
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
  const auto wide = impl_->column(kTokens).integers(first, count, UINT32_MAX);
  return {wide.begin(), wide.end()};
}

std::vector<uint64_t> IndexReader::positions(uint64_t first, uint64_t count) const {
  return impl_->column(kPositions).integers(first, count, kMaxNumber);
}

ClusterIndex IndexReader::read(int layer, size_t document, size_t head) const {
  return impl_->read(layer, document, head);
}

// Writing -------------------------------------------------------------------------------------------

struct IndexWriter::Impl {
  h5::File file;
  IndexInfo info;
};

IndexWriter::IndexWriter(OutputFile& output, IndexInfo info, std::span<const uint32_t> tokens,
                         std::span<const uint64_t> positions)
    : impl_(new Impl{h5::File::create(output), std::move(info)}) {
  const Documents& documents = impl_->info.documents;
  if (positions.size() != documents.tokens() || (!tokens.empty() && tokens.size() != documents.tokens()) ||
      impl_->info.batch_ends.size() != documents.count())
    throw failed("{}: {} positions, {} token ids, {} lists of batches for {} documents of {} tokens",
                 output.target(), positions.size(), tokens.size(), impl_->info.batch_ends.size(),
                 documents.count(), documents.tokens());
  write_documents(impl_->file, documents);
  if (!tokens.empty()) write_dataset(impl_->file, kTokens, DType::u32, tokens);
  write_positions(impl_->file, kPositions, positions);
  std::vector<uint64_t> offsets{0}, ends;
  for (const auto& own : impl_->info.batch_ends) {
    ends.insert(ends.end(), own.begin(), own.end());
    offsets.push_back(ends.size());
  }
  write_dataset<uint64_t>(impl_->file, kBatchOffset, DType::u64, offsets);
  write_dataset<uint64_t>(impl_->file, kBatchEnd, DType::u64, ends);
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
  const auto write = [&]<class T>(const char* name, DType type, const std::vector<T>& values,
                                  std::vector<uint64_t> row = {}) {
    write_dataset<T>(impl_->file, layer_path(layer, name), type, values, std::move(row));
  };
  write("clusters", DType::u32, counts);
  write("centroid", DType::f32, centroids, {dims});
  write("size", DType::u32, sizes);
  write("end", DType::u64, ends);
  write("token", DType::u32, tokens);
}

void IndexWriter::finish(const Provenance& provenance) {
  impl_->file.set_integer(kRoot, kSink, static_cast<int64_t>(impl_->info.sink));
  finish_result(impl_->file, kIndexType, impl_->info.model, &impl_->info.parameters, provenance);
}

}  // namespace kvcodec
