#include "formats/results/outputs_file.hpp"

#include <algorithm>
#include <map>

#include "formats/cache/header_io.hpp"
#include "lib/core/finite.hpp"

namespace kvcodec {
namespace {

constexpr char kTypeName[] = "outputs", kCodec[] = "codec";
constexpr char kQueryPositions[] = "/positions", kTokenRows[] = "/query_position";

std::string output_path(int layer) { return layer_path(layer, "output"); }

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
    info = {read_model(file), file.text(kRoot, kCodec), {}, read_documents(file)};
    info.layers = layer_numbers(file, info.model.num_layers);
    for (const char* path : {kQueryPositions, kTokenRows}) (void)column(path);
    for (const int layer : info.layers)
      outputs.emplace(layer,
                      open_dataset(file, output_path(layer), DType::f32,
                                   {info.documents.tokens(), static_cast<uint64_t>(info.model.num_q_heads),
                                    static_cast<uint64_t>(info.model.head_dim)}));
  }

  h5::Dataset column(const char* path) const {
    return open_column(file, path, info.documents.tokens(), "queries");
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
    throw impl_->file.error(output_path(layer), "is missing; the file has the layers {}",
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
  std::map<int, h5::DatasetWriter> outputs = {};
};

OutputsWriter::OutputsWriter(OutputFile& output, const OutputsInfo& info, std::span<const uint64_t> positions,
                             std::span<const uint64_t> token_rows)
    : impl_(new Impl{h5::File::create(output),
                     info,
                     {positions.begin(), positions.end()},
                     {token_rows.begin(), token_rows.end()}}) {
  const uint64_t queries = info.documents.tokens();
  if (positions.size() != queries || token_rows.size() != queries)
    throw failed("{}: {} positions and {} rows of tokens for {} queries", output.target(), positions.size(),
                 token_rows.size(), queries);
  const std::vector<uint64_t> shape{static_cast<uint64_t>(info.model.num_q_heads),
                                    static_cast<uint64_t>(info.model.head_dim)};
  for (const int layer : info.layers)
    impl_->outputs.emplace(layer,
                           h5::DatasetWriter(impl_->file, output_path(layer), DType::f32, shape, queries));
}

OutputsWriter::~OutputsWriter() = default;

void OutputsWriter::append(int layer, MatrixView<const float> rows) {
  const auto place = impl_->outputs.find(layer);
  if (place == impl_->outputs.end())
    throw failed("{}: {}: not among the layers to be written", impl_->file.name(), output_path(layer));
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
  write_positions(s.file, kQueryPositions, s.positions);
  write_positions(s.file, kTokenRows, s.token_rows);
  write_documents(s.file, s.info.documents);
  s.file.set_text(kRoot, kCodec, s.info.codec);
  finish_result(s.file, kTypeName, s.info.model, nullptr, provenance);
}

}  // namespace kvcodec
