// A codec stores streams: named typed arrays of the documents of one side (keys or values) of one layer group.
//
// A codec reads and writes streams through the two interfaces below and never sees a file. lib/codec/encoded.hpp binds them to memory,
// formats/cache/codes_file.hpp to HDF5. The latter can keep index streams bit-packed, which the codec does not notice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/core/checked.hpp"
#include "lib/core/dtype.hpp"
#include "lib/core/names.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

/// The purpose of a stream's bits: the lines of the ledger.
enum class Category : uint8_t {
  payload,  ///< the quantized values or coefficients themselves
  ids,      ///< indices into a book
  scales,   ///< scales, zero points, means, norms
  tables,   ///< codebooks made while encoding
  offsets,  ///< lengths, counts and positions, by which a block or a token is found and decoded alone
  exempt,   ///< tokens kept at 16 bits
};
inline constexpr Category kCategories[] = {Category::payload, Category::ids,     Category::scales,
                                           Category::tables,  Category::offsets, Category::exempt};
constexpr auto names_of(Category) {
  return std::to_array<std::string_view>({"payload", "ids", "scales", "tables", "offsets", "exempt"});
}

/// Describes one stream: rows of a fixed shape, as many per document as the codec appends.
struct StreamSpec {
  std::string name;  ///< lower case, e.g. "coefficients"
  DType type = DType::u8;
  std::vector<uint64_t> row_shape;  ///< shape of one row; empty = one scalar
  Category category = Category::payload;
  uint64_t index_bound = 0;  ///< n > 0: elements are indices in [0, n), which ceil(log2 n) bits may hold
  bool shared = false;       ///< one array for the group side instead of rows per document, as for a book

  uint64_t row_elements() const { return checked_product(row_shape); }
  uint64_t row_bytes() const { return row_elements() * size_of(type); }
  bool operator==(const StreamSpec&) const = default;
};

/// The streams of one document, to read. Shared streams look the same from every document.
class StreamReader {
 public:
  virtual ~StreamReader() = default;

  /// Number of rows that the document has in that stream. Throws Error(bad_input) if there is no such stream.
  virtual uint64_t rows(std::string_view stream) const = 0;

  /// The ids of the document's tokens [first, first + count). No stream of the codec holds them: a file keeps them beside the streams, and
  /// has them before the tokens' rows are appended. Throws Error(bad_input) if they are not all there, or not known at all.
  virtual std::vector<uint32_t> token_ids(uint64_t /*first*/, uint64_t /*count*/) const {
    throw bad_input("the ids of the document's tokens are not known");
  }

  /// Rows [first, first + count), in the type and layout of the stream's spec, to `out` (count * row_bytes).
  /// Throws Error(bad_input) if they are not all there.
  virtual void read(std::string_view stream, uint64_t first, uint64_t count,
                    std::span<std::byte> out) const = 0;

  /// The same into a vector of elements T (whose size must be the stream's element size).
  template <class T>
  std::vector<T> read(std::string_view stream, uint64_t first, uint64_t count,
                      uint64_t elements_per_row) const {
    if (const uint64_t there = rows(stream); first > there || count > there - first)  // before allocating
      throw bad_input("stream '{}' has {} rows; {} rows from row {} on are not all there", stream, there,
                      count, first);
    std::vector<T> out(checked_mul(count, elements_per_row));
    read(stream, first, count, std::as_writable_bytes(std::span(out)));
    return out;
  }
};

/// Elements [first, first + count) of a document's ids. Throws Error(bad_input) if they are not all there.
inline std::vector<uint32_t> ids_within(std::span<const uint32_t> ids, uint64_t first, uint64_t count) {
  if (first > ids.size() || count > ids.size() - first)
    throw bad_input("the document has {} token ids; {} from {} on are not all there", ids.size(), count,
                    first);
  const auto chosen = ids.subspan(first, count);
  return {chosen.begin(), chosen.end()};
}

/// The streams of one document, to extend. Only the newest document of a file can be extended.
class StreamStore : public StreamReader {
 public:
  using StreamReader::read;

  /// Appends rows to the document's stream. bytes.size() is a multiple of row_bytes.
  virtual void append(std::string_view stream, std::span<const std::byte> bytes) = 0;

  /// Drops the document's rows from `rows` on: for the tail that waits uncompressed and is stored anew at every append.
  virtual void truncate(std::string_view stream, uint64_t rows) = 0;

  /// Ids of tokens behind those known so far, before their rows are appended.
  virtual void add_token_ids(std::span<const uint32_t> /*ids*/) {}

  template <class T>
  void append_values(std::string_view stream, std::span<const T> values) {
    append(stream, std::as_bytes(values));
  }

  /// Weights of the document's tokens, from the first one on, for codecs that want them (Codec::weighs_tokens). No stream holds them:
  /// append() asks for them, decoding does not.
  void weigh_tokens(std::vector<float> weights) { weights_ = std::move(weights); }
  /// 1 where it is not known.
  float token_weight(uint64_t token) const { return token < weights_.size() ? weights_[token] : 1; }

 private:
  std::vector<float> weights_;
};

// Streams of unsigned numbers whose type depends on their bound.

/// Calls body(T()) for that type: u8, u16 or u32.
template <class Body>
void with_unsigned(DType type, const Body& body) {
  type == DType::u8 ? body(uint8_t{}) : type == DType::u32 ? body(uint32_t{}) : body(uint16_t{});
}

template <class T>
void append_unsigned(StreamStore& document, std::string_view stream, DType type, std::span<const T> values) {
  with_unsigned(type, [&]<class Stored>(Stored) {
    document.append_values<Stored>(stream, std::vector<Stored>(values.begin(), values.end()));
  });
}

template <class T>
std::vector<T> read_unsigned(const StreamReader& document, std::string_view stream, DType type,
                             uint64_t first, uint64_t count, uint64_t per_row) {
  std::vector<T> values;
  with_unsigned(type, [&]<class Stored>(Stored) {
    const auto stored = document.read<Stored>(stream, first, count, per_row);
    values.assign(stored.begin(), stored.end());
  });
  return values;
}

}  // namespace kvcodec
