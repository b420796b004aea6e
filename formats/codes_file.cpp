#include "formats/codes_file.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include "formats/book_io.hpp"
#include "formats/h5.hpp"
#include "formats/header_io.hpp"
#include "formats/record_json.hpp"
#include "formats/spill.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/parallel.hpp"
#include "lib/entropy/pack.hpp"

namespace kvcodec {
namespace {

constexpr char kRoot[] = "/";
constexpr char kBookGroup[] = "/book";
constexpr std::string_view kOffsetSuffix = ".offset";  // no stream name has a dot
constexpr uint64_t kMaxToken = std::numeric_limits<uint32_t>::max();
constexpr uint64_t kMaxNumber = std::numeric_limits<int64_t>::max();

/// Bytes handled at a time when streams are copied, packed or unpacked.
constexpr uint64_t kBlockBytes = h5::kChunkBytes;

using Place = std::pair<int, Side>;  // first layer of a group, and the side

std::string side_path(const Place& place) { return layer_path(place.first, name_of(place.second)); }

GroupShape shape_of(const CodesInfo& info, const Place& place) {
  return {place.first, info.layer_group, info.model.num_kv_heads, info.model.head_dim, place.second};
}

Category category_from_name(std::string_view name, const h5::Dataset& dataset) {
  for (const Category category : kCategories)
    if (name_of(category) == name) return category;
  throw dataset.error(
      "attribute 'category' is '{}'; {} are possible", name,
      fmt::join(std::vector<std::string_view>{"payload", "ids", "scales", "tables", "offsets", "exempt"},
                ", "));
}

DType dtype_attribute(const h5::File& file, const std::string& object, const std::string& name) {
  const std::string text = file.text(object, name);
  try {
    return dtype_from_name(text);
  } catch (const Error&) {
    throw file.error(object, "attribute '{}' is '{}', which is no element type", name, text);
  }
}

bool is_stream_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

/// Bits an element of that stream takes when index streams are packed; 0 = it stays as it is.
unsigned packed_width(const StreamSpec& spec) {
  const bool packable = spec.type == DType::u8 || spec.type == DType::u16 || spec.type == DType::u32;
  if (spec.index_bound == 0 || spec.shared || !packable) return 0;
  const unsigned bits = index_bits(spec.index_bound);
  return bits < 8 * size_of(spec.type) ? bits : 0;
}

/// Calls f with a span of the elements of an index stream; bytes are aligned for them.
template <class Bytes, class Body>
void with_elements(DType type, Bytes bytes, Body&& body) {
  const auto as = [&]<class T>(T) {
    using Element = std::conditional_t<std::is_const_v<typename Bytes::element_type>, const T, T>;
    body(std::span<Element>(reinterpret_cast<Element*>(bytes.data()), bytes.size() / sizeof(T)));
  };
  switch (type) {
    case DType::u8:
      return as(uint8_t{});
    case DType::u16:
      return as(uint16_t{});
    default:
      return as(uint32_t{});
  }
}

/// Elements per piece of parallel (un)packing; a multiple of 8, so that every piece begins at a whole byte if
/// the first does.
constexpr size_t kPackPiece = size_t{1} << 16;

void unpack_elements(const StreamSpec& spec, std::span<const std::byte> in, uint64_t first_bit, unsigned bits,
                     std::span<std::byte> out) {
  const std::span packed(reinterpret_cast<const uint8_t*>(in.data()), in.size());
  with_elements(spec.type, out, [&](auto elements) {
    parallel_for(elements.size(), kPackPiece, [&](size_t begin, size_t end, int) {
      unpack_bits(packed, first_bit + begin * bits, bits, spec.index_bound,
                  elements.subspan(begin, end - begin));
    });
  });
}

std::vector<std::byte> pack_elements(const StreamSpec& spec, std::span<const std::byte> in, unsigned bits) {
  std::vector<std::byte> out(packed_bytes(in.size() / size_of(spec.type), bits));
  const std::span packed(reinterpret_cast<uint8_t*>(out.data()), out.size());
  with_elements(spec.type, in, [&](auto elements) {
    parallel_for(elements.size(), kPackPiece, [&](size_t begin, size_t end, int) {
      const uint64_t first_byte = begin * bits / 8;
      pack_bits(elements.subspan(begin, end - begin), bits, spec.index_bound,
                packed.subspan(first_byte, packed_bytes(end - begin, bits)));
    });
  });
  return out;
}

// Streams as they lie in the file -------------------------------------------------------------------

/// One stream of one side of a group, all documents.
struct StreamData {
  StreamSpec spec;
  h5::Dataset dataset;
  unsigned packed_bits = 0;
  std::shared_ptr<const std::vector<uint64_t>>
      offsets;                  // first row per document, and the end; none if shared
  std::vector<uint64_t> bytes;  // first byte per document, and the end; only if packed

  uint64_t rows() const { return offsets ? offsets->back() : dataset.rows(); }
  uint64_t rows(size_t document) const {
    return spec.shared ? dataset.rows() : (*offsets)[document + 1] - (*offsets)[document];
  }

  void read(size_t document, uint64_t first, uint64_t count, std::span<std::byte> out) const {
    const uint64_t there = rows(document);
    if (first > there || count > there - first)
      throw dataset.error("document {} has {} rows; {} rows from row {} on are not all there", document,
                          there, count, first);
    if (out.size() != count * spec.row_bytes())
      throw failed("{} rows of stream '{}' are {} bytes, not {}", count, spec.name, count * spec.row_bytes(),
                   out.size());
    if (packed_bits > 0) return read_packed(document, first, count, out);
    dataset.read((spec.shared ? 0 : (*offsets)[document]) + first, count, out);
  }

  void read_packed(size_t document, uint64_t first, uint64_t count, std::span<std::byte> out) const {
    const uint64_t row_elements = spec.row_elements();
    const uint64_t first_bit = first * row_elements * packed_bits;
    const uint64_t end_bit = (first + count) * row_elements * packed_bits;
    const uint64_t first_byte = first_bit / 8, end_byte = (end_bit + 7) / 8;
    std::vector<std::byte> packed(end_byte - first_byte);
    dataset.read(bytes[document] + first_byte, packed.size(), packed);
    with_context(fmt::format("{}: document {}", dataset.where(), document),
                 [&] { unpack_elements(spec, packed, first_bit % 8, packed_bits, out); });
  }

  /// Rows counted over all documents; none of them may be packed.
  void read_all(uint64_t first, uint64_t count, std::span<std::byte> out) const {
    dataset.read(first, count, out);
  }
};

}  // namespace

// Reading -------------------------------------------------------------------------------------------

struct CodesReader::Impl {
  FileType type;
  h5::File file;
  CodesInfo info;
  std::optional<h5::Dataset> tokens;
  std::optional<h5::Dataset> positions;
  std::map<Place, std::vector<StreamData>> sides;
  std::map<std::string, std::shared_ptr<const std::vector<uint64_t>>>
      offset_arrays;          // by identity of the dataset
  uint64_t offset_bytes = 0;  // of the distinct ones
  std::shared_ptr<const std::vector<uint64_t>> document_offsets;

  explicit Impl(const std::string& name) : file(open_file(name, "codes", type)) {
    info.model = read_model(file);
    info.documents = read_documents(file);
    document_offsets = std::make_shared<const std::vector<uint64_t>>(info.documents.offsets);
    if (file.has("/tokens")) tokens = column("/tokens");
    positions = column("/positions");
    read_attributes();
    read_groups();
    for (const int layer : info.groups)
      for (const Side side : kSides) read_side({layer, side});
  }

  h5::Dataset column(const std::string& path) const {
    h5::Dataset dataset = file.dataset(path);
    if (dataset.shape() != std::vector<uint64_t>{info.documents.tokens()})
      throw dataset.error("has the shape [{}]; the documents have {} tokens",
                          fmt::join(dataset.shape(), ", "), info.documents.tokens());
    return dataset;
  }

  void read_attributes() {
    info.codec = file.text(kRoot, "codec");
    const std::string parameters = file.text(kRoot, "parameters");
    info.parameters = with_context(file.where(kRoot) + ": attribute 'parameters'",
                                   [&] { return record_from_json(parameters); });
    info.storage = dtype_attribute(file, kRoot, "storage");
    if (info.storage != DType::bf16 && info.storage != DType::f16)
      throw file.error(kRoot, "attribute 'storage' is {}; bf16 and f16 are possible", name_of(info.storage));
    info.source_dtype = dtype_attribute(file, kRoot, "source_dtype");
    if (info.source_dtype != DType::bf16 && info.source_dtype != DType::f16 &&
        info.source_dtype != DType::f32)
      throw file.error(kRoot, "attribute 'source_dtype' is {}; bf16, f16 and f32 are possible",
                       name_of(info.source_dtype));
    info.layer_group = static_cast<int>(file.integer(kRoot, "layer_group", 1, info.model.num_layers));
    info.book_type = file.text(kRoot, "book_type");
    info.book_digest = file.text(kRoot, "book_digest");
    info.book_bytes = static_cast<uint64_t>(file.integer(kRoot, "book_bytes", 0, kMaxNumber));
    info.packed = file.integer(kRoot, "packed", 0, 1) == 1;
  }

  void read_groups() {
    info.groups = layer_numbers(file, info.model.num_layers);
    for (size_t i = 0; i < info.groups.size(); ++i) {
      const int end = i + 1 < info.groups.size() ? info.groups[i + 1] : info.model.num_layers;
      if (end - info.groups[i] < info.layer_group)
        throw file.error(fmt::format("/layers/{}", info.groups[i]),
                         "a group of {} layers does not fit before layer {}", info.layer_group, end);
    }
  }

  void read_side(const Place& place) {
    const std::string group = side_path(place);
    std::vector<StreamData>& streams = sides[place];
    for (const std::string& name : file.children(group))
      if (!name.ends_with(kOffsetSuffix)) streams.push_back(read_stream(group + "/" + name, name));
  }

  StreamData read_stream(const std::string& path, const std::string& name) {
    StreamData stream{
        .spec = {}, .dataset = file.dataset(path), .packed_bits = 0, .offsets = nullptr, .bytes = {}};
    const h5::Dataset& dataset = stream.dataset;
    StreamSpec& spec = stream.spec;
    spec.name = name;
    if (!is_stream_name(name)) throw dataset.error("is no name of a stream");
    spec.category = category_from_name(file.text(path, "category"), dataset);
    if (file.has_attribute(path, "shared")) spec.shared = file.integer(path, "shared", 0, 1) == 1;
    if (file.has_attribute(path, "index_bound"))
      spec.index_bound = static_cast<uint64_t>(file.integer(path, "index_bound", 1, kMaxNumber));
    if (file.has_attribute(path, "packed_bits")) {
      read_packing(path, stream);
    } else {
      if (!dataset.type()) throw dataset.error("is of a type that no stream has");
      spec.type = *dataset.type();
      spec.row_shape.assign(dataset.shape().begin() + 1, dataset.shape().end());
    }
    if (!spec.shared) stream.offsets = read_offsets(path);
    if (with_context(dataset.where(), [&] { return spec.row_bytes(); }) == 0)
      throw dataset.error("has rows of no bytes");
    check_size(stream);
    return stream;
  }

  void read_packing(const std::string& path, StreamData& stream) const {
    StreamSpec& spec = stream.spec;
    spec.type = dtype_attribute(file, path, "element_type");
    spec.row_shape = file.extents(path, "row_shape");
    stream.packed_bits = static_cast<unsigned>(file.integer(path, "packed_bits", 1, kMaxPackedWidth));
    if (stream.packed_bits != packed_width(spec))
      throw stream.dataset.error("attribute 'packed_bits' is {}; {} below {} take {}", stream.packed_bits,
                                 name_of(spec.type), spec.index_bound, packed_width(spec));
    const uint64_t length[] = {stream.dataset.rows()};
    stream.dataset.expect(DType::u8, length);
  }

  std::shared_ptr<const std::vector<uint64_t>> read_offsets(const std::string& path) {
    const std::string offset_path = path + std::string(kOffsetSuffix);
    if (!file.has(offset_path)) return document_offsets;  // a row per token
    auto& known = offset_arrays[file.identity(offset_path)];
    if (known) return known;
    const h5::Dataset dataset = file.dataset(offset_path);
    auto values = dataset.integers(0, dataset.rows(), kMaxNumber);
    if (values.size() != info.documents.count() + 1)
      throw dataset.error("has {} elements; {} documents have {}", values.size(), info.documents.count(),
                          info.documents.count() + 1);
    if (values.front() != 0 || !std::is_sorted(values.begin(), values.end()))
      throw dataset.error("does not rise from 0");
    offset_bytes += dataset.size_bytes();
    known = std::make_shared<const std::vector<uint64_t>>(std::move(values));
    return known;
  }

  /// Rows and documents must fit each other.
  void check_size(StreamData& stream) const {
    if (stream.spec.shared) return;
    const h5::Dataset& dataset = stream.dataset;
    const auto& offsets = *stream.offsets;
    if (stream.packed_bits == 0) {
      if (dataset.rows() != offsets.back())
        throw dataset.error("has {} rows; the documents have {}", dataset.rows(), offsets.back());
      return;
    }
    with_context(dataset.where(), [&] {
      const uint64_t row_elements = stream.spec.row_elements();
      stream.bytes.assign(1, 0);
      for (size_t i = 0; i + 1 < offsets.size(); ++i)
        stream.bytes.push_back(checked_add(
            stream.bytes.back(),
            packed_bytes(checked_mul(offsets[i + 1] - offsets[i], row_elements), stream.packed_bits)));
    });
    if (dataset.rows() != stream.bytes.back())
      throw dataset.error("has {} bytes; the documents have {}", dataset.rows(), stream.bytes.back());
  }

  const std::vector<StreamData>& side(const Place& place) const {
    const auto found = sides.find(place);
    if (found == sides.end())
      throw file.error(side_path(place), "is missing; groups begin at the layers {}",
                       fmt::join(info.groups, ", "));
    return found->second;
  }

  /// Tokens that the codec finds in a document's streams.
  uint64_t tokens_of(const Codec& codec, const Place& place, size_t document) const {
    try {
      return codec.tokens(shape_of(info, place), Document(*this, place, document));
    } catch (const Error& error) {
      // What was wrong on reading names file and dataset already; what the codec found wrong does not.
      if (std::string_view(error.what()).starts_with(file.name())) throw;
      throw error.at(fmt::format("{}: document {}", file.where(side_path(place)), document));
    }
  }

  class Document final : public StreamReader {
   public:
    Document(const Impl& impl, const Place& place, size_t document)
        : impl_(impl), place_(place), streams_(impl.side(place)), document_(document) {}

    uint64_t rows(std::string_view stream) const override { return find(stream).rows(document_); }
    void read(std::string_view stream, uint64_t first, uint64_t count,
              std::span<std::byte> out) const override {
      find(stream).read(document_, first, count, out);
    }

   private:
    const StreamData& find(std::string_view name) const {
      for (const StreamData& stream : streams_)
        if (stream.spec.name == name) return stream;
      throw impl_.file.error(side_path(place_) + "/" + std::string(name), "is missing");
    }

    const Impl& impl_;
    Place place_;
    const std::vector<StreamData>& streams_;
    size_t document_;
  };
};

uint64_t Ledger::stored_bytes() const {
  uint64_t total = 0;
  for (const uint64_t bytes : category) total += bytes;
  return total;
}

CodesReader::CodesReader(const std::string& file) : impl_(std::make_unique<Impl>(file)) {}
CodesReader::~CodesReader() = default;
CodesReader::CodesReader(CodesReader&&) noexcept = default;
CodesReader& CodesReader::operator=(CodesReader&&) noexcept = default;

const std::string& CodesReader::name() const { return impl_->file.name(); }
const FileType& CodesReader::type() const { return impl_->type; }
const CodesInfo& CodesReader::info() const { return impl_->info; }
bool CodesReader::has_tokens() const { return impl_->tokens.has_value(); }

std::vector<uint32_t> CodesReader::tokens(uint64_t first, uint64_t count) const {
  if (!impl_->tokens) throw impl_->file.error("/tokens", "is missing");
  const auto values = impl_->tokens->integers(first, count, kMaxToken);
  return {values.begin(), values.end()};
}

std::vector<uint64_t> CodesReader::positions(uint64_t first, uint64_t count) const {
  return impl_->positions->integers(first, count, kMaxNumber);
}

std::optional<Book> CodesReader::embedded_book() const {
  const Impl& s = *impl_;
  if (!s.file.has(kBookGroup)) return std::nullopt;
  Book book = read_book_at(s.file, kBookGroup, s.info.book_type, false);
  if (book.digest() != s.info.book_digest)
    throw s.file.error(kBookGroup, "has the digest {}; the codes were made with {}", book.digest(),
                       s.info.book_digest);
  return book;
}

void CodesReader::check_streams(const Codec& codec) const {
  const Impl& s = *impl_;
  if (codec.layer_group() != s.info.layer_group)
    throw s.file.error(kRoot, "attribute 'layer_group' is {}; the codec's parameters say {}",
                       s.info.layer_group, codec.layer_group());
  for (const auto& [place, streams] : s.sides) {
    const GroupShape shape = shape_of(s.info, place);
    const std::vector<StreamSpec> specs = codec.streams(shape);
    for (const StreamSpec& spec : specs)
      if (std::none_of(streams.begin(), streams.end(),
                       [&](const StreamData& d) { return d.spec.name == spec.name; }))
        throw s.file.error(side_path(place) + "/" + spec.name, "is missing");
    for (const StreamData& stream : streams) {
      const auto same = [&](const StreamSpec& spec) { return spec.name == stream.spec.name; };
      const auto spec = std::find_if(specs.begin(), specs.end(), same);
      if (spec == specs.end()) throw stream.dataset.error("is no stream of the codec {}", s.info.codec);
      if (!(*spec == stream.spec))
        throw stream.dataset.error(
            "is {} with rows [{}], {}, bound {}; the codec {} has {} with rows [{}], {}, bound {}",
            name_of(stream.spec.type), fmt::join(stream.spec.row_shape, ", "), name_of(stream.spec.category),
            stream.spec.index_bound, s.info.codec, name_of(spec->type), fmt::join(spec->row_shape, ", "),
            name_of(spec->category), spec->index_bound);
    }
    for (size_t d = 0; d < s.info.documents.count(); ++d) {
      const uint64_t tokens = s.tokens_of(codec, place, d);
      if (tokens != s.info.documents.length(d))
        throw s.file.error(side_path(place), "document {} has {} tokens; /documents/offset says {}", d,
                           tokens, s.info.documents.length(d));
    }
  }
}

std::unique_ptr<StreamReader> CodesReader::document(Side side, int first_layer, size_t document) const {
  if (document >= impl_->info.documents.count())
    throw failed("{}: there is no document {}, only {}", name(), document, impl_->info.documents.count());
  return std::make_unique<Impl::Document>(*impl_, Place{first_layer, side}, document);
}

std::vector<StoredStream> CodesReader::streams(Side side, int first_layer) const {
  std::vector<StoredStream> list;
  for (const StreamData& stream : impl_->side({first_layer, side}))
    list.push_back({stream.spec, stream.packed_bits, stream.rows(), stream.dataset.size_bytes()});
  return list;
}

Ledger CodesReader::ledger() const {
  const Impl& s = *impl_;
  Ledger ledger;
  ledger.category.assign(std::size(kCategories), 0);
  for (const auto& [place, streams] : s.sides) {
    ledger.values += s.info.documents.tokens() * shape_of(s.info, place).width();
    for (const StreamData& stream : streams)
      ledger.category[static_cast<size_t>(stream.spec.category)] += stream.dataset.size_bytes();
  }
  ledger.index_bytes = s.positions->size_bytes() + s.offset_bytes +
                       s.file.dataset("/documents/name").size_bytes() +
                       s.file.dataset("/documents/offset").size_bytes();
  if (s.tokens) ledger.index_bytes += s.tokens->size_bytes();
  if (s.file.has(kBookGroup))
    for (const std::string& name : s.file.texts(kBookGroup, "arrays"))
      ledger.embedded_book_bytes += s.file.dataset(kBookGroup + ("/" + name)).size_bytes();
  ledger.file_bytes = s.file.size();
  return ledger;
}

// Writing -------------------------------------------------------------------------------------------

namespace {

/// Puts the parts of a codes file in their places and counts what they take.
class CodesFile {
 public:
  CodesFile(const OutputFile& output, const CodesInfo& info) : file_(h5::File::create(output)), info_(info) {
    ledger_.category.assign(std::size(kCategories), 0);
    ledger_.values = info.documents.tokens() * shape_of(info, {0, Side::key}).width() * info.groups.size() *
                     std::size(kSides);
  }

  const h5::File& file() const { return file_; }

  /// Reads rows [first, first + count) of the whole stream into out.
  using RowSource = std::function<void(uint64_t first, uint64_t count, std::span<std::byte> out)>;

  /// offsets: first row of each document, and the end; of a shared stream the end alone counts.
  void write_stream(const Place& place, const StreamSpec& spec, const std::vector<uint64_t>& offsets,
                    const RowSource& source) {
    if (!is_stream_name(spec.name)) throw failed("'{}' is no name for a stream", spec.name);
    const std::string path = side_path(place) + "/" + spec.name;
    const unsigned bits = info_.packed ? packed_width(spec) : 0;
    const uint64_t bytes = bits > 0 ? write_packed(path, spec, offsets, source, bits)
                                    : write_plain(path, spec, offsets.back(), source);
    ledger_.category[static_cast<size_t>(spec.category)] += bytes;
    file_.set_text(path, "category", std::string(name_of(spec.category)));
    if (spec.index_bound > 0) file_.set_integer(path, "index_bound", static_cast<int64_t>(spec.index_bound));
    if (spec.shared) file_.set_integer(path, "shared", 1);
    if (bits > 0) {
      file_.set_integer(path, "packed_bits", bits);
      file_.set_text(path, "element_type", std::string(name_of(spec.type)));
      file_.set_extents(path, "row_shape", spec.row_shape);
    }
    if (!spec.shared) write_offsets(path, offsets);
  }

  void write_index(std::optional<std::vector<uint32_t>> tokens, const std::vector<uint64_t>& positions) {
    if (tokens)
      ledger_.index_bytes += write_column("/tokens", DType::u32, std::span<const uint32_t>(*tokens));
    const uint64_t largest = positions.empty() ? 0 : *std::max_element(positions.begin(), positions.end());
    if (position_type(largest) == DType::u64)
      ledger_.index_bytes += write_column("/positions", DType::u64, std::span<const uint64_t>(positions));
    else
      ledger_.index_bytes +=
          write_column("/positions", DType::u32,
                       std::span<const uint32_t>(std::vector<uint32_t>(positions.begin(), positions.end())));
  }

  void embed(const Book& book) {
    ledger_.embedded_book_bytes = write_book_at(file_, kBookGroup, book, false);
  }

  void finish(const Provenance& provenance) {
    for (const int layer : info_.groups)  // sides without streams have their group all the same
      for (const Side side : kSides) file_.make_group(side_path({layer, side}));
    ledger_.index_bytes += write_documents(file_, info_.documents);
    write_model(file_, info_.model);
    file_.set_text(kRoot, "codec", info_.codec);
    file_.set_text(kRoot, "parameters", to_json_text(info_.parameters));
    file_.set_text(kRoot, "storage", std::string(name_of(info_.storage)));
    file_.set_text(kRoot, "source_dtype", std::string(name_of(info_.source_dtype)));
    file_.set_integer(kRoot, "layer_group", info_.layer_group);
    file_.set_text(kRoot, "book_type", info_.book_type);
    file_.set_text(kRoot, "book_digest", info_.book_digest);
    file_.set_integer(kRoot, "book_bytes", static_cast<int64_t>(info_.book_bytes));
    file_.set_integer(kRoot, "packed", info_.packed ? 1 : 0);
    file_.set_text(kRoot, "ledger", to_json_text(ledger_record()));
    write_file_type(file_, "codes", provenance);
    file_.close();
  }

 private:
  template <class T>
  uint64_t write_column(const std::string& path, DType type, std::span<const T> values) {
    h5::DatasetWriter column(file_, path, type, {}, values.size());
    column.append_values(values);
    column.finish();
    return values.size_bytes();
  }

  uint64_t write_plain(const std::string& path, const StreamSpec& spec, uint64_t rows,
                       const RowSource& source) {
    h5::DatasetWriter writer(file_, path, spec.type, spec.row_shape, rows);
    const uint64_t step = std::max<uint64_t>(1, kBlockBytes / spec.row_bytes());
    std::vector<std::byte> block;
    for (uint64_t first = 0; first < rows; first += step) {
      const uint64_t count = std::min(step, rows - first);
      block.resize(count * spec.row_bytes());
      source(first, count, block);
      writer.append(block);
    }
    writer.finish();
    return rows * spec.row_bytes();
  }

  uint64_t write_packed(const std::string& path, const StreamSpec& spec, const std::vector<uint64_t>& offsets,
                        const RowSource& source, unsigned bits) {
    uint64_t total = 0;
    for (size_t i = 0; i + 1 < offsets.size(); ++i)
      total += packed_bytes((offsets[i + 1] - offsets[i]) * spec.row_elements(), bits);
    h5::DatasetWriter writer(file_, path, DType::u8, {}, total);
    // Eight rows are whole bytes whatever the width, so blocks of a document can be packed one by one.
    const uint64_t step = std::max<uint64_t>(1, kBlockBytes / spec.row_bytes() / 8) * 8;
    std::vector<std::byte> block;
    for (size_t i = 0; i + 1 < offsets.size(); ++i)
      for (uint64_t first = offsets[i]; first < offsets[i + 1]; first += step) {
        const uint64_t count = std::min(step, offsets[i + 1] - first);
        block.resize(count * spec.row_bytes());
        source(first, count, block);
        writer.append(with_context(file_.where(path), [&] { return pack_elements(spec, block, bits); }));
      }
    writer.finish();
    return total;
  }

  /// Rows per token need no offsets; equal offsets of several streams are one dataset under several names.
  void write_offsets(const std::string& path, const std::vector<uint64_t>& offsets) {
    if (offsets == info_.documents.offsets) return;
    const std::string own = path + std::string(kOffsetSuffix);
    const auto [known, is_new] = offset_paths_.emplace(offsets, own);
    if (is_new)
      ledger_.index_bytes += write_column(own, DType::u64, std::span<const uint64_t>(offsets));
    else
      file_.link(known->second, own);
  }

  Record ledger_record() const {
    Record record;
    record.set("values", static_cast<int64_t>(ledger_.values));
    for (const Category category : kCategories)
      record.set(name_of(category), static_cast<int64_t>(ledger_.category[static_cast<size_t>(category)]));
    record.set("index", static_cast<int64_t>(ledger_.index_bytes));
    record.set("embedded_book", static_cast<int64_t>(ledger_.embedded_book_bytes));
    return record;
  }

  h5::File file_;
  CodesInfo info_;
  Ledger ledger_;
  std::map<std::vector<uint64_t>, std::string> offset_paths_;
};

/// One stream while its side is being written: rows of all documents so far.
struct OpenStream {
  StreamSpec spec;
  uint64_t row_bytes = 0;
  SpillBuffer data;
  std::vector<uint64_t> offsets;  // first row of each document begun

  uint64_t rows() const { return data.size() / row_bytes; }
  uint64_t first_row() const { return spec.shared ? 0 : offsets.back(); }  // of the newest document
};

/// The side of a group in work: the StreamStore of its newest document.
class OpenSide final : public StreamStore {
 public:
  OpenSide(const Place& place, const std::vector<StreamSpec>& specs, const OutputFile& output)
      : place_(place) {
    for (const StreamSpec& spec : specs) {
      if (spec.row_bytes() == 0) throw failed("stream '{}' has rows of no bytes", spec.name);
      streams_.push_back({spec, spec.row_bytes(), SpillBuffer(output.path(), output.target()), {}});
    }
  }

  const Place& place() const { return place_; }
  std::vector<OpenStream>& streams() { return streams_; }
  size_t documents() const { return documents_; }

  void begin_document() {
    ++documents_;
    for (OpenStream& stream : streams_) stream.offsets.push_back(stream.rows());
  }

  uint64_t rows(std::string_view name) const override {
    const OpenStream& stream = find(name);
    return stream.rows() - stream.first_row();
  }

  void read(std::string_view name, uint64_t first, uint64_t count, std::span<std::byte> out) const override {
    const OpenStream& stream = find(name);
    const uint64_t there = stream.rows() - stream.first_row();
    if (first > there || count > there - first)
      throw bad_input("stream '{}' has {} rows; {} rows from row {} on are not all there", name, there, count,
                      first);
    if (out.size() != count * stream.row_bytes)
      throw failed("{} rows of stream '{}' are {} bytes, not {}", count, name, count * stream.row_bytes,
                   out.size());
    stream.data.read((stream.first_row() + first) * stream.row_bytes, out);
  }

  void append(std::string_view name, std::span<const std::byte> bytes) override {
    OpenStream& stream = find(name);
    if (bytes.size() % stream.row_bytes != 0)
      throw failed("stream '{}' has rows of {} bytes; {} bytes are no whole number of them", name,
                   stream.row_bytes, bytes.size());
    stream.data.append(bytes);
  }

  void truncate(std::string_view name, uint64_t rows_left) override {
    OpenStream& stream = find(name);
    if (stream.spec.shared) throw failed("stream '{}' is shared by all documents and cannot be cut", name);
    const uint64_t there = stream.rows() - stream.first_row();
    if (rows_left > there)
      throw failed("stream '{}' has {} rows and cannot be cut to {}", name, there, rows_left);
    stream.data.truncate((stream.first_row() + rows_left) * stream.row_bytes);
  }

 private:
  const OpenStream& find(std::string_view name) const {
    for (const OpenStream& stream : streams_)
      if (stream.spec.name == name) return stream;
    throw failed("there is no stream '{}'", name);
  }
  OpenStream& find(std::string_view name) { return const_cast<OpenStream&>(std::as_const(*this).find(name)); }

  Place place_;
  std::vector<OpenStream> streams_;
  size_t documents_ = 0;
};

void check_index(const CodesInfo& info, uint64_t tokens, uint64_t positions) {
  if (positions != info.documents.tokens() || (tokens != 0 && tokens != positions))
    throw failed("{} tokens and {} positions for documents of {}", tokens, positions,
                 info.documents.tokens());
}

}  // namespace

struct CodesWriter::Impl {
  const OutputFile& output;
  CodesInfo info;
  const Codec& codec;
  const CodesReader::Impl* base;
  CodesFile file;
  std::unique_ptr<OpenSide> open;
  std::set<Place> done;

  Impl(const OutputFile& out, const CodesInfo& what, const Codec& with, const CodesReader::Impl* extended)
      : output(out), info(what), codec(with), base(extended), file(out, what) {}

  size_t base_documents() const { return base ? base->info.documents.count() : 0; }

  void open_side(const Place& place) {
    close_side();
    if (std::find(info.groups.begin(), info.groups.end(), place.first) == info.groups.end())
      throw failed("{}: no group begins at layer {}", output.target(), place.first);
    if (!done.insert(place).second)
      throw failed("{}: {} was closed before", output.target(), side_path(place));
    open = std::make_unique<OpenSide>(place, codec.streams(shape_of(info, place)), output);
    if (base) copy_base();
  }

  /// All documents of the file that is extended, the last of them left open.
  void copy_base() {
    const std::vector<StreamData>& stored = base->side(open->place());
    std::vector<std::byte> block;
    for (size_t d = 0; d < base_documents(); ++d) {
      open->begin_document();
      for (OpenStream& stream : open->streams()) {
        const auto same = [&](const StreamData& data) { return data.spec.name == stream.spec.name; };
        const auto source = std::find_if(stored.begin(), stored.end(), same);
        if (source == stored.end() || !(source->spec == stream.spec))
          throw base->file.error(side_path(open->place()) + "/" + stream.spec.name,
                                 "is not what the codec stores there");
        if (stream.spec.shared && d > 0) continue;
        const uint64_t rows = source->rows(d), step = std::max<uint64_t>(1, kBlockBytes / stream.row_bytes);
        for (uint64_t first = 0; first < rows; first += step) {
          block.resize(std::min(step, rows - first) * stream.row_bytes);
          source->read(d, first, block.size() / stream.row_bytes, block);
          stream.data.append(block);
        }
      }
    }
  }

  void close_document() {
    if (open->documents() == 0) return;
    const size_t document = open->documents() - 1;
    const uint64_t found = codec.tokens(shape_of(info, open->place()), *open);
    if (found != info.documents.length(document))
      throw failed("{}: {}: document {} was given {} tokens of {}", output.target(), side_path(open->place()),
                   document, found, info.documents.length(document));
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
    for (OpenStream& stream : open->streams()) {
      stream.offsets.push_back(stream.rows());
      file.write_stream(open->place(), stream.spec, stream.offsets,
                        [&](uint64_t first, uint64_t, std::span<std::byte> out) {
                          stream.data.read(first * stream.row_bytes, out);
                        });
    }
    open.reset();
  }
};

CodesWriter::CodesWriter(OutputFile& output, const CodesInfo& info, const Codec& codec,
                         std::span<const uint32_t> tokens, std::span<const uint64_t> positions,
                         const Book* embed_book)
    : impl_(std::make_unique<Impl>(output, info, codec, nullptr)) {
  check_index(info, tokens.size(), positions.size());
  std::optional<std::vector<uint32_t>> ids;
  if (!tokens.empty() || positions.empty()) ids.emplace(tokens.begin(), tokens.end());
  impl_->file.write_index(std::move(ids), {positions.begin(), positions.end()});
  if (embed_book) impl_->file.embed(*embed_book);
}

CodesWriter::CodesWriter(OutputFile& output, const CodesReader& base, const CodesInfo& info,
                         const Codec& codec, std::span<const uint32_t> tokens,
                         std::span<const uint64_t> positions)
    : impl_(std::make_unique<Impl>(output, info, codec, base.impl_.get())) {
  const CodesInfo& before = base.info();
  const size_t documents = before.documents.count();
  if (info.groups != before.groups || info.layer_group != before.layer_group || info.codec != before.codec ||
      info.documents.count() < documents)
    throw failed("{}: is not {} extended", output.target(), base.name());
  for (size_t d = 0; d < documents; ++d) {
    const bool may_grow = d + 1 == documents;
    const uint64_t length = info.documents.length(d), length_before = before.documents.length(d);
    if (info.documents.names[d] != before.documents.names[d] || length < length_before ||
        (length > length_before && !may_grow))
      throw failed("{}: document {} is not that of {}", output.target(), d, base.name());
  }
  const uint64_t count = before.documents.tokens();
  std::vector<uint64_t> all_positions = base.positions(0, count);
  all_positions.insert(all_positions.end(), positions.begin(), positions.end());
  std::optional<std::vector<uint32_t>> ids;
  if (base.has_tokens()) {
    ids = base.tokens(0, count);
    ids->insert(ids->end(), tokens.begin(), tokens.end());
  } else if (!tokens.empty()) {
    throw failed("{}: {} has no token ids; none can be added", output.target(), base.name());
  }
  check_index(info, ids ? ids->size() : 0, all_positions.size());
  if (ids && ids->size() != all_positions.size())
    throw failed("{}: {} tokens for {} positions", output.target(), ids->size(), all_positions.size());
  impl_->file.write_index(std::move(ids), all_positions);
  if (const auto book = base.embedded_book()) impl_->file.embed(*book);
}

CodesWriter::~CodesWriter() = default;

StreamStore& CodesWriter::document(Side side, int first_layer, size_t document) {
  Impl& s = *impl_;
  const Place place{first_layer, side};
  if (document >= s.info.documents.count())
    throw failed("{}: there is no document {}, only {}", s.output.target(), document,
                 s.info.documents.count());
  if (!s.open || s.open->place() != place) s.open_side(place);
  if (document + 1 < s.open->documents())
    throw failed("{}: {}: document {} is closed; {} is the newest", s.output.target(), side_path(place),
                 document, s.open->documents() - 1);
  s.advance(document);
  return *s.open;
}

void CodesWriter::finish(const Provenance& provenance) {
  Impl& s = *impl_;
  for (const int layer : s.info.groups)
    for (const Side side : kSides) {
      const Place place{layer, side};
      if (!s.done.contains(place)) s.open_side(place);
    }
  s.close_side();
  s.file.finish(provenance);
}

// Packing -------------------------------------------------------------------------------------------

RepackResult repack_indices(const CodesReader& input, OutputFile& output, bool pack,
                            const Provenance& provenance) {
  const CodesReader::Impl& s = *input.impl_;
  CodesInfo info = s.info;
  info.packed = pack;
  CodesFile file(output, info);
  RepackResult result;
  for (const auto& [place, streams] : s.sides)
    for (const StreamData& stream : streams) {
      const std::vector<uint64_t> shared_rows{0, stream.rows()};
      const std::vector<uint64_t>& offsets = stream.spec.shared ? shared_rows : *stream.offsets;
      file.write_stream(
          place, stream.spec, offsets, [&](uint64_t first, uint64_t count, std::span<std::byte> out) {
            if (stream.packed_bits == 0) return stream.read_all(first, count, out);
            // Rows of several documents: each from its own bytes.
            auto document = static_cast<size_t>(std::upper_bound(offsets.begin(), offsets.end(), first) -
                                                offsets.begin()) -
                            1;
            while (count > 0) {
              const uint64_t n = std::min(count, offsets[document + 1] - first);
              stream.read(document, first - offsets[document], n, out.first(n * stream.spec.row_bytes()));
              out = out.subspan(n * stream.spec.row_bytes());
              first += n;
              count -= n;
              ++document;
            }
          });
      if (stream.spec.index_bound == 0) continue;
      const uint64_t plain = stream.rows() * stream.spec.row_bytes();
      result.index_bytes_before += stream.dataset.size_bytes();
      uint64_t after = plain;
      if (const unsigned bits = pack ? packed_width(stream.spec) : 0; bits > 0) {
        after = 0;
        for (size_t d = 0; d + 1 < offsets.size(); ++d)
          after += packed_bytes((offsets[d + 1] - offsets[d]) * stream.spec.row_elements(), bits);
      }
      result.index_bytes_after += after;
    }
  const uint64_t tokens = s.info.documents.tokens();
  std::optional<std::vector<uint32_t>> ids;
  if (input.has_tokens()) ids = input.tokens(0, tokens);
  file.write_index(std::move(ids), input.positions(0, tokens));
  if (const auto book = input.embedded_book()) file.embed(*book);
  file.finish(provenance);
  return result;
}

}  // namespace kvcodec
