#include "formats/cache/codes_output.hpp"

#include <bit>

#include "formats/cache/book_io.hpp"
#include "formats/cache/header_io.hpp"
#include "formats/cache/record_json.hpp"

namespace kvcodec {
namespace {

/// Data that come first, until it can be said about how much will follow.
constexpr uint64_t kHeldBytes = uint64_t{1} << 22;

uint64_t values_of(const CodesInfo& info) {
  const Columns columns(info);
  uint64_t values = 0;
  for (uint64_t column = 0; column < columns.index(); ++column)
    values += info.documents.held(columns.layer(column)) * shape_of(info, columns, column).width();
  return values;
}

/// Whole arrays, one per stream.
class Arrays final : public PartSource {
 public:
  void add(uint64_t rows, std::span<const std::byte> bytes) { arrays_.push_back({rows, bytes}); }
  uint64_t rows(size_t stream) const override { return arrays_[stream].rows; }
  void read(size_t stream, uint64_t first, uint64_t, std::span<std::byte> out) const override {
    const auto& [rows, bytes] = arrays_[stream];
    std::ranges::copy(bytes.subspan(first * (rows ? bytes.size() / rows : 0), out.size()), out.begin());
  }

 private:
  struct Array {
    uint64_t rows;
    std::span<const std::byte> bytes;
  };
  std::vector<Array> arrays_;
};

}  // namespace

CodesFile::CodesFile(const OutputFile& output, const CodesInfo& info, std::vector<Layout> layouts,
                     const CodesReader* before)
    : file_(h5::File::create(output, 2 * values_of(info))),
      info_(info),
      numbering_(info),
      before_(before),
      data_(open_data()),
      parts_(data_),
      places_((info.documents.count() + 1) * layouts.size()) {
  for (Layout& layout : layouts) {
    totals_.emplace_back(layout.size());
    columns_.emplace_back(std::move(layout));
  }
  if (before) take_over(*before);
}

h5::DatasetWriter CodesFile::open_data() {
  h5::Chunks chunks{.bytes = kHeldBytes, .checksums = false, .choose = [this] { return chunk_bytes(); }};
  if (!before_) return {file_, kDataPath, DType::u8, {}, 0, chunks};
  const auto& before = before_->impl();
  written_ = {values_of(before.info), before.data ? before.data->rows() : 0};
  // What grows by appends may become any size, and keeps its chunks.
  constexpr uint64_t kLeastOfGrowing = uint64_t{1} << 16;
  chunks = {.bytes = std::max(chunk_bytes(), kLeastOfGrowing), .checksums = false};
  if (!before.data) return {file_, kDataPath, DType::u8, {}, 0, chunks};
  return h5::DatasetWriter::behind(file_, *before.data, 0, chunks);
}

/// Bytes of a chunk of the data: the unused end of the last chunk and the table of all chunks should both be small beside the
/// file, whose size is taken to follow from what is in it so far.
uint64_t CodesFile::chunk_bytes() const {
  constexpr uint64_t kLeast = uint64_t{1} << 12, kMost = kHeldBytes, kChunks = 256;
  const uint64_t all = values_of(info_);
  const double expected = written_.values == 0
                              ? 2.0 * static_cast<double>(all)
                              : static_cast<double>(written_.bytes) * static_cast<double>(all) /
                                    static_cast<double>(written_.values);
  return std::clamp(std::bit_floor(static_cast<uint64_t>(expected) / kChunks), kLeast, kMost);
}

/// What the file holds, which stays.
void CodesFile::take_over(const CodesReader& before) {
  const CodesReader::Impl& s = before.impl();
  const std::vector<PartPlace> places = s.all_places();
  if (s.columns().count() != columns_.size() || places.size() > places_.size())
    throw failed("{}: cannot go on with other columns or fewer documents", before.name());
  std::ranges::copy(places, places_.begin());
  for (uint64_t column = 0; column < columns_.size(); ++column) {
    if (s.layout(column).all != columns_[column].all)
      throw failed("{}: cannot go on with other streams", before.name());
    totals_[column] = s.totals[column];
  }
  ledger_.index_bytes = s.footer_bytes();
  ledger_.embedded_book_bytes = before.ledger().embedded_book_bytes;
}

void CodesFile::write(const PartName& name, const PartSource& source) {
  drop(name);
  const Layout& layout = layout_of_part(name);
  std::vector<uint64_t> rows;
  for (size_t i = 0; i < layout.size(); ++i) {
    rows.push_back(source.rows(i));
    write_stream(layout[i], i, rows.back(), source);
  }
  finish_part(name, rows);
}

void CodesFile::copy(const PartName& name, const Part& part) {
  block_.resize(std::min(kBlockBytes, part.body_bytes()));
  for (uint64_t first = 0; first < part.body_bytes(); first += block_.size()) {
    const auto bytes = std::span(block_).first(std::min<uint64_t>(block_.size(), part.body_bytes() - first));
    part.read_body(first, bytes);
    parts_.append(bytes);
  }
  finish_part(name, part.rows());
}

void CodesFile::write_index(size_t document, std::span<const uint32_t> tokens,
                            std::span<const uint64_t> positions) {
  const uint64_t column = columns_.size() - 1;
  const Layout& own = columns_[column].own;
  Arrays arrays;
  if (own.size() > 1) arrays.add(positions.size(), std::as_bytes(tokens));
  std::vector<uint32_t> narrow;
  if (own.back().spec.type == DType::u32) {
    narrow.assign(positions.begin(), positions.end());
    arrays.add(narrow.size(), std::as_bytes(std::span(narrow)));
  } else {
    arrays.add(positions.size(), std::as_bytes(positions));
  }
  write({document + 1, column}, arrays);
}

void CodesFile::embed(const Book& book) {
  ledger_.embedded_book_bytes = write_book_at(file_, kBookPath, book, false);
}

void CodesFile::finish(const Provenance& provenance) {
  data_.finish();
  write_tables();
  ledger_.index_bytes += write_documents(file_, info_.documents, info_.model);
  write_model(file_, info_.model);
  file_.set_text(kRoot, "codec", info_.codec);
  file_.set_text(kRoot, "parameters", to_json_text(info_.parameters));
  file_.set_text(kRoot, "storage", std::string(name_of(info_.storage)));
  file_.set_text(kRoot, "source_dtype", std::string(name_of(info_.source_dtype)));
  file_.set_integer(kRoot, "layer_group", info_.layer_group);
  file_.set_extents(kRoot, "groups", std::vector<uint64_t>(info_.groups.begin(), info_.groups.end()));
  write_layouts();
  write_shared_places();
  file_.set_text(kRoot, "book_type", info_.book_type);
  file_.set_text(kRoot, "book_digest", info_.book_digest);
  file_.set_integer(kRoot, "book_bytes", static_cast<int64_t>(info_.book_bytes));
  file_.set_integer(kRoot, "packed", info_.packed ? 1 : 0);
  if (info_.joint) file_.set_integer(kRoot, "joint", 1);
  file_.set_text(kRoot, "ledger", to_json_text(ledger_record()));
  write_file_type(file_, "codes", info_.model, provenance);
  file_.close();
}

const Layout& CodesFile::layout_of_part(const PartName& name) const {
  return name.row == 0 ? columns_[name.side].shared : columns_[name.side].own;
}

void CodesFile::write_stream(const StoredSpec& stream, size_t number, uint64_t rows,
                             const PartSource& source) {
  // Eight rows are whole bytes whatever the width, so blocks can be packed one by one.
  const uint64_t step = std::max<uint64_t>(1, kBlockBytes / stream.spec.row_bytes() / 8) * 8;
  for (uint64_t first = 0; first < rows; first += step) {
    const uint64_t count = std::min(step, rows - first);
    block_.resize(count * stream.spec.row_bytes());
    source.read(number, first, count, block_);
    if (stream.packed_bits == 0)
      parts_.append(block_);
    else
      parts_.append(with_context(fmt::format("{}: stream '{}'", file_.name(), stream.spec.name),
                                 [&] { return pack_elements(stream.spec, block_, stream.packed_bits); }));
  }
}

void CodesFile::finish_part(const PartName& name, std::span<const uint64_t> rows) {
  PartPlace& place = places_[name.row * columns_.size() + name.side];
  place = parts_.finish(name, rows);
  count(name, rows, place.size, true);
  written_.bytes += place.size;
  if (name.row > 0 && name.side < numbering_.index())
    written_.values += info_.documents.held(numbering_.layer(name.side), name.row - 1) *
                       shape_of(info_, numbering_, name.side).width();
}

/// The part of that name that was there before, if there was one, does not count any more.
void CodesFile::drop(const PartName& name) {
  PartPlace& place = places_[name.row * columns_.size() + name.side];
  if (place.size == 0) return;
  count(name, before_->impl().part(name)->rows(), place.size, false);
  place = {};
}

/// Adds a part to what is counted of all, or takes it away.
void CodesFile::count(const PartName& name, std::span<const uint64_t> rows, uint64_t size, bool add) {
  const auto change = [add](uint64_t& sum, uint64_t by) { sum = add ? sum + by : sum - by; };
  const Layout& layout = layout_of_part(name);
  uint64_t streams = 0;
  for (size_t i = 0, own = 0; i < columns_[name.side].all.size(); ++i) {
    if (columns_[name.side].all[i].spec.shared != (name.row == 0)) continue;
    const uint64_t n = rows[own], bytes = layout[own].bytes(n);
    change(totals_[name.side][i].rows, n);
    change(totals_[name.side][i].bytes, bytes);
    streams += bytes;
    ++own;
  }
  change(ledger_.index_bytes, size - streams);
}

void CodesFile::write_tables() {
  const uint64_t shape[] = {info_.documents.count() + 1, columns_.size(), 2};
  h5::write_table(file_, kPartsPath, DType::u64, shape, std::as_bytes(std::span(places_)));
  ledger_.index_bytes += places_.size() * sizeof(PartPlace);
  uint64_t streams = 0;
  for (const auto& column : totals_) streams += column.size();
  h5::DatasetWriter totals(file_, kTotalsPath, DType::u64, {2}, streams);
  for (const auto& column : totals_)
    for (const auto& total : column) totals.append_values(std::span<const uint64_t>(&total.rows, 2));
  ledger_.index_bytes += totals.rows() * totals.row_bytes();
  totals.finish();
}

/// Each distinct layout once; tokens and positions have one of their own.
void CodesFile::write_layouts() {
  std::vector<std::string> texts;
  std::vector<uint64_t> numbers;
  for (uint64_t column = 0; column < columns_.size(); ++column) {
    const bool index = column + 1 == columns_.size();
    const std::string text = to_json_text(columns_[column].all, index ? kIndexCategory : "");
    auto known = std::find(texts.begin(), texts.end(), text);
    if (known == texts.end()) known = texts.insert(known, text);
    numbers.push_back(static_cast<uint64_t>(known - texts.begin()));
  }
  file_.set_texts(kRoot, "layouts", texts);
  file_.set_extents(kRoot, "side_layout", numbers);
}

void CodesFile::write_shared_places() {
  // A smaller table is read with the end of the file anyway. Attributes share the 64 KiB of an object's header; of thousands of
  // columns the table alone has to do.
  constexpr size_t kReadAlong = size_t{1} << 16, kMostColumns = 512;
  const auto shared = std::span(places_).first(columns_.size());
  const bool any = std::ranges::any_of(shared, [](const PartPlace& place) { return place.size > 0; });
  if (!any || places_.size() * sizeof(PartPlace) <= kReadAlong || shared.size() > kMostColumns) return;
  std::vector<uint64_t> numbers;
  numbers.reserve(2 * shared.size());
  for (const PartPlace& place : shared) numbers.insert(numbers.end(), {place.begin, place.size});
  file_.set_extents(kRoot, kSharedParts, numbers);
}

Record CodesFile::ledger_record() const {
  std::vector<uint64_t> bytes(std::size(kCategories));
  uint64_t index = ledger_.index_bytes;
  for (uint64_t column = 0; column < columns_.size(); ++column)
    for (size_t i = 0; i < columns_[column].all.size(); ++i) {
      const Category category = columns_[column].all[i].spec.category;
      const bool of_index = column + 1 == columns_.size();
      (of_index ? index : bytes[static_cast<size_t>(category)]) += bytes_of(column, i);
    }
  Record record;
  record.set("values", static_cast<int64_t>(values_of(info_)));
  for (const Category category : kCategories)
    record.set(name_of(category), static_cast<int64_t>(bytes[static_cast<size_t>(category)]));
  record.set("index", static_cast<int64_t>(index));
  record.set("embedded_book", static_cast<int64_t>(ledger_.embedded_book_bytes));
  return record;
}

}  // namespace kvcodec
