#include "lib/codec/dial.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

OptionField field_of(Options& options, std::string_view name) {
  for (OptionField& field : options.fields())
    if (field.name == name) return field;
  throw failed("there is no option {}", name);
}

double number(Options& options, std::string_view name) {
  return std::get<double>(value_of(field_of(options, name)));
}

void set(Options& options, std::string_view name, const Scalar& value) {
  set_value(field_of(options, name), value);
}

/// Rounded to three digits, so that the option can be typed as it was used.
double rounded(double x) { return std::stod(fmt::format("{:.3g}", x)); }

/// The setting is the number of times that steps are halved. Bounds that were given are scaled; weights need an absolute one.
void turn_kvcomp(Options& options, double setting, bool weighed) {
  const double scale = std::exp2(-setting);
  bool bounded = false;
  for (const char* bound : {"max-error", "max-rel-error", "max-logit-error"})
    if (const double given = number(options, bound); given > 0) {
      set(options, bound, rounded(std::min(given * scale, field_of(options, bound).max)));
      bounded = true;
    }
  if (!bounded && weighed) {
    set(options, "max-error", rounded(scale));
    set(options, "key-quant", "block");
  } else if (!bounded) {
    const bool by_channel = std::get<std::string>(value_of(field_of(options, "key-quant"))) == "channel";
    const auto relative = [&](const char* name, double usual) {
      const double given = number(options, name);
      set(options, name, rounded(std::min((given > 0 ? given : usual) * scale, 1.0)));
    };
    relative("key-rel", by_channel ? 0.25 : 0.05);
    relative("value-rel", 0.15);
  }
}

void turn_sparse(Options& options, double setting, bool) {
  set(options, "sparsity", static_cast<int64_t>(std::llround(setting)));
}

/// Whole settings are the book's rungs. Between two of them the finer rung is used, with a rate-distortion that accepts more
/// error for fewer bits.
void turn_transform(Options& options, double setting, bool) {
  const double rung = std::ceil(setting);
  set(options, "rung", static_cast<int64_t>(rung));
  set(options, "rate-distortion", rounded(0.12 * (1 + 2.5 * (rung - setting))));
}

/// Sets the whole bits alone. By the fraction the caller (cli/search/goal.cpp) gives some layers and sides one bit more.
void turn_bits(Options& options, double setting, bool) {
  set(options, "bits", static_cast<int64_t>(std::floor(setting)));
}

const Dial kDials[] = {
    {.codec = "kvcomp", .least = -24, .most = 24, .useful = -4, .turn = turn_kvcomp},
    {.codec = "sparse",
     .sets = {"sparsity"},
     .least = 1,
     .most = 1 << 16,
     .whole = true,
     .turn = turn_sparse},
    {.codec = "transform",
     .sets = {"bits", "rung", "rate-distortion"},
     .least = 0,
     .most = 1023,
     .turn = turn_transform},
    {.codec = "kivi", .sets = {"bits", "layer-bits"}, .least = 1, .most = 8, .turn = turn_bits},
    {.codec = "q4", .sets = {"bits", "layer-bits"}, .least = 2, .most = 8, .turn = turn_bits},
    {.codec = "rvq", .why_not = "its rate is that of the codebooks it was given: train-rvq makes them"},
    {.codec = "selfindex", .why_not = "it stores 2 bits and what its index takes"},
    {.codec = "fp8", .why_not = "it stores 8 bits"},
    {.codec = "lossless", .why_not = "it keeps every bit, and takes what these take"},
    {.codec = "none", .why_not = "it stores 16 bits"},
};

}  // namespace

const Dial& dial_of(const CodecEntry& codec) {
  const auto found = std::ranges::find(kDials, codec.name, &Dial::codec);
  if (found == std::end(kDials)) throw failed("the codec {} has no dial", codec.name);
  return *found;
}

bool has_dial(const CodecEntry& codec) {
  return dial_of(codec.of(Side::key)).turn || dial_of(codec.of(Side::value)).turn;
}

}  // namespace kvcodec
