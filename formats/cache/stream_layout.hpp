// How the streams of a side become bytes in a codes file, plain or bit-packed, and the JSON that says so
// (FORMAT.md, "Layouts" and "Packed indices"). Inside formats/ only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/codec/stream.hpp"

namespace kvcodec {

/// A stream as it is stored.
struct StoredSpec {
  StreamSpec spec;
  unsigned packed_bits = 0;  ///< 0 = plain; else each element takes this many bits, most significant first

  /// Bytes that so many rows of one document take. Throws Error(bad_input) if they do not fit 64 bits.
  uint64_t bytes(uint64_t rows) const;
  bool operator==(const StoredSpec&) const = default;
};

/// The streams of a side, in the order in which they lie behind each other.
using Layout = std::vector<StoredSpec>;

/// A codec's streams as they are stored in a file whose index streams are packed, or are not. Throws
/// Error(failed) for names that none may have and for rows without bytes.
Layout layout_of(const std::vector<StreamSpec>& specs, bool packed);

/// Bits an element of that stream takes where index streams are packed; 0 = it stays as it is.
unsigned packed_width(const StreamSpec& spec);

/// A JSON array of one object per stream. category: said of all of them in place of their own; empty = none.
std::string to_json_text(const Layout& layout, std::string_view category = {});
/// Throws Error(bad_input) naming the stream and the field that is wrong.
Layout layout_from_json(const std::string& text, std::string_view category = {});

/// Elements of an index stream, of spec.type, from `bits` bits each: those from bit `first_bit` of `in` on.
/// Throws Error(bad_input) for one that is not below the bound.
void unpack_elements(const StreamSpec& spec, std::span<const std::byte> in, uint64_t first_bit, unsigned bits,
                     std::span<std::byte> out);
std::vector<std::byte> pack_elements(const StreamSpec& spec, std::span<const std::byte> in, unsigned bits);

}  // namespace kvcodec
