// A set of strings in which all that begin a text are found by one walk along it: a double array (Aoe: An
// Efficient Digital Search Algorithm by Using a Double-Array Structure, IEEE Transactions on Software
// Engineering 15, 1989).
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcodec {

/// Immutable after construction. Nodes are numbers; each stands for a beginning of some of the strings.
class StringTrie {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kRoot = 0;

  /// Strings and their values, in any order; the strings differ, none is empty, and together they have at
  /// most 2^30 bytes.
  explicit StringTrie(std::vector<std::pair<std::string_view, uint32_t>> strings);

  /// The node one byte on, or kNone if no string goes on so.
  uint32_t next(uint32_t node, unsigned char byte) const {
    const uint32_t child = slots_[node].base + byte;
    return slots_[child].parent == node ? child : kNone;
  }
  /// Value of the string that ends here, or kNone.
  uint32_t value(uint32_t node) const { return slots_[node].value; }

 private:
  /// The child by byte b is slot base + b, if that says so. A node without children has base 0.
  struct Slot {
    uint32_t base = 0;
    uint32_t parent = kNone;
    uint32_t value = kNone;
  };
  class Builder;
  std::vector<Slot> slots_;
};

}  // namespace kvcodec
