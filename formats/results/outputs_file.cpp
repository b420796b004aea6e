#include "formats/results/outputs_file.hpp"

#include <algorithm>
#include <map>

#include "formats/cache/header_io.hpp"
#include "formats/hdf5/hdf5.hpp"
#include "lib/core/finite.hpp"

namespace kvcodec {
namespace {

constexpr char kTypeName[] = "outputs";
constexpr char kQueryPositions[] = "/positions";
constexpr char kTokenRows[] = "/query_position";

size_t row_values(const ModelInfo& model) {
  return static_cast<size_t>(model.num_q_heads) * static_cast<size_t>(model.head_dim);
}

std::string not_finite(uint64_t query, size_t column, const ModelInfo& model) {
  const auto head_dim = static_cast<size_t>(model.head_dim);
  return fmt::format("query {}, head {}, dimension {} is not finite", query, column / head_dim,
                     column % head_dim);
}

}  // namespace

// Reading -------------------------------------------------------------------------------------------

struct OutputsReader::Impl {
  FileType type;
  h5::File file;
  OutputsInfo info;
  std::map<int, h5::Dataset> outputs;

  explicit Impl(const std::string& name) : file(open_file(name, kTypeName, type)) {
    info.model = read_model(file, type);
    info.codec = file.text(kRoot, "codec");
    info.documents = read_documents(file);
    info.layers = layer_numbers(file, info.model.num_layers);
    for (const char* path : {kQueryPositions, kTokenRows}) (void)column(path);
    const std::vector<uint64_t> shape{info.documents.tokens(), static_cast<uint64_t>(info.model.num_q_heads),
                                      static_cast<uint64_t>(info.model.head_dim)};
    for (const int layer : info.layers) {
      h5::Dataset dataset = file.dataset(layer_path(layer, "output"));
      dataset.expect(DType::f32, shape);
      outputs.emplace(layer, std::move(dataset));
    }
  }

  h5::Dataset column(const std::string& path) const {
    h5::Dataset dataset = file.dataset(path);
    if (dataset.shape() != std::vector<uint64_t>{info.documents.tokens()})
      throw dataset.error("has the shape [{}]; the documents have {} queries",
                          fmt::join(dataset.shape(), ", "), info.documents.tokens());
    return dataset;
  }
};

OutputsReader::OutputsReader(const std::string& file) : impl_(std::make_unique<Impl>(file)) {}
OutputsReader::~OutputsReader() = default;
OutputsReader::OutputsReader(OutputsReader&&) noexcept = default;
OutputsReader& OutputsReader::operator=(OutputsReader&&) noexcept = default;

const std::string& OutputsReader::name() const { return impl_->file.name(); }
const FileType& OutputsReader::type() const { return impl_->type; }
const OutputsInfo& OutputsReader::info() const { return impl_->info; }
uint64_t OutputsReader::file_bytes() const { return impl_->file.size(); }

std::vector<uint64_t> OutputsReader::positions(uint64_t first, uint64_t count) const {
  return impl_->column(kQueryPositions).integers(first, count, kMaxNumber);
}

std::vector<uint64_t> OutputsReader::token_rows(uint64_t first, uint64_t count) const {
  return impl_->column(kTokenRows).integers(first, count, kMaxNumber);
}

void OutputsReader::read(int layer, uint64_t first, MatrixView<float> out) const {
  const auto place = impl_->outputs.find(layer);
  if (place == impl_->outputs.end())
    throw impl_->file.error(layer_path(layer, "output"), "is missing; the file has the layers {}",
                            fmt::join(impl_->info.layers, ", "));
  const h5::Dataset& dataset = place->second;
  const size_t width = row_values(impl_->info.model);
  if (out.cols() != width)
    throw failed("{}: rows have {} values; {} were asked for", dataset.path(), width, out.cols());
  dataset.visit(first, out.rows(), [&](uint64_t row, std::span<const std::byte> bytes) {
    const std::span values(reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float));
    if (const auto bad = find_non_finite(values))
      throw dataset.error("{}", not_finite(row + *bad / width, *bad % width, impl_->info.model));
    for (size_t done = 0; done < values.size(); done += width)
      std::ranges::copy(values.subspan(done, width),
                        out.row(static_cast<size_t>(row - first) + done / width).begin());
  });
}

// Writing -------------------------------------------------------------------------------------------

struct OutputsWriter::Impl {
  h5::File file;
  OutputsInfo info;
  std::vector<uint64_t> positions, token_rows;
  std::map<int, h5::DatasetWriter> outputs;
};

OutputsWriter::OutputsWriter(OutputFile& output, const OutputsInfo& info, std::span<const uint64_t> positions,
                             std::span<const uint64_t> token_rows)
    : impl_(new Impl{h5::File::create(output),
                     info,
                     {positions.begin(), positions.end()},
                     {token_rows.begin(), token_rows.end()},
                     {}}) {
  const uint64_t queries = info.documents.tokens();
  if (positions.size() != queries || token_rows.size() != queries)
    throw failed("{}: {} positions and {} rows of tokens for {} queries", output.target(), positions.size(),
                 token_rows.size(), queries);
  const std::vector<uint64_t> shape{static_cast<uint64_t>(info.model.num_q_heads),
                                    static_cast<uint64_t>(info.model.head_dim)};
  for (const int layer : info.layers)
    impl_->outputs.emplace(
        layer, h5::DatasetWriter(impl_->file, layer_path(layer, "output"), DType::f32, shape, queries));
}

OutputsWriter::~OutputsWriter() = default;

void OutputsWriter::append(int layer, MatrixView<const float> rows) {
  const auto place = impl_->outputs.find(layer);
  if (place == impl_->outputs.end())
    throw failed("{}: {}: not among the layers to be written", impl_->file.name(),
                 layer_path(layer, "output"));
  h5::DatasetWriter& writer = place->second;
  const size_t width = row_values(impl_->info.model);
  if (rows.cols() != width)
    throw failed("{}: rows have {} values; {} were given", writer.path(), width, rows.cols());
  for (size_t i = 0; i < rows.rows(); ++i) {
    if (const auto bad = find_non_finite(rows.row(i)))
      throw bad_input("{}: {}", writer.path(), not_finite(writer.rows(), *bad, impl_->info.model));
    writer.append_values(std::span<const float>(rows.row(i)));
  }
}

void OutputsWriter::finish(const Provenance& provenance) {
  Impl& s = *impl_;
  const uint64_t queries = s.info.documents.tokens();
  for (auto& [layer, writer] : s.outputs) {
    if (writer.rows() != queries)
      throw failed("{}: {}: {} rows written for {} queries", s.file.name(), writer.path(), writer.rows(),
                   queries);
    writer.finish();
  }
  for (const auto& [path, numbers] :
       {std::pair{kQueryPositions, &s.positions}, {kTokenRows, &s.token_rows}}) {
    const uint64_t largest = numbers->empty() ? 0 : std::ranges::max(*numbers);
    h5::DatasetWriter column(s.file, path, position_type(largest), {}, queries);
    if (position_type(largest) == DType::u64)
      column.append_values(std::span<const uint64_t>(*numbers));
    else
      column.append_values(
          std::span<const uint32_t>(std::vector<uint32_t>(numbers->begin(), numbers->end())));
    column.finish();
  }
  write_documents(s.file, s.info.documents);
  write_model(s.file, s.info.model);
  s.file.set_text(kRoot, "codec", s.info.codec);
  write_file_type(s.file, kTypeName, s.info.model, provenance);
  s.file.close();
}

}  // namespace kvcodec
