#include <algorithm>
#include <bit>
#include <set>

#include "formats/cache/codes_file.hpp"
#include "formats/cache/codes_io.hpp"
#include "formats/cache/codes_output.hpp"
#include "formats/cache/header_io.hpp"
#include "formats/cache/record_json.hpp"
#include "formats/io/spill.hpp"
#include "lib/core/checked.hpp"

namespace kvcodec {
namespace {

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

/// Tokens (none = their ids are not known) and positions of the documents that are written, those from `first` on.
struct Index {
  std::optional<std::vector<uint32_t>> tokens;
  std::vector<uint64_t> positions;
  size_t first = 0;          // document
  uint64_t first_token = 0;  // of that document

  DType type() const {
    return position_type(positions.empty() ? 0 : *std::max_element(positions.begin(), positions.end()));
  }

  void write(CodesFile& file, const CodesInfo& info) const {
    for (size_t d = first; d < info.documents.count(); ++d) {
      const uint64_t begin = info.documents.offsets[d] - first_token, length = info.documents.length(d);
      file.write_index(d, tokens ? std::span(*tokens).subspan(begin, length) : std::span<const uint32_t>(),
                       std::span(positions).subspan(begin, length));
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
    throw internal_error("there is no stream '{}'", name);
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
  const uint64_t wanted = info.documents.tokens() - index.first_token;
  if (positions != wanted || tokens != positions)
    throw failed("{} tokens and {} positions for documents of {}", tokens, positions, wanted);
  check_rising(info.documents, index.first_token, index.positions, {}, "positions of the codes");
}

}  // namespace

struct CodesWriter::Impl {
  const OutputFile& output;
  CodesInfo info;
  Columns columns;
  const Codec& codec;
  const CodesReader::Impl* base;
  const CodesReader::Impl* alike = nullptr;  // whose shared streams are taken over
  bool in_place;                             // base is the output, which keeps what it has
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
        file(out, what, all_layouts(), in_place ? extended : nullptr) {
    index.write(file, info);
  }

  std::vector<Layout> all_layouts() const {
    auto layouts = layouts_of(info, codec, index.tokens.has_value(), index.type());
    if (in_place) layouts.back() = base->layout(base->index_column()).all;
    return layouts;
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
    if (alike) take_shared(*alike);
    if (base) go_on();
  }

  /// Begins with what all documents share in that file.
  void take_shared(const CodesReader::Impl& from) {
    const SideLayout& stored = from.layout(open->column());
    if (stored.all != file.layout(open->column()).all)
      throw from.file.error(from.side_path(open->column()), "is not what the codec stores there");
    if (!stored.shared.empty()) load(from.shared_part(open->column()));
  }

  /// Goes on behind the documents of the file that is extended, the last of which is left open; a file that is not
  /// changed in place takes a copy of them.
  void go_on() {
    take_shared(*base);
    const uint64_t column = open->column();
    const size_t documents = base_documents();
    if (in_place && documents == index.first) return open->skip(documents);  // it does not grow
    if (documents == 0) return;
    for (size_t d = 0; !in_place && d + 1 < documents; ++d)
      file.copy({d + 1, column}, *base->part({d + 1, column}));
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

  /// Writes the newest document, if it is not there as it is.
  void close_document() {
    if (open->documents() == 0) return;
    const size_t document = open->documents() - 1;
    const uint64_t column = open->column();
    if (in_place && document < index.first) return;
    const uint64_t found = codec.open(shape_of(info, columns, column), *open)->tokens(),
                   wanted = info.documents.held(columns.layer(column), document);
    if (found != wanted)
      throw failed("{}: {}: document {} was given {} tokens of {}", output.target(), path(column), document,
                   found, wanted);
    file.write({document + 1, column}, OpenSide::Streams(*open, false));
  }

  /// Whether what all documents share is what the file has that is changed in place.
  bool is_stored(const OpenSide::Streams& shared) const {
    if (!in_place) return false;
    const Part& part = base->shared_part(open->column());
    std::vector<std::byte> block, stored;
    for (size_t i = 0; i < part.layout().size(); ++i) {
      const uint64_t rows = part.rows()[i],
                     step = std::max<uint64_t>(1, kBlockBytes / part.layout()[i].spec.row_bytes());
      if (shared.rows(i) != rows) return false;
      for (uint64_t first = 0; first < rows; first += step) {
        const uint64_t count = std::min(step, rows - first);
        block.resize(count * part.layout()[i].spec.row_bytes());
        stored.resize(block.size());
        shared.read(i, first, count, block);
        part.read(i, first, count, stored);
        if (block != stored) return false;
      }
    }
    return true;
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
    const OpenSide::Streams shared(*open, true);
    if (!file.layout(open->column()).shared.empty() && !is_stored(shared))
      file.write({0, open->column()}, shared);
    open.reset();
  }
};

namespace {

Index index_of(const CodesInfo& info, std::span<const uint32_t> tokens, std::span<const uint64_t> positions) {
  Index index;
  index.positions.assign(positions.begin(), positions.end());
  if (!tokens.empty() || positions.empty()) index.tokens.emplace(tokens.begin(), tokens.end());
  check_index(info, index);
  return index;
}

/// Documents of the base that are not written anew, because it is changed in place: all but the last one if that grows.
size_t documents_that_stay(const CodesReader& base, const CodesInfo& info) {
  const size_t documents = base.info().documents.count();
  const bool grows =
      documents > 0 && info.documents.length(documents - 1) > base.info().documents.length(documents - 1);
  return documents - grows;
}

/// Those of a file, and behind them these.
Index extended(const OutputFile& output, const CodesReader& base, const CodesInfo& info,
               std::span<const uint32_t> tokens, std::span<const uint64_t> positions) {
  Index index;
  if (output.in_place()) index.first = documents_that_stay(base, info);
  index.first_token = base.info().documents.offsets[index.first];
  const uint64_t count = base.info().documents.tokens() - index.first_token;
  index.positions = base.positions(index.first_token, count);
  index.positions.insert(index.positions.end(), positions.begin(), positions.end());
  if (base.has_tokens()) {
    index.tokens = base.tokens(index.first_token, count);
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
                         const Book* embed_book, const CodesReader* alike)
    : impl_(std::make_unique<Impl>(output, info, codec, nullptr, index_of(info, tokens, positions))) {
  if (alike) impl_->alike = &alike->impl();
  if (embed_book) impl_->file.embed(*embed_book);
}

CodesWriter::CodesWriter(OutputFile& output, const CodesReader& base, const CodesInfo& info,
                         const Codec& codec, std::span<const uint32_t> tokens,
                         std::span<const uint64_t> positions) {
  check_extends(output, base, info);
  impl_ = std::make_unique<Impl>(output, info, codec, &base, extended(output, base, info, tokens, positions));
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

}  // namespace kvcodec
