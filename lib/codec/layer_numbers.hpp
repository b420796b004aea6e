// A number for each layer's keys and values, as one option of a codec says it: a text of the keys of all layers and then of
// the values, "3 3 2 4 4 3". Empty: one number, another option's, for all.
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
  /// text: of the option; otherwise: the number for all, where it is empty. Throws Error(usage) naming the option unless
  /// there are two numbers for each layer, within the limits.
  LayerNumbers(std::string_view option, const std::string& text, int64_t otherwise, int64_t least,
               int64_t most, int num_layers);

  int64_t of(int layer, Side side) const {
    return numbers_.empty() ? otherwise_ : numbers_[static_cast<size_t>(layer)][side == Side::value ? 1 : 0];
  }

 private:
  int64_t otherwise_;
  std::vector<std::array<int64_t, 2>> numbers_;  // keys, values
};

/// The text that says these: keys of all layers, then values.
std::string layer_numbers_text(std::span<const int64_t> numbers);

/// Parameters without an option that says nothing.
Record without_empty(const Record& record, std::string_view option);

/// The option of codecs whose bits may differ from layer to layer.
inline OptionField layer_bits_field(std::string& text) {
  return {
      .name = "layer-bits",
      .help =
          "bits of each layer's keys, then of its values, as '3 2 2 3': as --total-bits finds them with --weights "
          "(default: --bits for all)",
      .target = &text};
}

}  // namespace kvcodec
