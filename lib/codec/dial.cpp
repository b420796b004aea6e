#include "lib/codec/dial.hpp"

#include "lib/codec/codec.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {

double rounded_setting(double x) { return std::stod(fmt::format("{:.3g}", x)); }

bool has_dial(const CodecEntry& codec) {
  return codec.of(Side::key).dial.turn || codec.of(Side::value).dial.turn;
}

}  // namespace kvcodec
