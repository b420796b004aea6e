#include "formats/cache/kv_file.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>

#include "formats/cache/header_io.hpp"
#include "formats/hdf5/hdf5.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec {
namespace {

constexpr uint64_t kMaxToken = std::numeric_limits<uint32_t>::max();
constexpr uint64_t kMaxPosition = std::numeric_limits<int64_t>::max();

// Floats of the three stored types ------------------------------------------------------------------

/// The bits of a float type's exponent: all ones mean infinite or not a number.
template <class Bits>
constexpr Bits exponent_mask(DType type) {
  if constexpr (sizeof(Bits) == 4) return 0x7f800000u;
  return type == DType::bf16 ? 0x7f80u : 0x7c00u;
}

/// Index of the first value that is not finite, or values.size(). The first pass has no exit, so that it can
/// be vectorised.
template <class Bits>
size_t first_not_finite(std::span<const Bits> values, Bits mask) {
  Bits any = 0;
  for (const Bits v : values) any |= static_cast<Bits>((v & mask) == mask);
  if (!any) return values.size();
  return static_cast<size_t>(
      std::find_if(values.begin(), values.end(), [&](Bits v) { return (v & mask) == mask; }) -
      values.begin());
}

size_t first_not_finite(DType type, std::span<const std::byte> stored) {
  const auto* data = stored.data();
  if (type == DType::f32)
    return first_not_finite(std::span(reinterpret_cast<const uint32_t*>(data), stored.size() / 4),
                            exponent_mask<uint32_t>(type));
  return first_not_finite(std::span(reinterpret_cast<const uint16_t*>(data), stored.size() / 2),
                          exponent_mask<uint16_t>(type));
}

void to_float(DType type, std::span<const std::byte> stored, std::span<float> out) {
  if (type == DType::f32) {
    std::memcpy(out.data(), stored.data(), stored.size());
  } else {
    widen(type, {reinterpret_cast<const uint16_t*>(stored.data()), out.size()}, out);
  }
}

void from_float(DType type, std::span<const float> values, std::span<std::byte> out) {
  if (type == DType::f32) {
    std::memcpy(out.data(), values.data(), out.size());
  } else {
    narrow(type, values, {reinterpret_cast<uint16_t*>(out.data()), values.size()});
  }
}

float largest_of(DType type) {
  if (type == DType::f16) return f16_to_float(0x7bff);
  return type == DType::bf16 ? bf16_to_float(0x7f7f) : std::numeric_limits<float>::max();
}

/// Finite values no larger than the type's largest one; others as they are.
std::vector<float> clipped(DType type, std::span<const float> values) {
  const float largest = largest_of(type);
  std::vector<float> result(values.begin(), values.end());
  for (float& value : result)
    if (std::isfinite(value)) value = std::clamp(value, -largest, largest);
  return result;
}

/// Values converted at a time: 64 KiB of floats, so that the passes over them stay in the nearest cache.
constexpr size_t kBlockValues = size_t{1} << 14;

std::string not_finite(uint64_t row, size_t column, size_t head_dim) {
  return fmt::format("token {}, head {}, dimension {} is not finite", row, column / head_dim,
                     column % head_dim);
}

void check_dtype(const h5::Dataset& dataset, DType& dtype, bool first) {
  const auto type = dataset.type();
  if (type != DType::bf16 && type != DType::f16 && type != DType::f32)
    throw dataset.error("is {}; bf16, f16 and f32 are possible", type ? name_of(*type) : "of another type");
  if (!first && *type != dtype)
    throw dataset.error("is {}, but the layers before are {}; one type for all is wanted", name_of(*type),
                        name_of(dtype));
  dtype = *type;
}

}  // namespace

// Reading -------------------------------------------------------------------------------------------

struct KvReader::Impl {
  FileType type;
  h5::File file;
  ModelInfo model;
  Documents documents;
  DType dtype = DType::bf16;
  std::vector<int> layers;
  std::map<int, h5::Dataset> sides[2];
  std::map<int, h5::Dataset> query;
  std::vector<int> query_layers;
  std::optional<DType> query_dtype;
  std::optional<h5::Dataset> tokens, query_position;
  std::optional<h5::Dataset> positions;
  /// Of layers, how many tokens they leave out before each document; nothing where all hold all tokens.
  std::map<int, std::vector<uint64_t>> left_out_before;

  explicit Impl(const std::string& name) : file(open_file(name, "kv", type)) {
    model = read_model(file);
    documents = read_documents(file, model);
    const uint64_t total = documents.tokens();
    if (file.has("/tokens")) tokens = open_column(file, "/tokens", total);
    positions = open_column(file, "/positions", total);
    check_positions(*positions, documents);
    const std::vector<int> groups = layer_numbers(file, model.num_layers);
    for (const int layer : groups)
      if (model.layer_shape(layer).heads > 0) layers.push_back(layer);
    if (layers.empty()) throw file.error("/layers", "holds no layer that has keys and values");
    for (const Side side : kSides)
      for (const int layer : layers) {
        const LayerShape of_layer = model.layer_shape(layer);
        if (of_layer.stored_dim(side) == 0) continue;
        h5::Dataset dataset = file.dataset(layer_path(layer, name_of(side)));
        check_dtype(dataset, dtype, side == Side::key && layer == layers.front());
        dataset.expect(dtype, std::array{documents.held(layer), count(of_layer.heads),
                                         count(of_layer.stored_dim(side))});
        sides[static_cast<size_t>(side)].emplace(layer, std::move(dataset));
      }
    if (!documents.whole())
      for (const int layer : layers) {
        std::vector<uint64_t>& before = left_out_before[layer] = {0};
        for (size_t i = 0; i < documents.count(); ++i)
          before.push_back(before.back() + documents.left_out_of(layer, i));
      }
    open_queries(groups);
  }

  /// How many tokens before token `first` the layer leaves out: by that its rows are moved. Throws Error(bad_input) unless it holds
  /// all of [first, first + number).
  uint64_t moved(Side side, int layer, uint64_t first, uint64_t number) const {
    if (documents.whole() || number == 0) return 0;
    const auto& offsets = documents.offsets;
    const auto behind = std::upper_bound(offsets.begin(), offsets.end() - 1, first);
    const auto document = static_cast<size_t>(behind - offsets.begin()) - 1;
    const uint64_t begin = offsets[document] + documents.left_out_of(layer, document);
    if (first < begin || first + number > offsets[document + 1])
      throw file.error(layer_path(layer, name_of(side)),
                       "tokens {} to {} are wanted; of document {} the layer holds {} to {}", first,
                       first + number - 1, document, begin, offsets[document + 1] - 1);
    return left_out_before.at(layer)[document + 1];
  }

  static uint64_t count(int number) { return static_cast<uint64_t>(number); }

  /// Dimensions of the keys that a layer's queries meet; 0: there are none.
  int query_dim(int layer) const {
    const LayerShape own = model.layer_shape(layer);
    return own.source < 0 ? own.key_dim : model.layer_shape(own.source).key_dim;
  }

  /// groups: all layers that have a group in the file.
  void open_queries(const std::vector<int>& groups) {
    if (!file.has("/query_position")) return;
    query_position = file.dataset("/query_position");
    check_query_rows();
    for (const int layer : groups) {
      const std::string path = layer_path(layer, "query");
      if (!file.has(path)) continue;
      h5::Dataset dataset = file.dataset(path);
      DType query_type = dtype;
      check_dtype(dataset, query_type, true);
      if (query_dim(layer) == 0) throw dataset.error("is of a layer whose queries meet no keys");
      dataset.expect(query_type,
                     std::array{query_position->rows(), count(model.num_q_heads), count(query_dim(layer))});
      query.emplace(layer, std::move(dataset));
      query_layers.push_back(layer);
      query_dtype = query_dtype.value_or(query_type) == query_type ? query_type : DType::f32;
    }
  }

  /// Whether they are of tokens that are there, and rise.
  void check_query_rows() const {
    constexpr uint64_t kBlock = uint64_t{1} << 17;
    const uint64_t rows = query_position->rows();
    if (rows > 0 && documents.tokens() == 0)
      throw query_position->error("has {} rows; there are no tokens", rows);
    std::optional<uint64_t> before;
    for (uint64_t first = 0; first < rows; first += kBlock)
      for (const uint64_t row : query_token_rows(first, std::min(kBlock, rows - first))) {
        if (before && row <= *before)
          throw query_position->error("{} is followed by {}; tokens that have queries rise", *before, row);
        before = row;
      }
  }

  const h5::Dataset& find_query(int layer) const {
    const auto place = query.find(layer);
    if (place == query.end())
      throw file.error(
          layer_path(layer, "query"), "is missing; the file has queries of {}",
          query.empty() ? "no layer" : fmt::format("the layers {}", fmt::join(query_layers, ", ")));
    return place->second;
  }

  std::vector<uint64_t> query_token_rows(uint64_t first, uint64_t number) const {
    if (!query_position) return {};
    const uint64_t total = documents.tokens();
    return query_position->integers(first, number, total == 0 ? 0 : total - 1);
  }

  const h5::Dataset& find(Side side, int layer) const {
    const auto& datasets = sides[static_cast<size_t>(side)];
    const auto place = datasets.find(layer);
    if (place == datasets.end())
      throw file.error(layer_path(layer, name_of(side)), "is missing; the file has the layers {}",
                       fmt::join(layers, ", "));
    return place->second;
  }

  /// Rows of any of the three float types; out's columns are all of a row's values. row_of names a row in
  /// messages.
  template <class RowName>
  void read_floats(const h5::Dataset& dataset, uint64_t first, MatrixView<float> out,
                   const RowName& row_of) const {
    const DType stored = *dataset.type();
    const uint64_t width = dataset.row_bytes() / size_of(stored);
    if (out.cols() != width)
      throw failed("{}: rows have {} values; {} were asked for", dataset.path(), width, out.cols());
    const auto head_dim = static_cast<size_t>(dataset.shape().back());
    const size_t block_rows =
        out.contiguous() ? std::max<size_t>(1, kBlockValues / std::max<uint64_t>(width, 1)) : 1;
    dataset.visit(first, out.rows(), [&](uint64_t row, std::span<const std::byte> bytes) {
      const size_t rows = bytes.size() / dataset.row_bytes();
      for (size_t r = 0; r < rows; r += block_rows) {
        const size_t n = std::min(block_rows, rows - r);
        const auto block = bytes.subspan(r * dataset.row_bytes(), n * dataset.row_bytes());
        if (const size_t bad = first_not_finite(stored, block); bad < n * width)
          throw dataset.error("{}", not_finite(row_of(row + r + bad / width), bad % width, head_dim));
        to_float(stored, block, {out.row(static_cast<size_t>(row - first) + r).data(), n * width});
      }
    });
  }
};

KvReader::KvReader(const std::string& file) : impl_(std::make_unique<Impl>(file)) {}
KvReader::~KvReader() = default;
KvReader::KvReader(KvReader&&) noexcept = default;
KvReader& KvReader::operator=(KvReader&&) noexcept = default;

const std::string& KvReader::name() const { return impl_->file.name(); }
const FileType& KvReader::type() const { return impl_->type; }
const ModelInfo& KvReader::model() const { return impl_->model; }
const Documents& KvReader::documents() const { return impl_->documents; }
DType KvReader::dtype() const { return impl_->dtype; }
const std::vector<int>& KvReader::layers() const { return impl_->layers; }
bool KvReader::has_tokens() const { return impl_->tokens.has_value(); }
uint64_t KvReader::file_bytes() const { return impl_->file.size(); }

std::vector<uint32_t> KvReader::tokens(uint64_t first, uint64_t count) const {
  if (!impl_->tokens) throw impl_->file.error("/tokens", "is missing");
  const auto values = impl_->tokens->integers(first, count, kMaxToken);
  return {values.begin(), values.end()};
}

std::vector<uint64_t> KvReader::positions(uint64_t first, uint64_t count) const {
  return impl_->positions->integers(first, count, kMaxPosition);
}

void KvReader::read(Side side, int layer, uint64_t first, MatrixView<float> out) const {
  if (out.cols() == 0 && side == Side::value && model().layer_shape(layer).values_in_keys) return;
  const h5::Dataset& dataset = impl_->find(side, layer);
  const uint64_t moved = impl_->moved(side, layer, first, out.rows());
  impl_->read_floats(dataset, first - moved, out, [moved](uint64_t row) { return row + moved; });
}

void KvReader::read(const GroupShape& shape, uint64_t first, MatrixView<float> out) const {
  const size_t width = static_cast<size_t>(shape.heads) * static_cast<size_t>(shape.head_dim);
  for (const Side side : sides_in(shape.side))
    for (int i = 0; i < shape.layers; ++i)
      read(side, shape.first_layer + i, first,
           out.columns(shape.column_of(side) + static_cast<size_t>(i) * width, width));
}

uint64_t KvReader::query_tokens() const {
  return impl_->query_position && !impl_->query.empty() ? impl_->query_position->rows() : 0;
}

const std::vector<int>& KvReader::query_layers() const { return impl_->query_layers; }
std::optional<DType> KvReader::query_dtype() const { return impl_->query_dtype; }

std::vector<uint64_t> KvReader::query_token_rows(uint64_t first, uint64_t count) const {
  return impl_->query_token_rows(first, count);
}

void KvReader::read_queries(int layer, uint64_t first, MatrixView<float> out) const {
  const h5::Dataset& dataset = impl_->find_query(layer);
  impl_->read_floats(dataset, first, out,
                     [&](uint64_t row) { return impl_->query_token_rows(row, 1).front(); });
}

std::optional<KvReader::Queries> KvReader::queries(int layer) const {
  if (!impl_->query.contains(layer)) return std::nullopt;
  Queries queries;
  const uint64_t count = query_tokens();
  queries.token_rows = query_token_rows(0, count);
  const size_t width =
      static_cast<size_t>(impl_->model.num_q_heads) * static_cast<size_t>(impl_->query_dim(layer));
  queries.values.resize(checked_mul(count, width));
  read_queries(layer, 0, MatrixView<float>(queries.values.data(), count, width));
  return queries;
}

// Writing -------------------------------------------------------------------------------------------

struct KvWriter::Impl {
  const KvReader::Impl* before = nullptr;  // the file as it was, to which documents are added
  h5::File file;
  ModelInfo model;
  DType dtype;
  std::vector<int> layers;
  std::optional<DType> query_dtype;  // nothing: no queries are written
  bool clips = false;
  Documents documents, expected;
  std::vector<uint64_t> left_out;  // of each layer, tokens of all documents
  std::optional<bool> with_tokens;
  std::optional<h5::DatasetWriter> tokens;
  std::vector<uint64_t> positions;
  std::map<int, h5::DatasetWriter> sides[2];
  std::map<int, h5::DatasetWriter> query;
  std::map<int, std::vector<uint64_t>> query_rows;

  Impl(OutputFile& output, const ModelInfo& info, DType type, std::vector<int> wanted,
       std::optional<DType> queries)
      : file(h5::File::create(output)),
        model(info),
        dtype(type),
        layers(std::move(wanted)),
        query_dtype(queries),
        left_out(static_cast<size_t>(std::max(info.num_layers, 0))) {
    for (const DType one : {dtype, query_dtype.value_or(dtype)})
      if (one != DType::bf16 && one != DType::f16 && one != DType::f32)
        throw usage_error("a kv file holds bf16, f16 or f32, not {}", name_of(one));
    if (!std::is_sorted(layers.begin(), layers.end()) || layers.empty() || layers.front() < 0 ||
        layers.back() >= model.num_layers)
      throw usage_error("layers {} are not among the model's {}", fmt::join(layers, ", "), model.num_layers);
    for (const int layer : layers)
      if (model.layer_shape(layer).heads == 0) throw usage_error("layer {} has no keys and values", layer);
  }

  Impl(OutputFile& output, const KvReader& there)
      : before(there.impl_.get()),
        file(h5::File::create(output)),
        model(there.model()),
        dtype(there.dtype()),
        layers(there.layers()),
        query_dtype(there.query_dtype()),
        documents(there.documents()),
        expected(documents),
        positions(there.positions(0, documents.tokens())) {
    for (int layer = 0; layer < model.num_layers; ++layer)
      left_out.push_back(documents.tokens() - documents.held(layer));
    if (query_dtype) take_over_queries();
    if (documents.tokens() > 0) with_tokens = before->tokens.has_value();
  }

  void take_over_queries() {
    if (before->query_layers != layers)
      throw before->file.error("/layers",
                               "only {} have queries; documents can be added where all or none have",
                               fmt::join(before->query_layers, ", "));
    for (const int layer : layers)
      if (before->query.at(layer).type() != query_dtype)
        throw before->query.at(layer).error("is {}; documents can be added where all queries are of one type",
                                            name_of(*before->query.at(layer).type()));
    const auto rows = before->query_token_rows(0, before->query_position->rows());
    for (const int layer : layers) query_rows[layer] = rows;
  }

  /// Of a dataset that the file had before, or of a new one.
  h5::DatasetWriter open(const std::string& path, DType type, std::vector<uint64_t> row_shape, uint64_t rows,
                         const h5::Dataset* there) {
    return there ? h5::DatasetWriter::behind(file, *there, rows)
                 : h5::DatasetWriter(file, path, type, std::move(row_shape), rows);
  }

  h5::DatasetWriter& tokens_writer() {
    if (!tokens)
      tokens.emplace(open("/tokens", DType::u32, {}, expected.tokens(),
                          before && before->tokens ? &*before->tokens : nullptr));
    return *tokens;
  }

  /// there: those of the file that documents are added to.
  h5::DatasetWriter& writer(std::map<int, h5::DatasetWriter>& datasets, int layer, std::string_view name,
                            DType type, int heads, int dim, const std::map<int, h5::Dataset>* there) {
    const auto place = datasets.find(layer);
    if (place != datasets.end()) return place->second;
    if (!std::binary_search(layers.begin(), layers.end(), layer))
      throw failed("{}: {}: not among the layers to be written", file.name(), layer_path(layer, name));
    const std::vector<uint64_t> shape{static_cast<uint64_t>(heads), static_cast<uint64_t>(dim)};
    const uint64_t rows = name == "query" ? query_rows[layer].size() : expected.held(layer);
    return datasets
        .emplace(layer, open(layer_path(layer, name), type, shape, rows, there ? &there->at(layer) : nullptr))
        .first->second;
  }

  h5::DatasetWriter& writer(Side side, int layer) {
    const LayerShape shape = model.layer_shape(layer);
    const auto number = static_cast<size_t>(side);
    return writer(sides[number], layer, name_of(side), dtype, shape.heads, shape.stored_dim(side),
                  before ? &before->sides[number] : nullptr);
  }
  h5::DatasetWriter& query_writer(int layer) {
    return writer(query, layer, "query", *query_dtype, model.num_q_heads, model.layer_shape(layer).key_dim,
                  before ? &before->query : nullptr);
  }

  void check_left_out(std::string_view name, uint64_t length, std::span<const uint64_t> of_layers) const {
    if (!of_layers.empty() && of_layers.size() != static_cast<size_t>(model.num_layers))
      throw failed("{}: document {}: tokens of {} layers are left out; the model has {}", file.name(), name,
                   of_layers.size(), model.num_layers);
    for (size_t layer = 0; layer < of_layers.size(); ++layer) {
      const uint64_t most = model.layer_shape(static_cast<int>(layer)).heads == 0 ? 0 : length;
      if (of_layers[layer] > most)
        throw failed("{}: document {}: layer {} leaves out {} of {} tokens", file.name(), name, layer,
                     of_layers[layer], most);
    }
  }

  /// The token, of all documents, that a row of the layer belongs to.
  uint64_t token_of(int layer, uint64_t row) const {
    uint64_t token = row;
    for (size_t i = 0; i < documents.count(); ++i) {
      if (token < documents.offsets[i]) break;
      token += documents.left_out_of(layer, i);
    }
    return token;
  }

  /// row_of(i): what the i-th of these rows is called in messages.
  template <class RowName>
  void append(h5::DatasetWriter& writer, DType type, int head_dim, MatrixView<const float> rows,
              const RowName& row_of) const {
    const size_t width = writer.row_bytes() / size_of(type);
    if (rows.cols() != width)
      throw failed("{}: rows have {} values; {} were given", writer.path(), width, rows.cols());
    const size_t block_rows = rows.contiguous() ? std::max<size_t>(1, kBlockValues / width) : 1;
    writer.append(rows.rows(), [&](uint64_t first, std::span<std::byte> out) {
      const size_t count = out.size() / writer.row_bytes();
      for (size_t r = 0; r < count; r += block_rows) {
        const size_t n = std::min(block_rows, count - r);
        const std::span<const float> values(rows.row(static_cast<size_t>(first) + r).data(), n * width);
        const auto stored = out.subspan(r * writer.row_bytes(), n * writer.row_bytes());
        from_float(type, values, stored);
        size_t bad = first_not_finite(type, stored);  // rounding keeps what is not finite, so this sees both
        if (bad < n * width && clips) {
          from_float(type, clipped(type, values), stored);
          bad = first_not_finite(type, stored);
        }
        if (bad == n * width) continue;
        const std::string what = not_finite(row_of(static_cast<size_t>(first) + r + bad / width), bad % width,
                                            static_cast<size_t>(head_dim));
        throw bad_input("{}: {}{}", writer.path(), what,
                        std::isfinite(values[bad])
                            ? fmt::format(" in {} ({}); --dtype f32 can hold it", name_of(type), values[bad])
                            : "");
      }
    });
  }

  void write_queries() {
    const std::vector<uint64_t>& rows = query_rows[layers.front()];
    for (const int layer : layers) {
      if (query_rows[layer] != rows)
        throw failed("{}: queries of layers {} and {} are not of the same tokens", file.name(),
                     layers.front(), layer);
      query_writer(layer).finish();
    }
    write_dataset<uint64_t>(file, "/query_position", DType::u64, rows);
  }
};

KvWriter::KvWriter(OutputFile& output, const ModelInfo& model, DType dtype, std::vector<int> layers,
                   std::optional<DType> queries)
    : impl_(std::make_unique<Impl>(output, model, dtype, std::move(layers), queries)) {}
KvWriter::KvWriter(OutputFile& output, const KvReader& before)
    : impl_(std::make_unique<Impl>(output, before)) {}
KvWriter::~KvWriter() = default;

void KvWriter::clip() { impl_->clips = true; }

void KvWriter::expect(const Documents& documents) {
  impl_->expected = impl_->documents;
  for (size_t i = 0; i < documents.count(); ++i) impl_->expected.add(documents, i);
}

void KvWriter::add_document(std::string_view name, std::span<const uint32_t> tokens,
                            std::span<const uint64_t> positions, std::span<const uint64_t> left_out,
                            const DocumentFacts& facts) {
  Impl& s = *impl_;
  s.check_left_out(name, positions.size(), left_out);
  const bool known = !tokens.empty() || positions.empty();
  if (!positions.empty()) {
    if (s.with_tokens && *s.with_tokens != known)
      throw failed("{}: token ids must be known for all documents or for none", s.file.name());
    s.with_tokens = known;
  }
  if (known && tokens.size() != positions.size())
    throw failed("{}: document {} has {} tokens and {} positions", s.file.name(), name, tokens.size(),
                 positions.size());
  Documents own;
  own.add(name, positions.size());
  check_rising(own, 0, positions, {}, s.file.name());
  if (!tokens.empty()) s.tokens_writer().append_values(tokens);
  s.positions.insert(s.positions.end(), positions.begin(), positions.end());
  s.documents.add(name, positions.size(), left_out, facts);
  for (size_t layer = 0; layer < left_out.size(); ++layer) s.left_out[layer] += left_out[layer];
}

void KvWriter::append(Side side, int layer, MatrixView<const float> rows) {
  const int dim = impl_->model.layer_shape(layer).stored_dim(side);
  if (dim == 0 && rows.cols() == 0) return;
  h5::DatasetWriter& writer = impl_->writer(side, layer);
  const uint64_t before = writer.rows(),
                 there = impl_->documents.tokens() - impl_->left_out[static_cast<size_t>(layer)];
  if (before + rows.rows() > there)
    throw failed("{}: {}: more rows than the documents have tokens there ({})", impl_->file.name(),
                 writer.path(), there);
  impl_->append(writer, impl_->dtype, dim, rows,
                [&](uint64_t row) { return impl_->token_of(layer, before + row); });
}

void KvWriter::append_queries(int layer, std::span<const uint64_t> token_rows, MatrixView<const float> rows) {
  if (!impl_->query_dtype) throw failed("{}: was begun without queries", impl_->file.name());
  if (token_rows.size() != rows.rows())
    throw failed("{}: {} query rows for {} tokens", impl_->file.name(), rows.rows(), token_rows.size());
  auto& known = impl_->query_rows[layer];
  std::optional<uint64_t> before;
  if (!known.empty()) before = known.back();
  for (const uint64_t row : token_rows) {
    if (row >= impl_->documents.tokens())
      throw failed("{}: query of token {}; there are {}", impl_->file.name(), row, impl_->documents.tokens());
    if (before && row <= *before)
      throw failed("{}: query of token {} behind that of token {}; they come in the order of the tokens",
                   impl_->file.name(), row, *before);
    before = row;
  }
  impl_->append(impl_->query_writer(layer), *impl_->query_dtype, impl_->model.layer_shape(layer).key_dim,
                rows, [&](uint64_t row) { return token_rows[row]; });
  known.insert(known.end(), token_rows.begin(), token_rows.end());
}

void KvWriter::finish(const Provenance& provenance) {
  Impl& s = *impl_;
  for (const int layer : s.layers)
    for (const Side side : kSides) {
      if (s.model.layer_shape(layer).stored_dim(side) == 0) continue;
      h5::DatasetWriter& writer = s.writer(side, layer);
      if (const uint64_t held = s.documents.held(layer); writer.rows() != held)
        throw failed("{}: {}: {} rows written for {} tokens", s.file.name(), writer.path(), writer.rows(),
                     held);
      writer.finish();
    }
  if (s.query_dtype) s.write_queries();
  if (s.tokens || (s.before && s.before->tokens))
    s.tokens_writer().finish();
  else if (s.with_tokens.value_or(true))
    h5::DatasetWriter(s.file, "/tokens", DType::u32, {}).finish();
  write_positions(s.file, "/positions", s.positions);
  write_documents(s.file, s.documents, s.model);
  write_model(s.file, s.model);
  write_file_type(s.file, "kv", s.model, provenance);
  s.file.close();
}

}  // namespace kvcodec
