#include <algorithm>
#include <bit>
#include <set>

#include "formats/book_io.hpp"
#include "formats/codes_file.hpp"
#include "formats/codes_io.hpp"
#include "formats/header_io.hpp"
#include "formats/record_json.hpp"
#include "formats/spill.hpp"
#include "lib/core/checked.hpp"

namespace kvcodec {
namespace {

/// Bytes handled at a time when streams are copied, packed or unpacked.
constexpr uint64_t kBlockBytes = h5::kChunkBytes;

/// Bytes of a chunk of the data, about: the unused end of the last chunk and the table of all chunks should both
/// be small beside the file, of whose size nothing is known yet but that of the 16-bit cache.
uint64_t chunk_bytes_for(uint64_t values) {
  constexpr uint64_t kLeast = uint64_t{1} << 12, kMost = uint64_t{1} << 24, kChunksOfRaw = 512;
  return std::clamp(std::bit_ceil(2 * values / kChunksOfRaw), kLeast, kMost);
}

uint64_t values_of(const CodesInfo& info) {
  const Columns columns(info);
  uint64_t values = 0;
  for (uint64_t column = 0; column < columns.index(); ++column)
    values += info.documents.held(columns.layer(column)) * shape_of(info, columns, column).width();
  return values;
}

/// Where the streams of a part that is written come from.
class PartSource {
 public:
  virtual ~PartSource() = default;
  virtual uint64_t rows(size_t stream) const = 0;
  virtual void read(size_t stream, uint64_t first, uint64_t count, std::span<std::byte> out) const = 0;
};

/// A part of another file.
class StoredPart final : public PartSource {
 public:
  explicit StoredPart(const Part& part) : part_(part) {}
  uint64_t rows(size_t stream) const override { return part_.rows()[stream]; }
  void read(size_t stream, uint64_t first, uint64_t count, std::span<std::byte> out) const override {
    part_.read(stream, first, count, out);
  }

 private:
  const Part& part_;
};

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

/// Writes the parts of a codes file, and at the end all that is not in a part.
class CodesFile {
 public:
  /// layouts: per column of the table of parts.
  CodesFile(const OutputFile& output, const CodesInfo& info, std::vector<Layout> layouts)
      : file_(h5::File::create(output)),
        info_(info),
        data_(file_, kDataPath, DType::u8, {}, 0,
              {.bytes = chunk_bytes_for(values_of(info)), .checksums = false}),
        parts_(data_),
        places_((info.documents.count() + 1) * layouts.size()) {
    for (Layout& layout : layouts) {
      totals_.emplace_back(layout.size());
      columns_.emplace_back(std::move(layout));
    }
  }

  const SideLayout& layout(uint64_t column) const { return columns_[column]; }

  /// Streams of that part, in the order of its layout.
  void write(const PartName& name, const PartSource& source) {
    const Layout& layout = layout_of_part(name);
    std::vector<uint64_t> rows;
    for (size_t i = 0; i < layout.size(); ++i) {
      rows.push_back(source.rows(i));
      write_stream(layout[i], i, rows.back(), source);
    }
    finish_part(name, rows);
  }

  /// A part of another file whose layout is the same, its bytes as they are.
  void copy(const PartName& name, const Part& part) {
    block_.resize(std::min(kBlockBytes, part.body_bytes()));
    for (uint64_t first = 0; first < part.body_bytes(); first += block_.size()) {
      const auto bytes =
          std::span(block_).first(std::min<uint64_t>(block_.size(), part.body_bytes() - first));
      part.read_body(first, bytes);
      parts_.append(bytes);
    }
    finish_part(name, part.rows());
  }

  void embed(const Book& book) { ledger_.embedded_book_bytes = write_book_at(file_, kBookPath, book, false); }

  void finish(const Provenance& provenance) {
    data_.finish();
    write_tables();
    ledger_.index_bytes += write_documents(file_, info_.documents, &info_.model);
    write_model(file_, info_.model, info_.documents.whole());
    file_.set_text(kRoot, "codec", info_.codec);
    file_.set_text(kRoot, "parameters", to_json_text(info_.parameters));
    file_.set_text(kRoot, "storage", std::string(name_of(info_.storage)));
    file_.set_text(kRoot, "source_dtype", std::string(name_of(info_.source_dtype)));
    file_.set_integer(kRoot, "layer_group", info_.layer_group);
    file_.set_extents(kRoot, "groups", std::vector<uint64_t>(info_.groups.begin(), info_.groups.end()));
    write_layouts();
    file_.set_text(kRoot, "book_type", info_.book_type);
    file_.set_text(kRoot, "book_digest", info_.book_digest);
    file_.set_integer(kRoot, "book_bytes", static_cast<int64_t>(info_.book_bytes));
    file_.set_integer(kRoot, "packed", info_.packed ? 1 : 0);
    if (info_.joint) file_.set_integer(kRoot, "joint", 1);
    file_.set_text(kRoot, "ledger", to_json_text(ledger_record()));
    write_file_type(file_, "codes", info_.model, provenance, info_.documents.whole());
    file_.close();
  }

  uint64_t bytes_of(uint64_t column, size_t stream) const { return totals_[column][stream].bytes; }

 private:
  const Layout& layout_of_part(const PartName& name) const {
    return name.row == 0 ? columns_[name.side].shared : columns_[name.side].own;
  }

  void write_stream(const StoredSpec& stream, size_t number, uint64_t rows, const PartSource& source) {
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

  void finish_part(const PartName& name, std::span<const uint64_t> rows) {
    PartPlace& place = places_[name.row * columns_.size() + name.side];
    place = parts_.finish(name, rows);
    const Layout& layout = layout_of_part(name);
    uint64_t streams = 0;
    for (size_t i = 0, own = 0; i < columns_[name.side].all.size(); ++i) {
      if (columns_[name.side].all[i].spec.shared != (name.row == 0)) continue;
      const uint64_t n = rows[own], bytes = layout[own].bytes(n);
      totals_[name.side][i].rows += n;
      totals_[name.side][i].bytes += bytes;
      streams += bytes;
      ++own;
    }
    ledger_.index_bytes += place.size - streams;
  }

  void write_tables() {
    const uint64_t shape[] = {info_.documents.count() + 1, columns_.size(), 2};
    h5::write_table(file_, kPartsPath, DType::u64, shape, std::as_bytes(std::span(places_)));
    ledger_.index_bytes += places_.size() * sizeof(PartPlace);
    h5::DatasetWriter totals(file_, kTotalsPath, DType::u64, {2});
    for (const auto& column : totals_)
      for (const auto& total : column) totals.append_values(std::span<const uint64_t>(&total.rows, 2));
    ledger_.index_bytes += totals.rows() * totals.row_bytes();
    totals.finish();
  }

  /// Each distinct layout once; tokens and positions have one of their own.
  void write_layouts() {
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

  Record ledger_record() const {
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

  h5::File file_;
  CodesInfo info_;
  h5::DatasetWriter data_;
  PartWriter parts_;
  std::vector<SideLayout> columns_;
  std::vector<PartPlace> places_;  // row by row
  std::vector<std::vector<CodesReader::Impl::Total>> totals_;
  Ledger ledger_;
  std::vector<std::byte> block_;
};

/// Layouts of all columns, for a codec.
std::vector<Layout> layouts_of(const CodesInfo& info, const Codec& codec, bool has_tokens,
                               DType position_type) {
  std::vector<Layout> layouts;
  for (const int layer : info.groups)
    for (const Side side : info.sides(layer))
      layouts.push_back(layout_of(codec.streams(shape_of(info, layer, side)), info.packed));
  layouts.push_back(index_layout(has_tokens, position_type));
  return layouts;
}

/// Tokens (none = their ids are not known) and positions of all documents.
struct Index {
  std::optional<std::vector<uint32_t>> tokens;
  std::vector<uint64_t> positions;

  DType type() const {
    return position_type(positions.empty() ? 0 : *std::max_element(positions.begin(), positions.end()));
  }

  void write(CodesFile& file, const CodesInfo& info) const {
    const std::vector<uint32_t> narrow(type() == DType::u32 ? positions.begin() : positions.end(),
                                       positions.end());
    for (size_t d = 0; d < info.documents.count(); ++d) {
      const uint64_t first = info.documents.offsets[d], length = info.documents.length(d);
      Arrays arrays;
      if (tokens) arrays.add(length, std::as_bytes(std::span(*tokens).subspan(first, length)));
      if (type() == DType::u32)
        arrays.add(length, std::as_bytes(std::span(narrow).subspan(first, length)));
      else
        arrays.add(length, std::as_bytes(std::span(positions).subspan(first, length)));
      file.write({d + 1, Columns(info).index()}, arrays);
    }
  }
};

/// One stream while its side is being written: rows of the document in work, or those that all share.
struct OpenStream {
  StreamSpec spec;
  uint64_t row_bytes = 0;
  SpillBuffer data;

  uint64_t rows() const { return data.size() / row_bytes; }
};

/// The side of a group in work: the StreamStore of its newest document.
class OpenSide final : public StreamStore {
 public:
  /// The tokens and their documents outlive it.
  OpenSide(uint64_t column, const SideLayout& layout, const OutputFile& output, const Index& index,
           const Documents& names)
      : column_(column), index_(index), names_(names) {
    for (const auto& [spec, bits] : layout.all)
      streams_.push_back({spec, spec.row_bytes(), SpillBuffer(output.path(), output.target())});
  }

  uint64_t column() const { return column_; }
  size_t documents() const { return documents_; }
  /// Documents that are already in the file.
  void skip(size_t documents) { documents_ = documents; }

  void begin_document() {
    ++documents_;
    for (OpenStream& stream : streams_)
      if (!stream.spec.shared) stream.data.truncate(0);
  }

  uint64_t rows(std::string_view name) const override { return find(name).rows(); }

  std::vector<uint32_t> token_ids(uint64_t first, uint64_t count) const override {
    if (!index_.tokens) return StreamReader::token_ids(first, count);
    const size_t newest = documents_ - 1;
    return ids_within(std::span(*index_.tokens).subspan(names_.offsets[newest], names_.length(newest)), first,
                      count);
  }

  void read(std::string_view name, uint64_t first, uint64_t count, std::span<std::byte> out) const override {
    const OpenStream& stream = find(name);
    const uint64_t there = stream.rows();
    if (first > there || count > there - first)
      throw bad_input("stream '{}' has {} rows; {} rows from row {} on are not all there", name, there, count,
                      first);
    if (out.size() != count * stream.row_bytes)
      throw failed("{} rows of stream '{}' are {} bytes, not {}", count, name, count * stream.row_bytes,
                   out.size());
    stream.data.read(first * stream.row_bytes, out);
  }

  void append(std::string_view name, std::span<const std::byte> bytes) override {
    OpenStream& stream = find(name);
    if (bytes.size() % stream.row_bytes != 0)
      throw failed("stream '{}' has rows of {} bytes; {} bytes are not a whole number of rows", name,
                   stream.row_bytes, bytes.size());
    stream.data.append(bytes);
  }

  void truncate(std::string_view name, uint64_t rows_left) override {
    OpenStream& stream = find(name);
    if (stream.spec.shared) throw failed("stream '{}' is shared by all documents and cannot be cut", name);
    if (rows_left > stream.rows())
      throw failed("stream '{}' has {} rows and cannot be cut to {}", name, stream.rows(), rows_left);
    stream.data.truncate(rows_left * stream.row_bytes);
  }

  /// Its own streams, or those that all documents share, as they go into a part.
  class Streams final : public PartSource {
   public:
    Streams(const OpenSide& side, bool shared) {
      for (const OpenStream& stream : side.streams_)
        if (stream.spec.shared == shared) streams_.push_back(&stream);
    }
    uint64_t rows(size_t stream) const override { return streams_[stream]->rows(); }
    void read(size_t stream, uint64_t first, uint64_t, std::span<std::byte> out) const override {
      streams_[stream]->data.read(first * streams_[stream]->row_bytes, out);
    }

   private:
    std::vector<const OpenStream*> streams_;
  };

 private:
  const OpenStream& find(std::string_view name) const {
    for (const OpenStream& stream : streams_)
      if (stream.spec.name == name) return stream;
    throw failed("there is no stream '{}'", name);
  }
  OpenStream& find(std::string_view name) { return const_cast<OpenStream&>(std::as_const(*this).find(name)); }

  uint64_t column_;
  const Index& index_;
  const Documents& names_;
  std::vector<OpenStream> streams_;
  size_t documents_ = 0;
};

void check_index(const CodesInfo& info, const Index& index) {
  const uint64_t positions = index.positions.size(), tokens = index.tokens ? index.tokens->size() : positions;
  if (positions != info.documents.tokens() || tokens != positions)
    throw failed("{} tokens and {} positions for documents of {}", tokens, positions,
                 info.documents.tokens());
  check_rising(info.documents, 0, index.positions, {}, "positions of the codes");
}

}  // namespace

struct CodesWriter::Impl {
  const OutputFile& output;
  CodesInfo info;
  Columns columns;
  const Codec& codec;
  const CodesReader::Impl* base;
  Index index;
  CodesFile file;
  std::unique_ptr<OpenSide> open;
  std::set<uint64_t> done;  // columns

  Impl(const OutputFile& out, const CodesInfo& what, const Codec& with, const CodesReader::Impl* extended,
       Index tokens)
      : output(out),
        info(what),
        columns(what),
        codec(with),
        base(extended),
        index(std::move(tokens)),
        file(out, what, layouts_of(what, with, index.tokens.has_value(), index.type())) {
    index.write(file, info);
  }

  size_t base_documents() const { return base ? base->info.documents.count() : 0; }
  std::string path(uint64_t column) const { return columns.path(column); }

  uint64_t column_of(Side side, int first_layer) const {
    if (const auto column = columns.find(side, first_layer)) return *column;
    throw failed("{}: no group begins at layer {}", output.target(), first_layer);
  }

  void open_side(uint64_t column) {
    close_side();
    if (!done.insert(column).second) throw failed("{}: {} was closed before", output.target(), path(column));
    open = std::make_unique<OpenSide>(column, file.layout(column), output, index, info.documents);
    if (base) copy_base();
  }

  /// All documents of the file that is extended, the last of them left open.
  void copy_base() {
    const uint64_t column = open->column();
    const SideLayout &stored = base->layout(column), &wanted = file.layout(column);
    if (stored.all != wanted.all)
      throw base->file.error(base->side_path(column), "is not what the codec stores there");
    if (!stored.shared.empty()) load(base->shared_part(column));
    const size_t documents = base_documents();
    if (documents == 0) return;
    for (size_t d = 0; d + 1 < documents; ++d) file.copy({d + 1, column}, *base->part({d + 1, column}));
    open->skip(documents - 1);
    open->begin_document();
    load(*base->part({documents, column}));
  }

  /// Appends what is stored to the open document.
  void load(const Part& part) {
    std::vector<std::byte> block;
    for (size_t i = 0; i < part.layout().size(); ++i) {
      const StreamSpec& spec = part.layout()[i].spec;
      const uint64_t rows = part.rows()[i], step = std::max<uint64_t>(1, kBlockBytes / spec.row_bytes());
      for (uint64_t first = 0; first < rows; first += step) {
        const uint64_t count = std::min(step, rows - first);
        block.resize(count * spec.row_bytes());
        part.read(i, first, count, block);
        open->append(spec.name, block);
      }
    }
  }

  /// Writes the newest document.
  void close_document() {
    if (open->documents() == 0) return;
    const size_t document = open->documents() - 1;
    const uint64_t column = open->column();
    const uint64_t found = codec.open(shape_of(info, columns, column), *open)->tokens(),
                   wanted = info.documents.held(columns.layer(column), document);
    if (found != wanted)
      throw failed("{}: {}: document {} was given {} tokens of {}", output.target(), path(column), document,
                   found, wanted);
    file.write({document + 1, column}, OpenSide::Streams(*open, false));
  }

  /// Closes the document before and opens the wanted one; what lies between are empty documents.
  void advance(size_t document) {
    while (open->documents() <= document) {
      close_document();
      open->begin_document();
    }
  }

  void close_side() {
    if (!open) return;
    if (info.documents.count() > 0) advance(info.documents.count() - 1);
    close_document();
    if (!file.layout(open->column()).shared.empty())
      file.write({0, open->column()}, OpenSide::Streams(*open, true));
    open.reset();
  }
};

namespace {

Index index_of(const CodesInfo& info, std::span<const uint32_t> tokens, std::span<const uint64_t> positions) {
  Index index{{}, {positions.begin(), positions.end()}};
  if (!tokens.empty() || positions.empty()) index.tokens.emplace(tokens.begin(), tokens.end());
  check_index(info, index);
  return index;
}

/// Those of a file, and behind them these.
Index extended(const OutputFile& output, const CodesReader& base, const CodesInfo& info,
               std::span<const uint32_t> tokens, std::span<const uint64_t> positions) {
  const uint64_t count = base.info().documents.tokens();
  Index index{{}, base.positions(0, count)};
  index.positions.insert(index.positions.end(), positions.begin(), positions.end());
  if (base.has_tokens()) {
    index.tokens = base.tokens(0, count);
    index.tokens->insert(index.tokens->end(), tokens.begin(), tokens.end());
  } else if (!tokens.empty()) {
    throw failed("{}: {} has no token ids; none can be added", output.target(), base.name());
  }
  check_index(info, index);
  return index;
}

/// Throws Error(failed) unless the documents of info are those of the base, the last one perhaps longer, and
/// more.
void check_extends(const OutputFile& output, const CodesReader& base, const CodesInfo& info) {
  const CodesInfo& before = base.info();
  const size_t documents = before.documents.count();
  if (info.groups != before.groups || info.layer_group != before.layer_group || info.joint != before.joint ||
      info.codec != before.codec || info.documents.count() < documents)
    throw failed("{}: is not {} extended", output.target(), base.name());
  for (size_t d = 0; d < documents; ++d) {
    const bool may_grow = d + 1 == documents;
    const uint64_t length = info.documents.length(d), length_before = before.documents.length(d);
    if (info.documents.names[d] != before.documents.names[d] || length < length_before ||
        (length > length_before && !may_grow))
      throw failed("{}: document {} is not that of {}", output.target(), d, base.name());
  }
}

}  // namespace

CodesWriter::CodesWriter(OutputFile& output, const CodesInfo& info, const Codec& codec,
                         std::span<const uint32_t> tokens, std::span<const uint64_t> positions,
                         const Book* embed_book)
    : impl_(std::make_unique<Impl>(output, info, codec, nullptr, index_of(info, tokens, positions))) {
  if (embed_book) impl_->file.embed(*embed_book);
}

CodesWriter::CodesWriter(OutputFile& output, const CodesReader& base, const CodesInfo& info,
                         const Codec& codec, std::span<const uint32_t> tokens,
                         std::span<const uint64_t> positions) {
  check_extends(output, base, info);
  impl_ = std::make_unique<Impl>(output, info, codec, base.impl_.get(),
                                 extended(output, base, info, tokens, positions));
  if (const auto book = base.embedded_book()) impl_->file.embed(*book);
}

CodesWriter::~CodesWriter() = default;

StreamStore& CodesWriter::document(Side side, int first_layer, size_t document) {
  Impl& s = *impl_;
  const uint64_t column = s.column_of(side, first_layer);
  if (document >= s.info.documents.count())
    throw failed("{}: there is no document {}, only {}", s.output.target(), document,
                 s.info.documents.count());
  if (!s.open || s.open->column() != column) s.open_side(column);
  if (document + 1 < s.open->documents())
    throw failed("{}: {}: document {} is closed; {} is the newest", s.output.target(), s.path(column),
                 document, s.open->documents() - 1);
  s.advance(document);
  return *s.open;
}

void CodesWriter::finish(const Provenance& provenance) {
  Impl& s = *impl_;
  for (const int layer : s.info.groups)
    for (const Side side : s.info.sides(layer))
      if (const uint64_t column = s.column_of(side, layer); !s.done.contains(column)) s.open_side(column);
  s.close_side();
  s.file.finish(provenance);
}

// Packing -------------------------------------------------------------------------------------------

namespace {

/// The same streams, packed or plain.
Layout repacked(const Layout& layout, bool pack) {
  std::vector<StreamSpec> specs;
  for (const StoredSpec& stream : layout) specs.push_back(stream.spec);
  return layout_of(specs, pack);
}

}  // namespace

RepackResult repack_indices(const CodesReader& input, OutputFile& output, bool pack,
                            const Provenance& provenance) {
  const CodesReader::Impl& s = *input.impl_;
  CodesInfo info = s.info;
  info.packed = pack;
  std::vector<Layout> layouts;
  for (uint64_t column = 0; column < s.columns().count(); ++column)
    layouts.push_back(repacked(s.layout(column).all, pack));
  CodesFile file(output, info, layouts);
  for (uint64_t i = 0; i < s.columns().count(); ++i) {
    const uint64_t column =
        (i + s.index_column()) % s.columns().count();  // tokens and positions first, as always
    const bool same = s.layout(column).all == layouts[column];
    for (uint64_t row = s.layout(column).shared.empty() ? 1 : 0; row <= info.documents.count(); ++row) {
      const auto part = s.part({row, column});
      if (same)
        file.copy({row, column}, *part);
      else
        file.write({row, column}, StoredPart(*part));
    }
  }
  if (const auto book = input.embedded_book()) file.embed(*book);
  file.finish(provenance);
  RepackResult result;
  for (uint64_t column = 0; column < s.index_column(); ++column)
    for (size_t i = 0; i < layouts[column].size(); ++i)
      if (layouts[column][i].spec.index_bound > 0) {
        result.index_bytes_before += s.totals[column][i].bytes;
        result.index_bytes_after += file.bytes_of(column, i);
      }
  return result;
}

}  // namespace kvcodec
