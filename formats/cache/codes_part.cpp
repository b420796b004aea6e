// Layouts of streams and parts of codes files (FORMAT.md, "Layouts", "Packed indices", "Parts").
#include <array>
#include <cstring>
#include <limits>

#include "formats/cache/codes_io.hpp"
#include "formats/io/json_file.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/parallel.hpp"
#include "lib/entropy/pack.hpp"

namespace kvcodec {

// Layouts ----------------------------------------------------------------------------------------------

static bool is_stream_name(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

/// Calls body(T{}), where T is the type of an index stream's elements.
template <class Body>
static void with_element_type(DType type, const Body& body) {
  if (type == DType::u8) return body(uint8_t{});
  if (type == DType::u16) return body(uint16_t{});
  body(uint32_t{});
}

/// Elements per piece of parallel (un)packing; a multiple of 8, so that every piece begins at a whole byte if the first one does.
constexpr size_t kPackPiece = size_t{1} << 16;

static std::string need_string(const JsonFields& fields, const char* name) {
  const auto text = fields.get_string(name);
  if (!text) throw bad_input("'{}' is missing", name);
  return *text;
}

static uint64_t need_positive(const JsonFields& fields, const char* name) {
  const int64_t value = fields.need_int(name);
  if (value < 1) throw bad_input("'{}' is {}; 1 or more is possible", name, value);
  return static_cast<uint64_t>(value);
}

static StoredSpec stored_spec_from(const nlohmann::json& object, std::string_view category) {
  const JsonFields fields(object);
  StoredSpec stored;
  StreamSpec& spec = stored.spec;
  spec.name = need_string(fields, "name");
  if (!is_stream_name(spec.name)) throw bad_input("'{}' is not a name of a stream", printable(spec.name));
  return with_context(fmt::format("stream '{}'", spec.name), [&] {
    const std::string type = need_string(fields, "type");
    const auto known_type = value_named<DType>(type);
    if (!known_type) throw bad_input("'type' is '{}', which is not an element type", printable(type));
    spec.type = *known_type;
    const nlohmann::json* row = fields.find("row");
    if (!row || !row->is_array() ||
        !std::ranges::all_of(*row, [](const nlohmann::json& extent) { return extent.is_number_unsigned(); }))
      throw bad_input("'row' is not a list of extents");
    spec.row_shape = row->get<std::vector<uint64_t>>();
    const std::string kind = need_string(fields, "category");
    const auto known_kind = value_named<Category>(kind);
    if (category.empty() && !known_kind)
      throw bad_input("'category' is '{}'; {} are possible", printable(kind),
                      fmt::join(kNamesOf<Category>, ", "));
    if (!category.empty() && kind != category)
      throw bad_input("'category' is '{}'; {} is wanted", printable(kind), category);
    if (category.empty()) spec.category = *known_kind;
    if (fields.find("index_bound")) spec.index_bound = need_positive(fields, "index_bound");
    spec.shared = fields.get_bool("shared").value_or(false);
    if (spec.row_bytes() == 0) throw bad_input("has rows of no bytes");
    if (!fields.find("packed_bits")) return stored;
    const uint64_t bits = need_positive(fields, "packed_bits");
    if (bits != packed_width(spec))
      throw bad_input("'packed_bits' is {}; {} below {} take {}", bits, name_of(spec.type), spec.index_bound,
                      packed_width(spec));
    stored.packed_bits = static_cast<unsigned>(bits);
    return stored;
  });
}

uint64_t StoredSpec::bytes(uint64_t rows) const {
  if (packed_bits == 0) return checked_mul(rows, spec.row_bytes());
  return packed_bytes(checked_mul(rows, spec.row_elements()), packed_bits);
}

unsigned packed_width(const StreamSpec& spec) {
  const bool packable = spec.type == DType::u8 || spec.type == DType::u16 || spec.type == DType::u32;
  if (spec.index_bound == 0 || spec.shared || !packable) return 0;
  const unsigned bits = index_bits(spec.index_bound);
  return bits < 8 * size_of(spec.type) ? bits : 0;
}

Layout layout_of(const std::vector<StreamSpec>& specs, bool packed) {
  Layout layout;
  for (const StreamSpec& spec : specs) {
    if (!is_stream_name(spec.name)) throw internal_error("'{}' is not a name for a stream", spec.name);
    if (spec.row_bytes() == 0) throw internal_error("stream '{}' has rows of no bytes", spec.name);
    layout.push_back({spec, packed ? packed_width(spec) : 0});
  }
  return layout;
}

std::string to_json_text(const Layout& layout, std::string_view category) {
  auto list = nlohmann::ordered_json::array();
  for (const auto& [spec, packed_bits] : layout) {
    nlohmann::ordered_json object = {{"name", spec.name},
                                     {"type", name_of(spec.type)},
                                     {"row", spec.row_shape},
                                     {"category", category.empty() ? name_of(spec.category) : category}};
    if (spec.index_bound > 0) object["index_bound"] = spec.index_bound;
    if (spec.shared) object["shared"] = true;
    if (packed_bits > 0) object["packed_bits"] = packed_bits;
    list.push_back(std::move(object));
  }
  return list.dump();
}

Layout layout_from_json(const std::string& text, std::string_view category) {
  const auto list = nlohmann::json::parse(text, nullptr, false);
  if (!list.is_array()) throw bad_input("is not a JSON array");
  Layout layout;
  for (const nlohmann::json& object : list) {
    if (!object.is_object()) throw bad_input("element {} is not a JSON object", layout.size());
    StoredSpec stored = stored_spec_from(object, category);
    for (const StoredSpec& other : layout)
      if (other.spec.name == stored.spec.name) throw bad_input("stream '{}' is there twice", other.spec.name);
    layout.push_back(std::move(stored));
  }
  return layout;
}

Layout index_layout(bool has_tokens, DType position_type) {
  Layout layout;
  if (has_tokens) layout.push_back({{.name = kTokens, .type = DType::u32, .row_shape = {}}});
  layout.push_back({{.name = kPositions, .type = position_type, .row_shape = {}}});
  return layout;
}

/// The inverse of pack_elements, from bit `first_bit` of `in` on. Throws Error(bad_input) for an element that is not below the bound.
static void unpack_elements(const StreamSpec& spec, std::span<const std::byte> in, uint64_t first_bit,
                            unsigned bits, std::span<std::byte> out) {
  const std::span packed(reinterpret_cast<const uint8_t*>(in.data()), in.size());
  with_element_type(spec.type, [&]<class T>(T) {
    const std::span elements(reinterpret_cast<T*>(out.data()), out.size() / sizeof(T));
    parallel_for(elements.size(), kPackPiece, [&](size_t begin, size_t end, int) {
      unpack_bits(packed, first_bit + begin * bits, bits, spec.index_bound,
                  elements.subspan(begin, end - begin));
    });
  });
}

std::vector<std::byte> pack_elements(const StreamSpec& spec, std::span<const std::byte> in, unsigned bits) {
  std::vector<std::byte> out(packed_bytes(in.size() / size_of(spec.type), bits));
  const std::span packed(reinterpret_cast<uint8_t*>(out.data()), out.size());
  with_element_type(spec.type, [&]<class T>(T) {
    const std::span elements(reinterpret_cast<const T*>(in.data()), in.size() / sizeof(T));
    parallel_for(elements.size(), kPackPiece, [&](size_t begin, size_t end, int) {
      pack_bits(elements.subspan(begin, end - begin), bits, spec.index_bound,
                packed.subspan(begin * bits / 8, packed_bytes(end - begin, bits)));
    });
  });
  return out;
}

// Writing parts ----------------------------------------------------------------------------------------

// A footer: numbers (row, side, number of streams, the rows of each), the digest of each piece, and a tail of fixed size: the
// footer's own size (u32), four letters, the digest of the whole footer before it.
constexpr std::array<char, 4> kMagic = {'p', 'a', 'r', 't'};
constexpr uint64_t kDigestBytes = sizeof(Digest128);
constexpr uint64_t kTailBytes = sizeof(uint32_t) + kMagic.size() + kDigestBytes;
constexpr uint64_t kMaxNumberBytes = 10;  // seven bits of the number in each
constexpr uint64_t kNumbersOfPart = 3;    // besides the rows of streams

constexpr uint64_t kGrainPieces = 4;                   // verified by one thread at a time
constexpr uint64_t kGatheredBytes = 16 * kPieceBytes;  // before they are written
constexpr uint64_t kMaxWholeBytes = 1 << 20;  // of a part that is read at once: a second read costs more
constexpr size_t kCachedPieces = 16;          // enough for the streams of a side

static uint64_t pieces_of(uint64_t bytes) { return bytes / kPieceBytes + (bytes % kPieceBytes != 0); }

/// Seven bits per byte, the lowest first; the highest bit is set if more follow.
static void put_number(std::vector<std::byte>& out, uint64_t number) {
  for (; number >= 0x80; number >>= 7) out.push_back(static_cast<std::byte>(number | 0x80));
  out.push_back(static_cast<std::byte>(number));
}

/// Takes a number off the front; false if there is no number that fits 64 bits.
static bool take_number(std::span<const std::byte>& in, uint64_t& number) {
  number = 0;
  for (unsigned shift = 0; shift < 64 && !in.empty(); shift += 7) {
    const auto byte = static_cast<uint64_t>(in.front());
    in = in.subspan(1);
    if (shift == 63 && byte > 1) return false;
    number |= (byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

static void put_bytes(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

static std::string of_row(uint64_t row) {
  return row == 0 ? "all documents" : fmt::format("document {}", row - 1);
}

uint64_t min_footer_bytes(uint64_t streams) { return kNumbersOfPart + streams + kTailBytes; }

uint64_t max_footer_bytes(uint64_t streams, uint64_t part_size) {
  return (kNumbersOfPart + streams) * kMaxNumberBytes + pieces_of(part_size) * kDigestBytes + kTailBytes;
}

void PartWriter::append(std::span<const std::byte> bytes) {
  body_ += bytes.size();
  while (!bytes.empty()) {
    const size_t n = std::min<size_t>(bytes.size(), kGatheredBytes - block_.size());
    put_bytes(block_, bytes.first(n));
    bytes = bytes.subspan(n);
    if (block_.size() == kGatheredBytes) flush();
  }
}

void PartWriter::flush() {
  const size_t before = digests_.size();
  digests_.resize(before + pieces_of(block_.size()));
  parallel_for(digests_.size() - before, kGrainPieces, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) {
      const auto piece = std::span<const std::byte>(block_).subspan(i * kPieceBytes);
      digests_[before + i] = digest_of(piece.first(std::min<size_t>(piece.size(), kPieceBytes)));
    }
  });
  data_.append(std::span<const std::byte>(block_));
  block_.clear();
}

PartPlace PartWriter::finish(const PartName& name, std::span<const uint64_t> rows) {
  flush();
  put_number(block_, name.row);
  put_number(block_, name.column);
  put_number(block_, rows.size());
  for (const uint64_t n : rows) put_number(block_, n);
  put_bytes(block_, std::as_bytes(std::span(digests_)));
  const uint64_t size = block_.size() + kTailBytes;
  if (size > std::numeric_limits<uint32_t>::max())
    throw failed("{}: a part of {} bytes is too large", data_.path(), body_);
  const auto stored_size = static_cast<uint32_t>(size);
  put_bytes(block_, std::as_bytes(std::span(&stored_size, 1)));
  put_bytes(block_, std::as_bytes(std::span(kMagic)));
  put_bytes(block_, digest_of(block_));
  data_.append(std::span<const std::byte>(block_));
  const PartPlace place{data_.rows() - size - body_, body_ + size};
  block_.clear();
  digests_.clear();
  body_ = 0;
  return place;
}

// Reading parts ----------------------------------------------------------------------------------------

std::string Part::where(std::string_view stream) const {
  const std::string object = stream.empty() ? where_ : fmt::format("{}/{}", where_, stream);
  return name_.row == 0 ? object : fmt::format("{}: document {}", object, name_.row - 1);
}

template <class... Args>
Error Part::error(std::string_view stream, fmt::format_string<Args...> format, Args&&... args) const {
  return bad_input("{}: {}", where(stream), fmt::format(format, std::forward<Args>(args)...));
}

Part::Part(h5::Dataset data, const PartName& name, const PartPlace& place, const Layout& layout,
           std::string where)
    : data_(std::move(data)), name_(name), place_(place), layout_(layout), where_(std::move(where)) {
  if (place.size < min_footer_bytes(layout.size()))
    throw error("", "/parts gives it {} bytes; a part of {} streams has {} or more", place.size,
                layout.size(), min_footer_bytes(layout.size()));
  const bool whole = place.size <= kMaxWholeBytes;
  const uint64_t wanted =
      whole ? place.size : std::min(place.size, max_footer_bytes(layout.size(), place.size));
  Bytes end(wanted);
  data_.read(place.begin + place.size - wanted, wanted, end);
  parse_footer(end);
  if (!whole) return;
  whole_ = std::move(end);
  parallel_for(digests_.size(), kGrainPieces, [&](size_t begin, size_t to, int) {
    for (size_t piece = begin; piece < to; ++piece)
      verify(piece, std::span<const std::byte>(whole_).subspan(piece * kPieceBytes, piece_bytes(piece)));
  });
}

/// end: the last bytes of the part, including the footer.
void Part::parse_footer(std::span<const std::byte> end) {
  const auto tail = end.last(kTailBytes);
  uint32_t size = 0;
  std::memcpy(&size, tail.data(), sizeof size);
  if (std::memcmp(tail.data() + sizeof size, kMagic.data(), kMagic.size()) != 0 || size < kTailBytes ||
      size > end.size())
    throw error("", "no part ends at byte {} of /data, where /parts says so: the file is damaged",
                place_.begin + place_.size);
  auto footer = end.last(size);
  if (!std::ranges::equal(digest_of(footer.first(size - kDigestBytes)), footer.last(kDigestBytes)))
    throw error("", "the digest of the footer does not hold: the file is damaged");
  footer = footer.first(size - kTailBytes);

  uint64_t row = 0, column = 0, streams = 0;
  if (!take_number(footer, row) || !take_number(footer, column) || !take_number(footer, streams))
    throw error("", "the footer ends early");
  if (PartName{row, column} != name_)
    throw error("", "/parts leads to the part of {}, side {}, in place of side {}", of_row(row), column,
                name_.column);
  if (streams != layout_.size())
    throw error("", "the part has {} streams; the side has {}", streams, layout_.size());
  offsets_.push_back(0);
  for (const StoredSpec& stream : layout_) {
    uint64_t rows = 0;
    if (!take_number(footer, rows)) throw error(stream.spec.name, "the footer ends early");
    rows_.push_back(rows);
    offsets_.push_back(with_context(where(stream.spec.name),
                                    [&] { return checked_add(offsets_.back(), stream.bytes(rows)); }));
    if (offsets_.back() > place_.size - size)
      throw error(stream.spec.name, "{} rows do not fit the part of {} bytes", rows, place_.size);
  }
  if (offsets_.back() != place_.size - size || footer.size() != pieces_of(offsets_.back()) * kDigestBytes)
    throw error("", "the streams have {} bytes; the part of {} has another footer", offsets_.back(),
                place_.size);
  digests_.resize(pieces_of(offsets_.back()));
  if (!digests_.empty()) std::memcpy(digests_.data(), footer.data(), footer.size());
}

void Part::verify(uint64_t piece, std::span<const std::byte> bytes) const {
  if (digest_of(bytes) == digests_[piece]) return;
  const uint64_t first = piece * kPieceBytes, end = first + bytes.size();
  std::vector<std::string_view> touched;
  for (size_t i = 0; i < layout_.size(); ++i)
    if (offsets_[i] < end && offsets_[i + 1] > first) touched.push_back(layout_[i].spec.name);
  throw error("", "the digest of bytes {} to {} ({}) does not hold: the file is damaged", first, end - 1,
              fmt::join(touched, ", "));
}

void Part::read_piece(uint64_t piece, std::span<std::byte> out) const {
  data_.read(place_.begin + piece * kPieceBytes, out.size(), out);
  verify(piece, out);
}

std::shared_ptr<const Part::Bytes> Part::cached_piece(uint64_t piece) const {
  {
    const std::lock_guard lock(mutex_);
    const auto known = std::ranges::find(cache_, piece, [](const auto& one) { return one.first; });
    if (known != cache_.end()) {
      cache_.splice(cache_.begin(), cache_, known);
      return known->second;
    }
  }
  auto fresh = std::make_shared<Bytes>(piece_bytes(piece));
  read_piece(piece, *fresh);
  const std::lock_guard lock(mutex_);
  cache_.emplace_front(piece, fresh);
  if (cache_.size() > kCachedPieces) cache_.pop_back();
  return fresh;
}

void Part::read_body(uint64_t first, std::span<std::byte> out) const {
  if (out.empty()) return;
  if (!whole_.empty()) {
    std::memcpy(out.data(), whole_.data() + first, out.size());
    return;
  }
  const uint64_t end = first + out.size(), first_piece = first / kPieceBytes;
  parallel_for(pieces_of(end) - first_piece, kGrainPieces, [&](size_t begin, size_t behind, int) {
    for (uint64_t piece = first_piece + begin; piece < first_piece + behind; ++piece) {
      const uint64_t at = piece * kPieceBytes, from = std::max(first, at),
                     to = std::min(end, at + piece_bytes(piece));
      const auto part = out.subspan(from - first, to - from);
      if (part.size() == piece_bytes(piece))
        read_piece(piece, part);
      else
        std::memcpy(part.data(), cached_piece(piece)->data() + (from - at), part.size());
    }
  });
}

void Part::read(size_t stream, uint64_t first, uint64_t count, std::span<std::byte> out) const {
  const StreamSpec& spec = layout_[stream].spec;
  const unsigned bits = layout_[stream].packed_bits;
  if (first > rows_[stream] || count > rows_[stream] - first)
    throw error(spec.name, "there are {} rows; {} rows from row {} on are not all there", rows_[stream],
                count, first);
  if (out.size() != count * spec.row_bytes())
    throw internal_error("{} rows of stream '{}' are {} bytes, not {}", count, spec.name,
                         count * spec.row_bytes(), out.size());
  if (bits == 0) return read_body(offsets_[stream] + first * spec.row_bytes(), out);
  const uint64_t first_bit = first * spec.row_elements() * bits;
  const uint64_t end_bit = (first + count) * spec.row_elements() * bits;
  Bytes packed((end_bit + 7) / 8 - first_bit / 8);
  read_body(offsets_[stream] + first_bit / 8, packed);
  with_context(where(spec.name), [&] { unpack_elements(spec, packed, first_bit % 8, bits, out); });
}

}  // namespace kvcodec
