#include "formats/cache/part.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "lib/core/checked.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec {
namespace {

// A footer: numbers (row, side, how many streams, the rows of each), the digest of each piece, and a tail of
// fixed size: the footer's own size (u32), four letters, the digest of all of the footer before it.
constexpr std::array<char, 4> kMagic = {'p', 'a', 'r', 't'};
constexpr uint64_t kDigestBytes = sizeof(Digest128);
constexpr uint64_t kTailBytes = sizeof(uint32_t) + kMagic.size() + kDigestBytes;
constexpr uint64_t kMostNumberBytes = 10;  // seven bits of a number each
constexpr uint64_t kNumbersOfPart = 3;     // beside the rows of streams

/// What is verified by one thread at a time, and gathered before it is written.
constexpr uint64_t kGrainPieces = 4;
constexpr uint64_t kBlockBytes = 16 * kPieceBytes;

uint64_t pieces_of(uint64_t bytes) { return bytes / kPieceBytes + (bytes % kPieceBytes != 0); }

/// Seven bits a byte, the lowest first; the highest bit says that more follow.
void put_number(std::vector<std::byte>& out, uint64_t number) {
  for (; number >= 0x80; number >>= 7) out.push_back(static_cast<std::byte>(number | 0x80));
  out.push_back(static_cast<std::byte>(number));
}

/// Takes a number off the front; false if there is none that fits 64 bits.
bool take_number(std::span<const std::byte>& in, uint64_t& number) {
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

void put_bytes(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

std::string of_row(uint64_t row) { return row == 0 ? "all documents" : fmt::format("document {}", row - 1); }

}  // namespace

uint64_t least_footer_bytes(uint64_t streams) { return kNumbersOfPart + streams + kTailBytes; }

uint64_t most_footer_bytes(uint64_t streams, uint64_t part_size) {
  return (kNumbersOfPart + streams) * kMostNumberBytes + pieces_of(part_size) * kDigestBytes + kTailBytes;
}

// Writing -------------------------------------------------------------------------------------------

void PartWriter::append(std::span<const std::byte> bytes) {
  body_ += bytes.size();
  while (!bytes.empty()) {
    const size_t n = std::min<size_t>(bytes.size(), kBlockBytes - block_.size());
    put_bytes(block_, bytes.first(n));
    bytes = bytes.subspan(n);
    if (block_.size() == kBlockBytes) flush();
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
  put_number(block_, name.side);
  put_number(block_, rows.size());
  for (const uint64_t n : rows) put_number(block_, n);
  put_bytes(block_, std::as_bytes(std::span(digests_)));
  const uint64_t size = block_.size() + kTailBytes;
  if (size > std::numeric_limits<uint32_t>::max())
    throw failed("{}: a part of {} bytes is too large", data_.path(), body_);
  for (int i = 0; i < 4; ++i) block_.push_back(static_cast<std::byte>(size >> (8 * i)));
  put_bytes(block_, std::as_bytes(std::span(kMagic)));
  put_bytes(block_, digest_of(block_));
  data_.append(std::span<const std::byte>(block_));
  const PartPlace place{data_.rows() - size - body_, body_ + size};
  block_.clear();
  digests_.clear();
  body_ = 0;
  return place;
}

// Reading -------------------------------------------------------------------------------------------

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
  if (place.size < least_footer_bytes(layout.size()))
    throw error("", "/parts gives it {} bytes; a part of {} streams has {} or more", place.size,
                layout.size(), least_footer_bytes(layout.size()));
  const bool whole = place.size <= kWholeBytes;
  const uint64_t wanted =
      whole ? place.size : std::min(place.size, most_footer_bytes(layout.size(), place.size));
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

/// end: the last bytes of the part, the footer among them.
void Part::parse_footer(std::span<const std::byte> end) {
  const auto tail = end.last(kTailBytes);
  uint32_t size = 0;
  for (int i = 0; i < 4; ++i) size |= static_cast<uint32_t>(tail[static_cast<size_t>(i)]) << (8 * i);
  if (std::memcmp(tail.data() + sizeof size, kMagic.data(), kMagic.size()) != 0 || size < kTailBytes ||
      size > end.size())
    throw error("", "no part ends at byte {} of /data, where /parts says so: the file is damaged",
                place_.begin + place_.size);
  auto footer = end.last(size);
  const Digest128 digest = digest_of(footer.first(size - kDigestBytes));
  if (!std::equal(digest.begin(), digest.end(), footer.last(kDigestBytes).begin()))
    throw error("", "the digest of the footer does not hold: the file is damaged");
  footer = footer.first(size - kTailBytes);

  uint64_t row = 0, side = 0, streams = 0;
  if (!take_number(footer, row) || !take_number(footer, side) || !take_number(footer, streams))
    throw error("", "the footer ends early");
  if (PartName{row, side} != name_)
    throw error("", "/parts leads to the part of {}, side {}, in place of side {}", of_row(row), side,
                name_.side);
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

uint64_t Part::piece_bytes(uint64_t piece) const {
  return std::min(kPieceBytes, body_bytes() - piece * kPieceBytes);
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

/// Whole pieces.
void Part::read_pieces(uint64_t first, uint64_t count, std::span<std::byte> out) const {
  parallel_for(count, kGrainPieces, [&](size_t begin, size_t end, int) {
    for (uint64_t piece = first + begin; piece < first + end; ++piece) {
      const auto bytes = out.subspan((piece - first) * kPieceBytes, piece_bytes(piece));
      data_.read(place_.begin + piece * kPieceBytes, bytes.size(), bytes);
      verify(piece, bytes);
    }
  });
}

std::shared_ptr<const Part::Bytes> Part::cached_piece(uint64_t piece) const {
  {
    const std::lock_guard lock(mutex_);
    for (auto it = cache_.begin(); it != cache_.end(); ++it)
      if (it->piece == piece) {
        cache_.splice(cache_.begin(), cache_, it);
        return it->bytes;
      }
  }
  auto fresh = std::make_shared<Bytes>(piece_bytes(piece));
  read_pieces(piece, 1, *fresh);
  const std::lock_guard lock(mutex_);
  cache_.push_front({piece, fresh});
  if (cache_.size() > kCachedPieces) cache_.pop_back();
  return fresh;
}

void Part::read_body(uint64_t first, std::span<std::byte> out) const {
  if (out.empty()) return;
  if (!whole_.empty()) {
    std::memcpy(out.data(), whole_.data() + first, out.size());
    return;
  }
  while (!out.empty()) {
    const uint64_t piece = first / kPieceBytes, within = first % kPieceBytes;
    const uint64_t end = first + out.size();
    const uint64_t end_piece = end == body_bytes() ? digests_.size() : end / kPieceBytes;
    uint64_t n = 0;
    if (within == 0 && piece < end_piece) {
      n = std::min(body_bytes(), end_piece * kPieceBytes) - first;
      read_pieces(piece, end_piece - piece, out.first(n));
    } else {
      n = std::min<uint64_t>(piece_bytes(piece) - within, out.size());
      std::memcpy(out.data(), cached_piece(piece)->data() + within, n);
    }
    first += n;
    out = out.subspan(n);
  }
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
