#include "formats/results/results.hpp"

#include <algorithm>
#include <cmath>

#include "formats/cache/header_io.hpp"
#include "lib/core/checked.hpp"

namespace kvcodec {

constexpr char kPositions[] = "/positions", kQueryRows[] = "/query_position";

// index ----------------------------------------------------------------------------------------------

constexpr char kSink[] = "sink", kTokens[] = "/tokens", kBatchOffset[] = "/batches/offset",
               kBatchEnd[] = "/batches/end";

/// Number of tokens of a document that are in clusters.
static uint64_t clustered(uint64_t length, uint64_t sink) { return length - std::min(length, sink); }

IndexReader::IndexReader(const std::string& file) : file_(open_file(file, "index", type_)) {
  info_ = {.model = read_model(file_),
           .parameters = read_parameters(file_),
           .sink = static_cast<uint64_t>(file_.integer(kRoot, kSink, 0, UINT32_MAX)),
           .documents = read_documents(file_),
           .batch_ends = {}};
  const Documents& documents = info_.documents;
  check_positions(open_column(file_, kPositions, documents.tokens()), documents);
  if (has_tokens()) (void)open_column(file_, kTokens, documents.tokens());
  read_batches();
  first_token_.push_back(0);
  for (size_t i = 0; i < documents.count(); ++i)
    first_token_.push_back(checked_add(first_token_.back(), clustered(documents.length(i), info_.sink)));
  layer_numbers_ = layer_numbers(file_, info_.model.num_layers);
  for (const int layer : layer_numbers_) layers_.emplace(layer, open_layer(layer));
}

void IndexReader::read_batches() {
  const uint64_t documents = info_.documents.count();
  const h5::Dataset offset = open_dataset(file_, kBatchOffset, DType::u64, {documents + 1}),
                    end = file_.dataset(kBatchEnd);
  const auto offsets = offset.integers(0, documents + 1, kMaxNumber);
  const auto ends = end.integers(0, end.rows(), UINT32_MAX);
  if (offsets.front() != 0 || offsets.back() != ends.size() || !std::ranges::is_sorted(offsets))
    throw offset.error("does not rise from 0 to {}, the batches there are", ends.size());
  for (size_t i = 0; i < documents; ++i) {
    const auto& own = info_.batch_ends.emplace_back(ends.data() + offsets[i], ends.data() + offsets[i + 1]);
    if (std::ranges::adjacent_find(own, std::ranges::greater_equal{}) != own.end())
      throw end.error("the batches of document {} do not rise", i);
    if (const uint64_t last = own.empty() ? 0 : own.back(); last != info_.documents.length(i))
      throw end.error("document {} has {} tokens; its batches end at {}", i, info_.documents.length(i), last);
  }
}

IndexReader::Layer IndexReader::open_layer(int number) const {
  const auto open = [&](const char* name, DType element, std::initializer_list<uint64_t> shape) {
    return open_dataset(file_, layer_path(number, name), element, shape);
  };
  const h5::Dataset counts = open("clusters", DType::u32, {info_.documents.count() * heads(number)});
  std::vector<uint64_t> first_cluster{0};
  for (const uint64_t count : counts.integers(0, counts.rows(), UINT32_MAX))
    first_cluster.push_back(checked_add(first_cluster.back(), count));
  const uint64_t total = first_cluster.back();
  return {
      open("centroid", DType::f32, {total, static_cast<uint64_t>(info_.model.layer_shape(number).key_dim)}),
      open("size", DType::u32, {total}), open("end", DType::u64, {total}),
      open("token", DType::u32, {checked_mul(first_token_.back(), heads(number))}), std::move(first_cluster)};
}

bool IndexReader::has_tokens() const { return file_.has(kTokens); }

std::vector<uint32_t> IndexReader::tokens(uint64_t first, uint64_t count) const {
  const auto wide = file_.dataset(kTokens).integers(first, count, UINT32_MAX);
  return {wide.begin(), wide.end()};
}

std::vector<uint64_t> IndexReader::positions(uint64_t first, uint64_t count) const {
  return file_.dataset(kPositions).integers(first, count, kMaxNumber);
}

ClusterIndex IndexReader::read(int number, size_t document, size_t head) const {
  const auto place = layers_.find(number);
  if (place == layers_.end()) throw file_.error(kRoot, "has no layer {}", number);
  const Layer& layer = place->second;
  const uint64_t head_tokens = clustered(info_.documents.length(document), info_.sink);
  const uint64_t first_token = first_token_[document] * heads(number) + head * head_tokens;
  const uint64_t first = layer.first_cluster[document * heads(number) + head];
  const uint64_t count = layer.first_cluster[document * heads(number) + head + 1] - first;
  ClusterIndex::Parts parts{
      .sink = info_.sink,
      .batch_ends = info_.batch_ends[document],
      .centroids = Matrix<float>(count, static_cast<size_t>(info_.model.layer_shape(number).key_dim)),
      .offsets = {0},
      .ids = {}};
  const auto sizes = layer.sizes.read_as<uint32_t>(first, count);
  const auto ends = layer.ends.integers(first, count, kMaxNumber);
  for (size_t c = 0; c < count; ++c) {
    parts.offsets.push_back(checked_add(parts.offsets.back(), sizes[c]));
    if (const uint64_t end = first_token + parts.offsets.back(); ends[c] != end)
      throw layer.ends.error("cluster {} ends at {}; by the sizes it ends at {}", first + c, ends[c], end);
  }
  layer.centroids.read(first, count,
                       std::as_writable_bytes(std::span(parts.centroids.data(), parts.centroids.size())));
  parts.ids = layer.tokens.read_as<uint32_t>(first_token, head_tokens);
  return with_context(fmt::format("{}: /layers/{}: document {}, head {}", name(), number, document, head),
                      [&] { return ClusterIndex(std::move(parts)); });
}

IndexWriter::IndexWriter(OutputFile& output, IndexInfo info, std::span<const uint32_t> tokens,
                         std::span<const uint64_t> positions)
    : file_(h5::File::create(output)), info_(std::move(info)) {
  const Documents& documents = info_.documents;
  if (positions.size() != documents.tokens() || (!tokens.empty() && tokens.size() != documents.tokens()) ||
      info_.batch_ends.size() != documents.count())
    throw failed("{}: {} positions, {} token ids, {} lists of batches for {} documents of {} tokens",
                 output.target(), positions.size(), tokens.size(), info_.batch_ends.size(), documents.count(),
                 documents.tokens());
  write_documents(file_, documents);
  if (!tokens.empty()) write_dataset(file_, kTokens, DType::u32, tokens);
  write_positions(file_, kPositions, positions);
  std::vector<uint64_t> offsets{0}, ends;
  for (const auto& own : info_.batch_ends) {
    ends.insert(ends.end(), own.begin(), own.end());
    offsets.push_back(ends.size());
  }
  write_dataset<uint64_t>(file_, kBatchOffset, DType::u64, offsets);
  write_dataset<uint64_t>(file_, kBatchEnd, DType::u64, ends);
}

void IndexWriter::add_layer(int layer, std::span<const ClusterIndex> indices) {
  const LayerShape shape = info_.model.layer_shape(layer);
  const auto heads = static_cast<size_t>(shape.heads);
  const auto dims = static_cast<uint64_t>(shape.key_dim);
  if (indices.size() != info_.documents.count() * heads)
    throw failed("{} indices for {} documents of {} heads", indices.size(), info_.documents.count(), heads);
  std::vector<uint32_t> counts, sizes, tokens;
  std::vector<uint64_t> ends;
  std::vector<float> centroids;
  for (size_t i = 0; i < indices.size(); ++i) {
    const ClusterIndex& index = indices[i];
    if (!std::ranges::equal(index.batch_ends(), info_.batch_ends[i / heads]) || index.sink() != info_.sink ||
        index.dims() != dims)
      throw failed("layer {}: document {}, head {} has other batches", layer, i / heads, i % heads);
    counts.push_back(static_cast<uint32_t>(index.clusters()));
    for (size_t c = 0; c < index.clusters(); ++c) {
      sizes.push_back(static_cast<uint32_t>(index.tokens_of(c).size()));
      ends.push_back(tokens.size() + index.offsets()[c + 1]);
    }
    tokens.insert(tokens.end(), index.ids().begin(), index.ids().end());
    const auto own = index.centroids();
    centroids.insert(centroids.end(), own.data(), own.data() + own.rows() * own.cols());
  }
  const auto write = [&]<class T>(const char* name, DType type, const std::vector<T>& values,
                                  std::vector<uint64_t> row = {}) {
    write_dataset<T>(file_, layer_path(layer, name), type, values, std::move(row));
  };
  write("clusters", DType::u32, counts);
  write("centroid", DType::f32, centroids, {dims});
  write("size", DType::u32, sizes);
  write("end", DType::u64, ends);
  write("token", DType::u32, tokens);
}

void IndexWriter::finish(const Provenance& provenance) {
  file_.set_integer(kRoot, kSink, static_cast<int64_t>(info_.sink));
  finish_result(file_, "index", info_.model, &info_.parameters, provenance);
}

// outputs --------------------------------------------------------------------------------------------

constexpr char kCodec[] = "codec";

static std::string output_path(int layer) { return layer_path(layer, "output"); }

/// The shape of a query's output: (query heads, dimensions).
static std::vector<uint64_t> output_shape(const ModelInfo& model, int layer) {
  return {static_cast<uint64_t>(model.num_q_heads),
          static_cast<uint64_t>(model.layer_shape(layer).value_dim)};
}

static std::string query_name(uint64_t query) { return fmt::format("query {}", query); }

OutputsReader::OutputsReader(const std::string& file) : file_(open_file(file, "outputs", type_)) {
  info_ = {read_model(file_), file_.text(kRoot, kCodec), {}, read_documents(file_)};
  info_.layers = layer_numbers(file_, info_.model.num_layers);
  for (const char* path : {kPositions, kQueryRows}) (void)open_column(file_, path, queries(), "queries");
  for (const int layer : info_.layers) {
    const auto shape = output_shape(info_.model, layer);
    (void)open_dataset(file_, output_path(layer), DType::f32, {queries(), shape[0], shape[1]});
  }
}

std::vector<uint64_t> OutputsReader::positions(uint64_t first, uint64_t count) const {
  return file_.dataset(kPositions).integers(first, count, kMaxNumber);
}

std::vector<uint64_t> OutputsReader::token_rows(uint64_t first, uint64_t count) const {
  return file_.dataset(kQueryRows).integers(first, count, kMaxNumber);
}

void OutputsReader::read(int layer, uint64_t first, MatrixView<float> out) const {
  if (std::ranges::count(info_.layers, layer) == 0)
    throw file_.error(output_path(layer), "is missing; the file has the layers {}",
                      fmt::join(info_.layers, ", "));
  read_floats(file_.dataset(output_path(layer)), first, out, query_name);
}

OutputsWriter::OutputsWriter(OutputFile& output, const OutputsInfo& info, std::span<const uint64_t> positions,
                             std::span<const uint64_t> token_rows)
    : file_(h5::File::create(output)), info_(info) {
  const uint64_t queries = info.documents.tokens();
  if (positions.size() != queries || token_rows.size() != queries)
    throw failed("{}: {} positions and {} rows of tokens for {} queries", output.target(), positions.size(),
                 token_rows.size(), queries);
  write_positions(file_, kPositions, positions);
  write_positions(file_, kQueryRows, token_rows);
  for (const int layer : info.layers)
    outputs_.emplace(layer, h5::DatasetWriter(file_, output_path(layer), DType::f32,
                                              output_shape(info.model, layer), queries));
}

void OutputsWriter::append(int layer, MatrixView<const float> rows) {
  const auto place = outputs_.find(layer);
  if (place == outputs_.end())
    throw failed("{}: {}: not among the layers to be written", file_.name(), output_path(layer));
  h5::DatasetWriter& writer = place->second;
  append_floats(writer, DType::f32, info_.model.layer_shape(layer).value_dim, rows, false,
                [before = writer.rows()](uint64_t row) { return query_name(before + row); });
}

void OutputsWriter::finish(const Provenance& provenance) {
  for (auto& [layer, writer] : outputs_) {
    if (writer.rows() != info_.documents.tokens())
      throw failed("{}: {}: {} rows written for {} queries", file_.name(), writer.path(), writer.rows(),
                   info_.documents.tokens());
    writer.finish();
  }
  write_documents(file_, info_.documents);
  file_.set_text(kRoot, kCodec, info_.codec);
  finish_result(file_, "outputs", info_.model, nullptr, provenance);
}

// selection ------------------------------------------------------------------------------------------

namespace {

constexpr char kSelectionType[] = "selection", kHeads[] = "heads", kBeside[] = "/beside";

/// A layer's two datasets, compared with each other and with the queries.
struct LayerDatasets {
  LayerDatasets(const h5::File& file, int layer, const SelectionInfo& info)
      : tokens(file.dataset(layer_path(layer, "token"))),
        budget(tokens.shape().back()),
        scores(open_dataset(file, layer_path(layer, "score"), DType::f32,
                            {info.query_rows.size(), info.heads, budget})) {
    tokens.expect(DType::u32, scores.shape());
  }

  h5::Dataset tokens;
  uint64_t budget;
  h5::Dataset scores;
};

SelectionInfo read_info(const h5::File& file) {
  SelectionInfo info{.model = read_model(file),
                     .parameters = read_parameters(file),
                     .heads = static_cast<size_t>(file.integer(kRoot, kHeads, 1, 1 << 20)),
                     .query_rows = {},
                     .documents = read_documents(file)};
  const uint64_t queries = info.documents.tokens();
  info.query_rows = open_column(file, kQueryRows, queries, "queries").integers(0, queries, UINT64_MAX);
  if (file.has(kBeside))
    for (const uint64_t tokens :
         open_column(file, kBeside, queries, "queries").integers(0, queries, UINT32_MAX))
      info.beside.push_back(static_cast<uint32_t>(tokens));
  return info;
}

void write_layer(h5::File& file, int layer, const SelectionInfo& info, const LayerSelections& selections) {
  const size_t queries = info.query_rows.size(), heads = info.heads;
  if (selections.chosen.size() != checked_mul(queries, heads))
    throw failed("{}: layer {}: {} selections for {} queries of {} heads", file.name(), layer,
                 selections.chosen.size(), queries, heads);
  size_t budget = 1;
  for (const auto& chosen : selections.chosen) budget = std::max(budget, chosen.size());
  h5::DatasetWriter tokens(file, layer_path(layer, "token"), DType::u32, {heads, budget}, queries),
      scores(file, layer_path(layer, "score"), DType::f32, {heads, budget}, queries);
  for (size_t q = 0; q < queries; ++q) {
    std::vector<uint32_t> ids(heads * budget, kNoToken);
    std::vector<float> values(heads * budget);
    for (size_t head = 0; head < heads; ++head)
      for (size_t i = head * budget; const auto& [score, id] : selections.chosen[q * heads + head]) {
        ids[i] = id;
        values[i++] = score;
      }
    tokens.append_values<uint32_t>(ids);
    scores.append_values<float>(values);
  }
  tokens.finish();
  scores.finish();
}

}  // namespace

void write_selections(OutputFile& output, const SelectionInfo& info,
                      const std::map<int, LayerSelections>& layers, const Provenance& provenance) {
  const size_t queries = info.query_rows.size();
  if (info.documents.tokens() != queries)
    throw failed("{}: documents of {} queries; there are {}", output.target(), info.documents.tokens(),
                 queries);
  h5::File file = h5::File::create(output);
  write_dataset<uint64_t>(file, kQueryRows, DType::u64, info.query_rows);
  if (!info.beside.empty()) write_dataset<uint32_t>(file, kBeside, DType::u32, info.beside);
  write_documents(file, info.documents);
  for (const auto& [layer, selections] : layers) write_layer(file, layer, info, selections);
  file.set_integer(kRoot, kHeads, static_cast<int64_t>(info.heads));
  finish_result(file, kSelectionType, info.model, &info.parameters, provenance);
}

SelectionFile read_selection_info(const std::string& name) {
  SelectionFile result;
  const h5::File file = open_file(name, kSelectionType, result.type);
  result.info = read_info(file);
  for (const int layer : layer_numbers(file, result.info.model.num_layers))
    result.budgets[layer] = LayerDatasets(file, layer, result.info).budget;
  return result;
}

LayerSelections read_selections(const std::string& name, int layer) {
  FileType type;
  const h5::File file = open_file(name, kSelectionType, type);
  const SelectionInfo info = read_info(file);
  const LayerDatasets datasets(file, layer, info);
  LayerSelections selections;
  if (info.query_rows.empty()) return selections;  // nothing stored confirms how many a row has room for
  selections.chosen.resize(info.query_rows.size() * info.heads);
  for (size_t q = 0; q < info.query_rows.size(); ++q) {
    const auto ids = datasets.tokens.read_as<uint32_t>(q, 1);
    const auto values = datasets.scores.read_as<float>(q, 1);
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == kNoToken) continue;
      if (std::isnan(values[i])) throw datasets.scores.error("query {}: a score is not a number", q);
      selections.chosen[q * info.heads + i / datasets.budget].push_back({values[i], ids[i]});
    }
  }
  return selections;
}

// sensitivity ----------------------------------------------------------------------------------------

namespace {

constexpr char kSensitivityType[] = "sensitivity", kFisher[] = "/fisher", kKeyState[] = "key_state";
constexpr double kFinite = std::numeric_limits<double>::max(), kAny = std::numeric_limits<double>::infinity();

/// A dataset with a number for each layer's side, or for each noise with which that side was probed.
struct Column {
  const char* path;
  size_t per_side;
  double limit;
  double& (*of)(Sensitivity& side, size_t i);

  std::vector<uint64_t> row_shape() const {
    return per_side == 1 ? std::vector<uint64_t>{2} : std::vector<uint64_t>{2, per_side};
  }
};

constexpr Column kColumns[] = {
    {"/variance", 1, kFinite, [](Sensitivity& s, size_t) -> double& { return s.variance; }},
    {"/deviation", 2, kFinite, [](Sensitivity& s, size_t i) -> double& { return s.probes[i].deviation; }},
    {"/divergence", 2, kFinite,
     [](Sensitivity& s, size_t i) -> double& { return s.probes[i].divergence.mean; }},
    {"/divergence_half_width", 2, kAny,
     [](Sensitivity& s, size_t i) -> double& { return s.probes[i].divergence.half_width; }},
    {"/nats", 1, kFinite, [](Sensitivity& s, size_t) -> double& { return s.nats.mean; }},
    {"/nats_half_width", 1, kAny, [](Sensitivity& s, size_t) -> double& { return s.nats.half_width; }},
};

double& number_at(const Column& column, std::vector<std::array<Sensitivity, 2>>& layers, size_t place) {
  const size_t side = place / column.per_side;
  return column.of(layers[side / 2][side % 2], place % column.per_side);
}

void read_column(const h5::File& file, const Column& column,
                 std::vector<std::array<Sensitivity, 2>>& layers) {
  const h5::Dataset dataset = file.dataset(column.path);
  std::vector<uint64_t> shape = column.row_shape();
  shape.insert(shape.begin(), layers.size());
  dataset.expect(DType::f64, shape);
  const auto values = dataset.read_as<double>(0, layers.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (!(values[i] >= 0 && values[i] <= column.limit))
      throw dataset.error("layer {}: {} is impossible", i / 2 / column.per_side, values[i]);
    number_at(column, layers, i) = values[i];
  }
}

std::string fisher_path(Side side) { return fmt::format("{}/{}", kFisher, side); }

void check_fits(const OutputFile& output, const Fisher& fisher, const ModelInfo& model) {
  const size_t dim = as_size(model.head_dim), count = as_size(fisher.layers) * as_size(fisher.heads);
  const auto is_square = [&](const Matrix<float>& one) { return one.rows() == dim && one.cols() == dim; };
  const bool fits = std::ranges::all_of(fisher.matrices, [&](const auto& matrices) {
    return matrices.size() == count && std::ranges::all_of(matrices, is_square);
  });
  if (!fits || fisher.layers != model.num_layers || fisher.heads != model.num_kv_heads)
    throw failed("{}: Fisher matrices of {} layers and {} heads; the model has {} and {} of {}",
                 output.target(), fisher.layers, fisher.heads, model.num_layers, model.num_kv_heads, dim);
}

void write_fisher(h5::File& file, const Fisher& fisher, const ModelInfo& model) {
  const uint64_t heads = as_size(model.num_kv_heads), dim = as_size(model.head_dim);
  file.make_group(kFisher);
  file.set_text(kFisher, kKeyState, fisher.keys_before_rope ? "pre-rope" : "post-rope");
  for (const Side side : kSides) {
    std::vector<float> values;
    for (const Matrix<float>& matrix : fisher.matrices[static_cast<size_t>(side)])
      values.insert(values.end(), matrix.data(), matrix.data() + matrix.size());
    write_dataset<float>(file, fisher_path(side), DType::f32, values, {heads, dim, dim});
  }
}

/// The matrix of one head. Throws if it cannot be a sum of g g^T.
Matrix<float> checked_matrix(const h5::Dataset& dataset, std::span<const float> values, size_t dim, int layer,
                             size_t head) {
  Matrix<float> matrix(dim, dim);
  std::ranges::copy(values, matrix.data());
  for (size_t i = 0; i < dim; ++i)
    for (size_t j = 0; j <= i; ++j) {
      const float value = matrix(i, j);
      if (!std::isfinite(value) || (i == j && value < 0))
        throw dataset.error("layer {}, head {}: {} is impossible", layer, head, value);
      if (value != matrix(j, i))
        throw dataset.error("layer {}, head {}: the matrix is not symmetric ({} and {})", layer, head, value,
                            matrix(j, i));
    }
  return matrix;
}

Fisher read_fisher(const h5::File& file, const ModelInfo& model) {
  const std::string state = file.text(kFisher, kKeyState);
  if (state != "pre-rope" && state != "post-rope")
    throw file.error(kFisher, "attribute 'key_state' is '{}'; post-rope and pre-rope are possible", state);
  Fisher fisher{.layers = model.num_layers,
                .heads = model.num_kv_heads,
                .keys_before_rope = state == "pre-rope",
                .matrices = {}};
  const uint64_t heads = as_size(model.num_kv_heads), dim = as_size(model.head_dim);
  for (const Side side : kSides) {
    const h5::Dataset dataset =
        open_dataset(file, fisher_path(side), DType::f32, {as_size(model.num_layers), heads, dim, dim});
    for (int layer = 0; layer < fisher.layers; ++layer) {
      const auto values = dataset.read_as<float>(as_size(layer), 1);
      for (size_t head = 0; head < heads; ++head)
        fisher.matrices[static_cast<size_t>(side)].push_back(checked_matrix(
            dataset, std::span(values).subspan(head * dim * dim, dim * dim), dim, layer, head));
    }
  }
  return fisher;
}

}  // namespace

void write_sensitivities(OutputFile& output, const SensitivityInfo& info, const Provenance& provenance) {
  const bool noise = !info.layers.empty() || !info.fisher;
  if (noise && info.layers.size() != as_size(info.model.num_layers))
    throw failed("{}: sensitivities of {} layers; the model has {}", output.target(), info.layers.size(),
                 info.model.num_layers);
  if (info.fisher) check_fits(output, *info.fisher, info.model);
  h5::File file = h5::File::create(output);
  auto layers = info.layers;
  for (const Column& column : kColumns) {
    if (!noise) break;
    std::vector<double> values(layers.size() * 2 * column.per_side);
    for (size_t i = 0; i < values.size(); ++i) values[i] = number_at(column, layers, i);
    write_dataset<double>(file, column.path, DType::f64, values, column.row_shape());
  }
  if (info.fisher) write_fisher(file, *info.fisher, info.model);
  finish_result(file, kSensitivityType, info.model, &info.parameters, provenance);
}

SensitivityFile read_sensitivities(const std::string& name) {
  SensitivityFile result;
  const h5::File file = open_file(name, kSensitivityType, result.type);
  SensitivityInfo& info = result.info;
  info = {read_model(file), read_parameters(file), {}, {}};
  if (file.has(kFisher)) info.fisher = read_fisher(file, info.model);
  const bool noise = !info.fisher || std::ranges::any_of(kColumns, [&](const Column& column) {
    return file.has(column.path);
  });
  info.layers.resize(noise ? as_size(info.model.num_layers) : 0);
  for (const Column& column : kColumns)
    if (noise) read_column(file, column, info.layers);
  return result;
}

}  // namespace kvcodec
