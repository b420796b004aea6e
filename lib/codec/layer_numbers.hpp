// A number for the keys and one for the values of each layer, read from the text of one option of a codec: first the keys of
// all layers, then the values ("3 3 2 4 4 3": three layers). With an empty text the number of another option serves all.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/codec/group_shape.hpp"
#include "lib/core/options.hpp"

namespace kvcodec {

class LayerNumbers {
 public:
  /// option: its name, for messages. text: its value; where that is empty, all numbers are `otherwise`. Throws
  /// Error(usage) naming the option unless there are two integers for each layer, all from `least` to `most`.
  LayerNumbers(std::string_view option, const std::string& text, int64_t otherwise, int64_t least,
               int64_t most, int num_layers);

  int64_t of(int layer, Side side) const {
    return numbers_.empty() ? otherwise_ : numbers_[static_cast<size_t>(layer)][side == Side::value ? 1 : 0];
  }

 private:
  int64_t otherwise_;
  std::vector<std::array<int64_t, 2>> numbers_;  // keys, values
};

/// The text of such numbers: keys of all layers, then values.
std::string layer_numbers_text(std::span<const int64_t> numbers);

/// The record, without that option if its value is an empty text.
Record without_empty(const Record& record, std::string_view option);

/// The option `layer-bits` of codecs whose bits may differ from layer to layer.
inline OptionField layer_bits_field(std::string& text) {
  return {
      .name = "layer-bits",
      .help =
          "bits of each layer's keys, then of its values, as '3 2 2 3': as --total-bits finds them with --weights "
          "(default: --bits for all)",
      .target = &text};
}

}  // namespace kvcodec
