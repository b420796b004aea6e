// Writing of codes files: parts, the data outside of parts, and new codes document by document.
#include <bit>
#include <set>

#include "formats/cache/codes_io.hpp"
#include "lib/core/mapped.hpp"

namespace kvcodec {

/// Data that are held at first, until the size of the rest can be estimated.
constexpr uint64_t kHeldBytes = uint64_t{1} << 22;

// The file ---------------------------------------------------------------------------------------------

CodesFile::CodesFile(const OutputFile& output, const CodesInfo& info, std::vector<Layout> layouts,
                     const CodesReader* before)
    : file_(h5::File::create(output, 2 * values_of(info))),
      info_(info),
      numbering_(info),
      before_(before),
      data_(open_data()),
      parts_(data_),
      places_((info.documents.count() + 1) * layouts.size()),
      state_(before ? StateWriter(file_, before->impl().state, before->info().documents)
                    : StateWriter(file_)) {
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
  written_values_ = values_of(before.info);
  written_bytes_ = before.data->rows();
  // A file that grows by appends may reach any size, and keeps its chunk size.
  constexpr uint64_t kMinOfGrowing = uint64_t{1} << 16;
  chunks = {.bytes = std::max(chunk_bytes(), kMinOfGrowing), .checksums = false};
  return h5::DatasetWriter::behind(file_, *before.data, 0, chunks);
}

/// Size of a chunk of the data, in bytes: the unused end of the last chunk and the table of all chunks should both be small
/// relative to the file, whose size is extrapolated from its content so far.
uint64_t CodesFile::chunk_bytes() const {
  constexpr uint64_t kMin = uint64_t{1} << 12, kChunks = 256;
  const uint64_t all = values_of(info_);
  const double per_value =
      written_values_ == 0 ? 2.0 : static_cast<double>(written_bytes_) / static_cast<double>(written_values_);
  const double expected = per_value * static_cast<double>(all);
  return std::clamp(std::bit_floor(static_cast<uint64_t>(expected) / kChunks), kMin, kHeldBytes);
}

/// Takes over the content of the previous file, which stays.
void CodesFile::take_over(const CodesReader& before) {
  const CodesReader::Impl& s = before.impl();
  const std::vector<PartPlace> places = s.all_places();
  if (s.columns.count() != columns_.size() || places.size() > places_.size())
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

void CodesFile::write(const PartName& name, std::span<const uint64_t> rows, const ReadRows& read) {
  if (PartPlace& before = place(name); before.size > 0) {  // no longer counts
    count(name, before_->impl().part(name)->rows(), before.size, false);
    before = {};
  }
  const Layout& layout = columns_[name.column].of_row(name.row);
  for (size_t i = 0; i < layout.size(); ++i) {
    const StoredSpec& stream = layout[i];
    // Eight rows take whole bytes at any width, so blocks can be packed separately.
    const uint64_t step = std::max<uint64_t>(1, kBlockBytes / stream.spec.row_bytes() / 8) * 8;
    for_each_run(rows[i], step, [&](uint64_t first, uint64_t number) {
      block_.resize(number * stream.spec.row_bytes());
      read(i, first, number, block_);
      if (stream.packed_bits == 0) return parts_.append(block_);
      parts_.append(with_context(fmt::format("{}: stream '{}'", file_.name(), stream.spec.name),
                                 [&] { return pack_elements(stream.spec, block_, stream.packed_bits); }));
    });
  }
  finish_part(name, rows);
}

void CodesFile::copy(const PartName& name, const Part& part) {
  part.visit_body([&](std::span<const std::byte> bytes) { parts_.append(bytes); });
  finish_part(name, part.rows());
}

void CodesFile::write_index(size_t document, std::span<const uint32_t> tokens,
                            std::span<const uint64_t> positions) {
  const uint64_t column = columns_.size() - 1;
  const Layout& own = columns_[column].own;
  const std::vector<uint64_t> rows(own.size(), positions.size());
  write({document + 1, column}, rows, [&](size_t stream, uint64_t first, uint64_t number, auto out) {
    if (stream + 1 < own.size())
      std::ranges::copy(std::as_bytes(tokens.subspan(first, number)), out.begin());
    else if (own.back().spec.type == DType::u64)
      std::ranges::copy(std::as_bytes(positions.subspan(first, number)), out.begin());
    else
      std::ranges::copy(positions.subspan(first, number), reinterpret_cast<uint32_t*>(out.data()));
  });
}

void CodesFile::finish(const Provenance& provenance) {
  data_.finish();
  write_tables();
  ledger_.index_bytes += write_documents(file_, info_.documents, info_.model);
  ledger_.state_bytes = state_.finish(info_.documents.count());
  write_model(file_, info_.model);
  file_.set_text(kRoot, "codec", info_.codec);
  write_record(file_, kRoot, "parameters", info_.parameters);
  file_.set_text(kRoot, "storage", std::string(name_of(info_.storage)));
  file_.set_text(kRoot, "source_dtype", std::string(name_of(info_.source_dtype)));
  file_.set_integer(kRoot, "layer_group", info_.layer_group);
  file_.set_extents(kRoot, "groups", std::vector<uint64_t>(info_.groups.begin(), info_.groups.end()));
  if (!info_.group_of_layer.empty()) {
    const auto numbers = mapped<uint64_t>(info_.group_of_layer, [&](int group) {
      return static_cast<uint64_t>(group < 0 ? info_.model.num_layers : group);
    });
    file_.set_extents(kRoot, kGroupOfLayer, numbers);
  }
  write_layouts();
  write_shared_places();
  file_.set_text(kRoot, "book_type", info_.book_type);
  file_.set_text(kRoot, "book_digest", info_.book_digest);
  file_.set_integer(kRoot, "book_bytes", static_cast<int64_t>(info_.book_bytes));
  file_.set_integer(kRoot, "packed", info_.packed ? 1 : 0);
  if (info_.joint) file_.set_integer(kRoot, "joint", 1);
  write_record(file_, kRoot, "ledger", ledger_record());
  write_file_type(file_, "codes", provenance);
  file_.close();
}

void CodesFile::finish_part(const PartName& name, std::span<const uint64_t> rows) {
  PartPlace& written = place(name) = parts_.finish(name, rows);
  count(name, rows, written.size, true);
  written_bytes_ += written.size;
  if (name.row > 0 && name.column < numbering_.index())
    written_values_ += info_.documents.held(numbering_.layer(name.column), name.row - 1) *
                       numbering_.shape(info_, name.column).width();
}

/// Adds a part to the totals, or subtracts it.
void CodesFile::count(const PartName& name, std::span<const uint64_t> rows, uint64_t size, bool add) {
  const auto change = [add](uint64_t& sum, uint64_t by) { sum = add ? sum + by : sum - by; };
  uint64_t streams = 0;
  for (size_t i = 0, own = 0; i < columns_[name.column].all.size(); ++i) {
    const StoredSpec& stream = columns_[name.column].all[i];
    if (stream.spec.shared != (name.row == 0)) continue;
    const uint64_t n = rows[own++], bytes = stream.bytes(n);
    change(totals_[name.column][i].rows, n);
    change(totals_[name.column][i].bytes, bytes);
    streams += bytes;
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

/// Writes each distinct layout once; tokens and positions have their own.
void CodesFile::write_layouts() {
  std::vector<std::string> texts;
  std::vector<uint64_t> numbers;
  for (uint64_t column = 0; column < columns_.size(); ++column) {
    const bool index = column + 1 == columns_.size();
    const std::string text = to_json_text(columns_[column].all, index ? kIndexCategory : "");
    auto known = std::ranges::find(texts, text);
    if (known == texts.end()) known = texts.insert(known, text);
    numbers.push_back(static_cast<uint64_t>(known - texts.begin()));
  }
  file_.set_texts(kRoot, "layouts", texts);
  file_.set_extents(kRoot, "side_layout", numbers);
}

void CodesFile::write_shared_places() {
  // A smaller table is read together with the end of the file anyway. Attributes share the 64 KiB of an object's header; with
  // thousands of columns the table alone must suffice.
  constexpr size_t kReadAlong = size_t{1} << 16, kMaxColumns = 512;
  const auto shared = std::span(places_).first(columns_.size());
  const bool any = std::ranges::any_of(shared, [](const PartPlace& part) { return part.size > 0; });
  if (!any || places_.size() * sizeof(PartPlace) <= kReadAlong || shared.size() > kMaxColumns) return;
  std::vector<uint64_t> numbers;
  numbers.reserve(2 * shared.size());
  for (const PartPlace& part : shared) numbers.insert(numbers.end(), {part.begin, part.size});
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
  if (ledger_.state_bytes > 0) record.set("state", static_cast<int64_t>(ledger_.state_bytes));
  record.set("embedded_book", static_cast<int64_t>(ledger_.embedded_book_bytes));
  return record;
}

// New codes --------------------------------------------------------------------------------------------

namespace {

/// Ids (empty: they are not known) and positions of the written tokens, those of the documents from `first` on.
struct Index {
  std::optional<std::vector<uint32_t>> tokens;
  std::vector<uint64_t> positions;
  size_t first = 0;          // document
  uint64_t first_token = 0;  // of that document

  DType type() const { return position_type(positions.empty() ? 0 : std::ranges::max(positions)); }
};

/// One stream of the side that is being written: rows of the current document, or those that all documents share.
struct OpenStream {
  StreamSpec spec;
  uint64_t row_bytes = 0;
  SpillBuffer data;

  uint64_t rows() const { return data.size() / row_bytes; }
};

/// The side of a group that is being written: the StreamStore of its newest document.
class OpenSide final : public StreamStore {
 public:
  /// The tokens and their documents outlive this object.
  OpenSide(uint64_t number, const SideLayout& layout, const OutputFile& output, const Index& index,
           const Documents& names)
      : column(number), index_(index), names_(names) {
    for (const auto& [spec, bits] : layout.all)
      streams_.push_back({spec, spec.row_bytes(), SpillBuffer(output.path(), output.target())});
  }

  const uint64_t column;
  size_t documents = 0;  ///< so far, those that were in the file among them

  void begin_document() {
    ++documents;
    for (OpenStream& stream : streams_)
      if (!stream.spec.shared) stream.data.truncate(0);
  }

  uint64_t rows(std::string_view name) const override { return find(name).rows(); }

  std::vector<uint32_t> token_ids(uint64_t first, uint64_t count) const override {
    if (!index_.tokens) return StreamReader::token_ids(first, count);
    const size_t newest = documents - 1;
    return ids_within(
        std::span(*index_.tokens).subspan(names_.offsets[newest] - index_.first_token, names_.length(newest)),
        first, count);
  }

  void read(std::string_view name, uint64_t first, uint64_t count, std::span<std::byte> out) const override {
    const OpenStream& stream = find(name);
    const uint64_t there = stream.rows();
    if (first > there || count > there - first)
      throw bad_input("stream '{}' has {} rows; {} rows from row {} on are not all there", name, there, count,
                      first);
    if (out.size() != count * stream.row_bytes)
      throw internal_error("{} rows of stream '{}' are {} bytes, not {}", count, name,
                           count * stream.row_bytes, out.size());
    stream.data.read(first * stream.row_bytes, out);
  }

  void append(std::string_view name, std::span<const std::byte> bytes) override {
    OpenStream& stream = find(name);
    if (bytes.size() % stream.row_bytes != 0)
      throw internal_error("stream '{}' has rows of {} bytes; {} bytes are not a whole number of rows", name,
                           stream.row_bytes, bytes.size());
    stream.data.append(bytes);
  }

  void truncate(std::string_view name, uint64_t rows_left) override {
    OpenStream& stream = find(name);
    if (stream.spec.shared)
      throw internal_error("stream '{}' is shared by all documents and cannot be cut", name);
    if (rows_left > stream.rows())
      throw internal_error("stream '{}' has {} rows and cannot be cut to {}", name, stream.rows(), rows_left);
    stream.data.truncate(rows_left * stream.row_bytes);
  }

  /// Its own streams, or those that all documents share, in their order.
  std::vector<const OpenStream*> streams(bool shared) const {
    std::vector<const OpenStream*> chosen;
    for (const OpenStream& stream : streams_)
      if (stream.spec.shared == shared) chosen.push_back(&stream);
    return chosen;
  }

 private:
  const OpenStream& find(std::string_view name) const {
    const auto found = std::ranges::find(
        streams_, name, [](const OpenStream& one) { return std::string_view(one.spec.name); });
    if (found == streams_.end()) throw internal_error("there is no stream '{}'", name);
    return *found;
  }
  OpenStream& find(std::string_view name) { return const_cast<OpenStream&>(std::as_const(*this).find(name)); }

  const Index& index_;
  const Documents& names_;
  std::vector<OpenStream> streams_;
};

}  // namespace

struct CodesWriter::Impl {
  const OutputFile& output;
  CodesInfo info;
  Columns columns;
  const Codec& codec;
  const CodesReader::Impl* base;
  const CodesReader::Impl* alike = nullptr;  // the source of shared streams
  bool in_place;                             // base is the output, which keeps its content
  Index index;
  CodesFile file;
  std::unique_ptr<OpenSide> open;
  std::set<uint64_t> done;  // columns

  Impl(const OutputFile& out, const CodesInfo& what, const Codec& with, const CodesReader* extended,
       Index tokens)
      : output(out),
        info(what),
        columns(what),
        codec(with),
        base(extended ? &extended->impl() : nullptr),
        in_place(out.in_place() != nullptr),
        index(std::move(tokens)),
        file(out, what, layouts(), in_place ? extended : nullptr) {
    for (size_t d = index.first; d < info.documents.count(); ++d) {
      const uint64_t begin = info.documents.offsets[d] - index.first_token, length = info.documents.length(d);
      file.write_index(d,
                       index.tokens ? std::span<const uint32_t>(*index.tokens).subspan(begin, length)
                                    : std::span<const uint32_t>(),
                       std::span(index.positions).subspan(begin, length));
      file.write_state(d, info.documents.facts_of(d));
    }
  }

  std::vector<Layout> layouts() const {
    std::vector<Layout> all;
    for (uint64_t column = 0; column < columns.index(); ++column)
      all.push_back(layout_of(codec.streams(columns.shape(info, column)), info.packed));
    all.push_back(in_place ? base->layout(base->index_column()).all
                           : index_layout(index.tokens.has_value(), index.type()));
    return all;
  }

  uint64_t column_of(Side side, int first_layer) const {
    if (const auto column = columns.find(side, first_layer)) return *column;
    throw failed("{}: no group begins at layer {}", output.target(), first_layer);
  }

  void open_side(uint64_t column) {
    close_side();
    if (!done.insert(column).second)
      throw failed("{}: {} was closed before", output.target(), columns.path(column));
    open = std::make_unique<OpenSide>(column, file.layout(column), output, index, info.documents);
    if (alike) take_shared(*alike);
    if (base) go_on();
  }

  /// Begins with the shared streams of that file.
  void take_shared(const CodesReader::Impl& from) {
    const SideLayout& stored = from.layout(open->column);
    if (stored.all != file.layout(open->column).all)
      throw from.file.error(from.columns.path(open->column), "is not what the codec stores there");
    if (!stored.shared.empty()) load(from.shared_part(open->column));
  }

  /// Continues after the documents of the file that is extended, the last of which stays open; a file that is not changed in place
  /// gets a copy of them.
  void go_on() {
    take_shared(*base);
    const uint64_t column = open->column;
    const size_t documents = base->info.documents.count();
    open->documents = documents;
    if (documents == 0 || (in_place && documents == index.first)) return;  // the last one does not grow
    for (size_t d = 0; !in_place && d + 1 < documents; ++d)
      file.copy({d + 1, column}, *base->part({d + 1, column}));
    --open->documents;
    open->begin_document();
    load(*base->part({documents, column}));
  }

  /// Appends a stored part to the open document.
  void load(const Part& part) {
    std::vector<std::byte> block;
    for (size_t i = 0; i < part.layout().size(); ++i)
      for_each_run(part.rows()[i], part.layout()[i].block_rows(), [&](uint64_t first, uint64_t count) {
        const StreamSpec& spec = part.layout()[i].spec;
        block.resize(count * spec.row_bytes());
        part.read(i, first, count, block);
        open->append(spec.name, block);
      });
  }

  void write(const PartName& name, std::span<const OpenStream* const> streams) {
    const auto rows = mapped<uint64_t>(streams, &OpenStream::rows);
    file.write(name, rows, [&](size_t stream, uint64_t first, uint64_t, auto out) {
      streams[stream]->data.read(first * streams[stream]->row_bytes, out);
    });
  }

  /// Writes the newest document, unless it is stored already without a change.
  void close_document() {
    if (open->documents == 0) return;
    const size_t document = open->documents - 1;
    const uint64_t column = open->column;
    if (in_place && document < index.first) return;
    const uint64_t found = codec.open(columns.shape(info, column), *open)->tokens(),
                   wanted = info.documents.held(columns.layer(column), document);
    if (found != wanted)
      throw failed("{}: {}: document {} was given {} tokens of {}", output.target(), columns.path(column),
                   document, found, wanted);
    write({document + 1, column}, open->streams(false));
  }

  /// True if the file that is changed in place already has that shared stream.
  bool is_stored(size_t number, const OpenStream& stream) const {
    const Part& part = base->shared_part(open->column);
    if (stream.rows() != part.rows()[number]) return false;
    bool same = true;
    std::vector<std::byte> block, stored;
    for_each_run(stream.rows(), part.layout()[number].block_rows(), [&](uint64_t first, uint64_t count) {
      block.resize(count * stream.row_bytes);
      stored.resize(block.size());
      stream.data.read(first * stream.row_bytes, block);
      part.read(number, first, count, stored);
      same = same && block == stored;
    });
    return same;
  }

  /// Closes the previous document and opens the wanted one; the documents in between are empty.
  void advance(size_t document) {
    while (open->documents <= document) {
      close_document();
      open->begin_document();
    }
  }

  void close_side() {
    if (!open) return;
    if (info.documents.count() > 0) advance(info.documents.count() - 1);
    close_document();
    const auto shared = open->streams(true);
    bool known = in_place;
    for (size_t i = 0; i < shared.size() && known; ++i) known = is_stored(i, *shared[i]);
    if (!shared.empty() && !known) write({0, open->column}, shared);
    open.reset();
  }
};

/// These tokens, behind those of a file that is extended. In a file that is changed in place, only those of the last document are
/// written again, if it grows.
static Index index_of(const OutputFile& output, const CodesReader* base, const CodesInfo& info,
                      const TokenRun& tokens) {
  Index index;
  if (base) {
    const Documents& before = base->info().documents;
    if (output.in_place()) index.first = before.count();
    if (index.first > 0 && info.documents.length(index.first - 1) > before.length(index.first - 1))
      --index.first;
    index.first_token = before.offsets[index.first];
    const uint64_t count = before.tokens() - index.first_token;
    index.positions = base->positions(index.first_token, count);
    if (base->has_tokens())
      index.tokens = base->tokens(index.first_token, count);
    else if (!tokens.ids.empty())
      throw failed("{}: {} has no token ids; none can be added", output.target(), base->name());
  } else if (!tokens.ids.empty() || tokens.positions.empty()) {
    index.tokens.emplace();
  }
  index.positions.insert(index.positions.end(), tokens.positions.begin(), tokens.positions.end());
  if (index.tokens) index.tokens->insert(index.tokens->end(), tokens.ids.begin(), tokens.ids.end());
  const uint64_t positions = index.positions.size(), ids = index.tokens ? index.tokens->size() : positions,
                 wanted = info.documents.tokens() - index.first_token;
  if (positions != wanted || ids != positions)
    throw failed("{} tokens and {} positions for documents of {}", ids, positions, wanted);
  check_rising(info.documents, index.first_token, index.positions, {}, "positions of the codes");
  return index;
}

/// Throws Error(failed) unless the documents of info are those of the base, the last one possibly longer, optionally followed by
/// others.
static void check_extends(const OutputFile& output, const CodesReader& base, const CodesInfo& info) {
  const CodesInfo& before = base.info();
  const size_t documents = before.documents.count();
  if (info.groups != before.groups || info.layer_group != before.layer_group ||
      info.group_of_layer != before.group_of_layer || info.joint != before.joint ||
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

CodesWriter::CodesWriter(OutputFile& output, const CodesInfo& info, const Codec& codec,
                         const TokenRun& tokens, const Book* embed_book, const CodesReader* alike)
    : impl_(std::make_unique<Impl>(output, info, codec, nullptr, index_of(output, nullptr, info, tokens))) {
  if (alike) impl_->alike = &alike->impl();
  if (embed_book) impl_->file.embed(*embed_book);
}

CodesWriter::CodesWriter(OutputFile& output, const CodesReader& base, const CodesInfo& info,
                         const Codec& codec, const TokenRun& tokens) {
  check_extends(output, base, info);
  impl_ = std::make_unique<Impl>(output, info, codec, &base, index_of(output, &base, info, tokens));
  if (const auto book = base.embedded_book(); book && !output.in_place()) impl_->file.embed(*book);
}

bool CodesWriter::can_change_in_place(const CodesReader& base, std::span<const uint64_t> positions) {
  const CodesReader::Impl& s = base.impl();
  return s.layout(s.index_column()).own.back().spec.type == DType::u64 ||
         std::ranges::all_of(positions,
                             [](uint64_t position) { return position_type(position) == DType::u32; });
}

CodesWriter::~CodesWriter() = default;

StreamStore& CodesWriter::document(Side side, int first_layer, size_t document) {
  Impl& s = *impl_;
  const uint64_t column = s.column_of(side, first_layer);
  if (document >= s.info.documents.count())
    throw failed("{}: there is no document {}, only {}", s.output.target(), document,
                 s.info.documents.count());
  if (!s.open || s.open->column != column) s.open_side(column);
  if (document + 1 < s.open->documents)
    throw failed("{}: {}: document {} is closed; {} is the newest", s.output.target(), s.columns.path(column),
                 document, s.open->documents - 1);
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

}  // namespace kvcodec
