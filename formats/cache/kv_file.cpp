#include "formats/cache/kv_file.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "formats/cache/header_io.hpp"
#include "lib/codec/document_view.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/half.hpp"

namespace kvcodec {

constexpr uint64_t kMaxToken = std::numeric_limits<uint32_t>::max();

// Floats of the three stored types ------------------------------------------------------------------

static bool is_stored_type(DType type) {
  return type == DType::bf16 || type == DType::f16 || type == DType::f32;
}

/// Index of the first value that is not finite, or the number of values.
static size_t first_not_finite(DType type, std::span<const std::byte> stored) {
  // exponent: the bits that are all set in infinities and NaNs.
  const auto find = [&]<class Bits>(Bits exponent) {
    const std::span values(reinterpret_cast<const Bits*>(stored.data()), stored.size() / sizeof(Bits));
    const auto bad = [exponent](Bits v) { return (v & exponent) == exponent; };
    Bits any = 0;  // this pass has no early exit, so that it can be vectorised
    for (const Bits v : values) any |= static_cast<Bits>(bad(v));
    return any ? static_cast<size_t>(std::ranges::find_if(values, bad) - values.begin()) : values.size();
  };
  if (type == DType::f32) return find(uint32_t{0x7f800000});
  return find(static_cast<uint16_t>(type == DType::bf16 ? 0x7f80 : 0x7c00));
}

static void from_float(DType type, std::span<const float> values, std::span<std::byte> out) {
  if (type == DType::f32) {
    std::memcpy(out.data(), values.data(), out.size());
  } else {
    narrow(type, values, {reinterpret_cast<uint16_t*>(out.data()), values.size()});
  }
}

/// Values converted at a time: 64 KiB of floats, so that the passes over them stay in the nearest cache.
constexpr size_t kBlockValues = size_t{1} << 14;

static std::string not_finite(const std::string& row, size_t column, size_t head_dim) {
  return fmt::format("{}, head {}, dimension {} is not finite", row, column / head_dim, column % head_dim);
}

static std::string token_name(uint64_t token) { return fmt::format("token {}", token); }

/// Throws Error(bad_input) unless the dataset stores floats, of the same type as the layers before, if there are any.
static DType float_type(const h5::Dataset& dataset, std::optional<DType> before) {
  const auto type = dataset.type();
  if (!type || !is_stored_type(*type))
    throw dataset.error("is {}; bf16, f16 and f32 are possible", type ? name_of(*type) : "of another type");
  if (before && *type != *before)
    throw dataset.error("is {}, but the layers before are {}; one type for all is wanted", name_of(*type),
                        name_of(*before));
  return *type;
}

/// Gives take() rows [first, first + count) as they are stored, block by block: the number of the first one, counted from `first`, and their
/// bytes, of finite values.
template <class Take>
static void visit_finite(const h5::Dataset& dataset, uint64_t first, size_t count, size_t block_rows,
                         const RowName& name, const Take& take) {
  const DType stored = *dataset.type();
  const uint64_t width = dataset.row_bytes() / size_of(stored);
  const auto head_dim = static_cast<size_t>(dataset.shape().back());
  dataset.visit(first, count, [&](uint64_t row, std::span<const std::byte> bytes) {
    const size_t rows = bytes.size() / dataset.row_bytes();
    for (size_t r = 0; r < rows; r += block_rows) {
      const size_t n = std::min(block_rows, rows - r);
      const auto block = bytes.subspan(r * dataset.row_bytes(), n * dataset.row_bytes());
      if (const size_t bad = first_not_finite(stored, block); bad < n * width)
        throw dataset.error("{}", not_finite(name(row + r + bad / width), bad % width, head_dim));
      take(static_cast<size_t>(row - first) + r, block);
    }
  });
}

static size_t rows_in_block(uint64_t width) {
  return std::max<size_t>(1, kBlockValues / std::max<uint64_t>(width, 1));
}

void read_floats(const h5::Dataset& dataset, uint64_t first, MatrixView<float> out, const RowName& name) {
  const DType stored = *dataset.type();
  const uint64_t width = dataset.row_bytes() / size_of(stored);
  if (out.cols() != width)
    throw failed("{}: rows have {} values; {} were asked for", dataset.path(), width, out.cols());
  const size_t block_rows = out.contiguous() ? rows_in_block(width) : 1;
  visit_finite(dataset, first, out.rows(), block_rows, name,
               [&](size_t row, std::span<const std::byte> block) {
                 float* const to = out.row(row).data();
                 const size_t values = block.size() / size_of(stored);
                 if (stored == DType::f32)
                   std::memcpy(to, block.data(), block.size());
                 else
                   widen(stored, {reinterpret_cast<const uint16_t*>(block.data()), values}, {to, values});
               });
}

void append_floats(h5::DatasetWriter& writer, DType type, int head_dim, MatrixView<const float> rows,
                   bool clips, const RowName& name) {
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
      size_t bad = first_not_finite(type, stored);  // also of values that were not finite before rounding
      if (bad < n * width && clips) {
        from_float(type, clipped(type, values), stored);
        bad = first_not_finite(type, stored);
      }
      if (bad == n * width) continue;
      const std::string what = not_finite(name(static_cast<size_t>(first) + r + bad / width), bad % width,
                                          static_cast<size_t>(head_dim));
      throw bad_input("{}: {}{}", writer.path(), what,
                      std::isfinite(values[bad])
                          ? fmt::format(" in {} ({}); --dtype f32 can hold it", name_of(type), values[bad])
                          : "");
    }
  });
}

// Reading -------------------------------------------------------------------------------------------

KvReader::KvReader(const std::string& name) : file_(open_file(name, "kv", type_)) {
  model_ = read_model(file_);
  documents_ = read_documents(file_, model_, state_);
  const uint64_t total = documents_.tokens();
  if (file_.has("/tokens")) tokens_ = open_column(file_, "/tokens", total);
  positions_ = open_column(file_, "/positions", total);
  check_positions(*positions_, documents_);
  const std::vector<int> groups = layer_numbers(file_, model_.num_layers);
  for (const int layer : groups)
    if (model_.layer_shape(layer).heads > 0) layers_.push_back(layer);
  if (layers_.empty()) throw file_.error("/layers", "holds no layer that has keys and values");
  std::optional<DType> type;
  for (const Side side : kSides)
    for (const int layer : layers_) {
      const LayerShape shape = model_.layer_shape(layer);
      if (shape.stored_dim(side) == 0) continue;
      h5::Dataset dataset = file_.dataset(layer_path(layer, name_of(side)));
      type = dtype_ = float_type(dataset, type);
      dataset.expect(dtype_, std::array{documents_.held(layer), uint64_t{as_size(shape.heads)},
                                        uint64_t{as_size(shape.stored_dim(side))}});
      sides_[static_cast<size_t>(side)].emplace(layer, std::move(dataset));
    }
  if (!documents_.whole())
    for (const int layer : layers_) {
      std::vector<uint64_t>& before = left_out_before_[layer] = {0};
      for (size_t i = 0; i < documents_.count(); ++i)
        before.push_back(before.back() + documents_.left_out_of(layer, i));
    }
  if (!file_.has("/query_position")) return;
  query_position_ = file_.dataset("/query_position");
  const uint64_t rows = query_position_->rows();
  if (rows > 0 && documents_.tokens() == 0)
    throw query_position_->error("has {} rows; there are no tokens", rows);
  constexpr uint64_t kBlock = uint64_t{1} << 17;
  std::optional<uint64_t> before;
  for (uint64_t first = 0; first < rows; first += kBlock)
    for (const uint64_t row : query_token_rows(first, std::min(kBlock, rows - first))) {
      if (before && row <= *before)
        throw query_position_->error("{} is followed by {}; tokens that have queries rise", *before, row);
      before = row;
    }
  for (const int layer : groups) {
    const std::string path = layer_path(layer, "query");
    if (!file_.has(path)) continue;
    h5::Dataset dataset = file_.dataset(path);
    const DType own = float_type(dataset, {});
    if (query_dim(layer) == 0) throw dataset.error("is of a layer whose queries meet no keys");
    dataset.expect(
        own, std::array{rows, uint64_t{as_size(model_.num_q_heads)}, uint64_t{as_size(query_dim(layer))}});
    queries_.emplace(layer, std::move(dataset));
    query_layers_.push_back(layer);
    query_dtype_ = query_dtype_.value_or(own) == own ? own : DType::f32;
  }
}

/// Dimensions of the keys that a layer's queries are multiplied with; 0: there are none.
int KvReader::query_dim(int layer) const {
  const LayerShape own = model_.layer_shape(layer);
  return own.source < 0 ? own.key_dim : model_.layer_shape(own.source).key_dim;
}

const h5::Dataset& KvReader::find(const ByLayer& datasets, int layer, std::string_view name) const {
  if (const auto place = datasets.find(layer); place != datasets.end()) return place->second;
  const bool query = &datasets == &queries_;
  throw file_.error(layer_path(layer, name), "is missing; the file has {}{}", query ? "queries of " : "",
                    query && datasets.empty()
                        ? "no layer"
                        : fmt::format("the layers {}", fmt::join(query ? query_layers_ : layers_, ", ")));
}

/// Number of tokens before token `first` that the layer leaves out, by which its rows are shifted. Throws Error(bad_input) unless it
/// holds all of [first, first + number).
uint64_t KvReader::moved(Side side, int layer, uint64_t first, uint64_t number) const {
  if (documents_.whole() || number == 0) return 0;
  const auto& offsets = documents_.offsets;
  const auto behind = std::upper_bound(offsets.begin(), offsets.end() - 1, first);
  const auto document = static_cast<size_t>(behind - offsets.begin()) - 1;
  const uint64_t begin = offsets[document] + documents_.left_out_of(layer, document);
  if (first < begin || first + number > offsets[document + 1])
    throw file_.error(layer_path(layer, name_of(side)),
                      "tokens {} to {} are wanted; of document {} the layer holds {} to {}", first,
                      first + number - 1, document, begin, offsets[document + 1] - 1);
  return left_out_before_.at(layer)[document + 1];
}

uint64_t KvReader::state_bytes() const { return kvcodec::state_bytes(file_); }

uint64_t KvReader::data_bytes() const {
  uint64_t bytes = documents_bytes(file_) + state_bytes() + positions_->size_bytes();
  for (const auto* dataset : {&tokens_, &query_position_})
    if (*dataset) bytes += (*dataset)->size_bytes();
  for (const ByLayer* datasets : {&sides_[0], &sides_[1], &queries_})
    for (const auto& [layer, dataset] : *datasets) bytes += dataset.size_bytes();
  return bytes;
}

std::vector<uint32_t> KvReader::tokens(uint64_t first, uint64_t count) const {
  if (!tokens_) throw file_.error("/tokens", "is missing");
  const auto values = tokens_->integers(first, count, kMaxToken);
  return {values.begin(), values.end()};
}

std::vector<uint64_t> KvReader::positions(uint64_t first, uint64_t count) const {
  return positions_->integers(first, count, kMaxNumber);
}

void KvReader::read(Side side, int layer, uint64_t first, MatrixView<float> out) const {
  if (const LayerShape shape = model_.layer_shape(layer); side == Side::value && shape.values_in_keys) {
    if (out.cols() == 0) return;
    Matrix<float> keys(out.rows(), shape.width(Side::key));
    read(Side::key, layer, first, keys);
    return copy_values(keys, as_size(shape.heads), out);
  }
  const h5::Dataset& dataset = find(sides_[static_cast<size_t>(side)], layer, name_of(side));
  const uint64_t left_out = moved(side, layer, first, out.rows());
  read_floats(dataset, first - left_out, out, [&](uint64_t row) { return token_name(row + left_out); });
}

void KvReader::read_stored(Side side, int layer, uint64_t first, size_t count, std::byte* out) const {
  const h5::Dataset& dataset = find(sides_[static_cast<size_t>(side)], layer, name_of(side));
  const uint64_t left_out = moved(side, layer, first, count);
  visit_finite(
      dataset, first - left_out, count, rows_in_block(dataset.row_bytes() / size_of(dtype_)),
      [&](uint64_t row) { return token_name(row + left_out); },
      [&](size_t row, std::span<const std::byte> block) {
        std::memcpy(out + row * dataset.row_bytes(), block.data(), block.size());
      });
}

void KvReader::read(const GroupShape& shape, uint64_t first, MatrixView<float> out) const {
  for (const Side side : sides_in(shape.side))
    for (size_t i = 0; i < shape.layers.size(); ++i)
      read(side, shape.layers[i], first, shape.columns(out, side, i));
}

uint64_t KvReader::query_tokens() const { return queries_.empty() ? 0 : query_position_->rows(); }

std::vector<uint64_t> KvReader::query_token_rows(uint64_t first, uint64_t count) const {
  if (!query_position_) return {};
  return query_position_->integers(first, count, std::max<uint64_t>(documents_.tokens(), 1) - 1);
}

void KvReader::read_queries(int layer, uint64_t first, MatrixView<float> out) const {
  read_floats(find(queries_, layer, "query"), first, out,
              [&](uint64_t row) { return token_name(query_token_rows(row, 1).front()); });
}

std::optional<KvReader::Queries> KvReader::queries(int layer) const {
  if (!queries_.contains(layer)) return std::nullopt;
  Queries queries;
  const uint64_t count = query_tokens();
  queries.token_rows = query_token_rows(0, count);
  const size_t width = as_size(model_.num_q_heads) * as_size(query_dim(layer));
  queries.values.resize(checked_mul(count, width));
  read_queries(layer, 0, MatrixView<float>(queries.values.data(), count, width));
  return queries;
}

// Writing -------------------------------------------------------------------------------------------

struct KvWriter::Impl {
  const KvReader* before = nullptr;  // the file as it was, to which documents are added
  h5::File file;
  ModelInfo model;
  DType dtype;
  std::vector<int> layers;
  std::optional<DType> query_dtype;  // nothing: no queries are written
  bool clips = false;
  Documents documents, expected;
  std::vector<uint64_t> left_out;  // per layer, for the tokens of all documents
  std::optional<bool> with_tokens;
  std::optional<h5::DatasetWriter> tokens;
  std::vector<uint64_t> positions;
  std::map<int, h5::DatasetWriter> sides[2];
  std::map<int, h5::DatasetWriter> query;
  std::map<int, std::vector<uint64_t>> query_rows;
  StateWriter state;

  Impl(OutputFile& output, const ModelInfo& info, DType type, std::vector<int> wanted,
       std::optional<DType> queries)
      : file(h5::File::create(output)),
        model(info),
        dtype(type),
        layers(std::move(wanted)),
        query_dtype(queries),
        left_out(static_cast<size_t>(std::max(info.num_layers, 0))),
        state(file) {
    for (const DType one : {dtype, query_dtype.value_or(dtype)})
      if (!is_stored_type(one)) throw usage_error("a kv file holds bf16, f16 or f32, not {}", name_of(one));
    if (!std::is_sorted(layers.begin(), layers.end()) || layers.empty() || layers.front() < 0 ||
        layers.back() >= model.num_layers)
      throw usage_error("layers {} are not among the model's {}", fmt::join(layers, ", "), model.num_layers);
    for (const int layer : layers)
      if (model.layer_shape(layer).heads == 0) throw usage_error("layer {} has no keys and values", layer);
  }

  Impl(OutputFile& output, const KvReader& there)
      : before(&there),
        file(h5::File::create(output)),
        model(there.model()),
        dtype(there.dtype()),
        layers(there.layers()),
        query_dtype(there.query_dtype()),
        documents(there.documents()),
        expected(documents),
        positions(there.positions(0, documents.tokens())),
        state(file, there.state_, documents) {
    for (int layer = 0; layer < model.num_layers; ++layer)
      left_out.push_back(documents.tokens() - documents.held(layer));
    if (query_dtype) take_over_queries();
    if (documents.tokens() > 0) with_tokens = before->has_tokens();
  }

  void take_over_queries() {
    if (before->query_layers_ != layers)
      throw before->file_.error("/layers",
                                "only {} have queries; documents can be added where all or none have",
                                fmt::join(before->query_layers_, ", "));
    for (const int layer : layers)
      if (before->queries_.at(layer).type() != query_dtype)
        throw before->queries_.at(layer).error(
            "is {}; documents can be added where all queries are of one type",
            name_of(*before->queries_.at(layer).type()));
    const auto rows = before->query_token_rows(0, before->query_tokens());
    for (const int layer : layers) query_rows[layer] = rows;
  }

  /// Opens a dataset of the previous file, or a new one.
  h5::DatasetWriter open(const std::string& path, DType type, std::vector<uint64_t> row_shape, uint64_t rows,
                         const h5::Dataset* there) {
    return there ? h5::DatasetWriter::behind(file, *there, rows)
                 : h5::DatasetWriter(file, path, type, std::move(row_shape), rows);
  }

  /// Rows of a layer that will come: those of announced documents, or of those that were added before the first row if they fill a
  /// chunk. Fewer would make chunks too small for documents that follow.
  uint64_t rows_to_come(int layer, uint64_t row_bytes) const {
    const uint64_t announced = expected.held(layer), added = documents.held(layer);
    return added * row_bytes < h5::kChunkBytes ? announced : std::max(announced, added);
  }

  h5::DatasetWriter& tokens_writer() {
    if (!tokens)
      tokens.emplace(open("/tokens", DType::u32, {}, expected.tokens(),
                          before && before->tokens_ ? &*before->tokens_ : nullptr));
    return *tokens;
  }

  template <class Open>
  h5::DatasetWriter& writer(std::map<int, h5::DatasetWriter>& datasets, int layer, std::string_view name,
                            const Open& open_new) {
    if (const auto place = datasets.find(layer); place != datasets.end()) return place->second;
    const std::string path = layer_path(layer, name);
    if (!std::binary_search(layers.begin(), layers.end(), layer))
      throw failed("{}: {}: not among the layers to be written", file.name(), path);
    return datasets.emplace(layer, open_new(path)).first->second;
  }

  h5::DatasetWriter& writer(Side side, int layer) {
    const auto number = static_cast<size_t>(side);
    return writer(sides[number], layer, name_of(side), [&](const std::string& path) {
      const LayerShape shape = model.layer_shape(layer);
      return open(path, dtype, {as_size(shape.heads), as_size(shape.stored_dim(side))},
                  rows_to_come(layer, shape.width(side) * size_of(dtype)),
                  before ? &before->sides_[number].at(layer) : nullptr);
    });
  }
  h5::DatasetWriter& query_writer(int layer) {
    return writer(query, layer, "query", [&](const std::string& path) {
      return open(path, *query_dtype, {as_size(model.num_q_heads), as_size(model.layer_shape(layer).key_dim)},
                  query_rows[layer].size(), before ? &before->queries_.at(layer) : nullptr);
    });
  }

  void check_left_out(std::string_view name, uint64_t length, std::span<const uint64_t> of_layers) const {
    if (!of_layers.empty() && of_layers.size() != static_cast<size_t>(model.num_layers))
      throw failed("{}: document {}: tokens of {} layers are left out; the model has {}", file.name(), name,
                   of_layers.size(), model.num_layers);
    for (size_t layer = 0; layer < of_layers.size(); ++layer) {
      const uint64_t limit = model.layer_shape(static_cast<int>(layer)).heads == 0 ? 0 : length;
      if (of_layers[layer] > limit)
        throw failed("{}: document {}: layer {} leaves out {} of {} tokens", file.name(), name, layer,
                     of_layers[layer], limit);
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
  DocumentFacts kept = facts;
  s.state.put(s.documents.count(), std::exchange(kept.state, {}));
  s.documents.add(name, positions.size(), left_out, kept);
  for (size_t layer = 0; layer < left_out.size(); ++layer) s.left_out[layer] += left_out[layer];
}

void KvWriter::set_state(size_t document, std::span<const StateTensor> state) {
  impl_->state.put(document, state);
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
  append_floats(writer, impl_->dtype, dim, rows, impl_->clips,
                [&](uint64_t row) { return token_name(impl_->token_of(layer, before + row)); });
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
  append_floats(impl_->query_writer(layer), *impl_->query_dtype, impl_->model.layer_shape(layer).key_dim,
                rows, impl_->clips, [&](uint64_t row) { return token_name(token_rows[row]); });
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
  if (s.query_dtype) {
    const std::vector<uint64_t>& rows = s.query_rows[s.layers.front()];
    for (const int layer : s.layers) {
      if (s.query_rows[layer] != rows)
        throw failed("{}: queries of layers {} and {} are not of the same tokens", s.file.name(),
                     s.layers.front(), layer);
      s.query_writer(layer).finish();
    }
    write_dataset<uint64_t>(s.file, "/query_position", DType::u64, rows);
  }
  if (s.tokens || (s.before && s.before->has_tokens()))
    s.tokens_writer().finish();
  else if (s.with_tokens.value_or(true))
    h5::DatasetWriter(s.file, "/tokens", DType::u32, {}).finish();
  write_positions(s.file, "/positions", s.positions);
  write_documents(s.file, s.documents, s.model);
  s.state.finish(s.documents.count());
  write_model(s.file, s.model);
  write_file_type(s.file, "kv", provenance);
  s.file.close();
}

}  // namespace kvcodec
