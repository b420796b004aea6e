// Books of type `codebooks`: what train-rvq learns and the codec `rvq` needs (FORMAT.md, "codebooks").
//
// Parts: "value"; "key_low" and "key_high", the dimensions of keys that are quantized apart (key_high may be missing). Parameters: all of
// RvqBookOptions and RvqTrainOptions by the names of their fields, and head-dim, value-dim, source, rope, error-scales. Arrays, for each part:
//   <part>/entries             f32|f16|bf16 [N_q, N_c, dims]    projections and biases folded in
//   key_low/dimensions, key_high/dimensions     u32 [dims]      of a head, rising
//   training/key/dimension_error                f64 [head-dim]  mean squared error of the probe quantizer
//   training/key/dimension_energy               f64 [head-dim]  mean square
//   training/<part>/loss        f64 [epochs, N_q]    training/<part>/refit_loss  f64 [rounds]
//   training/<part>/usage       u64 [N_q, N_c]       training/<part>/progress    u64 [4]  epochs, refits,
//                                                    whether refits ended, steps of Adam
//   training/<part>/entries     f32 [N_q, N_c, dims]         before rounding, where the type is not f32
//   training/<part>/projection  f32 [N_q, dims + 1, dims]    simvq: W transposed, then the bias
//   training/<part>/adam_mean, training/<part>/adam_variance f32 [rows, dims]   simvq by gradient
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/codec/book.hpp"
#include "lib/codec/layer_weights.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/names.hpp"
#include "lib/core/options.hpp"
#include "lib/rvq/residual.hpp"
#include "lib/rvq/train.hpp"

namespace kvcodec {

// The dimensions of a key that are quantized separately (VQKV, section 3.1). The paper finds that some dimensions are reconstructed badly
// when all are quantized together, and that they recur with the pairs of the rotary embedding. It therefore quantizes components of low
// and of high frequency separately ("low" and "high"), and tells them apart by the quality of their reconstruction.
//
// A band of neighbouring frequencies is high. Pairs that turn at nearly the same speed have much in common,
// which a quantizer of both uses; choosing the worst pairs one by one would separate them. On the demo model
// that costs more than the split gains.

enum class SplitBy : uint8_t {
  measured,  ///< the band with the largest errors of a probe quantizer is high
  rope,      ///< pairs that the rotary embedding turns fastest are high
  none,      ///< all dimensions are low
};
constexpr auto names_of(SplitBy) { return std::to_array<std::string_view>({"measured", "rope", "none"}); }

/// Dimensions of a head, each in one of the two, rising.
struct DimensionSplit {
  std::vector<uint32_t> low, high;

  size_t head_dim() const { return low.size() + high.size(); }
  /// Throws Error(bad_input) unless every dimension below head_dim() is there once, rising.
  void check() const;
};

/// Dimensions 2 * pairs; pair j is dimensions j and j + pairs, which the rotary embedding turns together and which stay together, pair 0
/// the fastest. high_pairs neighbouring pairs are high (those with the largest sum of their errors; of equal ones the first). errors: of
/// each dimension; only for SplitBy::measured. A head of odd size has a last dimension without a partner, which is low.
DimensionSplit split_dimensions(SplitBy by, std::span<const double> errors, size_t head_dim,
                                size_t high_pairs);

/// The paper's share: of 64 pairs at d = 128, 24 are high (its numbers of parameters give 80 and 48).
inline size_t paper_high_pairs(size_t head_dim) { return (head_dim / 2 * 3 + 4) / 8; }

/// Numbers and sizes of codebooks. The defaults train in minutes on two cores.
struct RvqBookOptions final : Options {
  int64_t codebooks_value = 8;  ///< the paper's for Llama-3.1-8B, at d = 128
  int64_t codebooks_low = 6;  ///< with codebooks_high: about the bits per value of values, at the usual split
  int64_t codebooks_high = 4;
  int64_t entries_value = 256;
  int64_t entries_low = 256;
  int64_t entries_high = 256;
  SplitBy split = SplitBy::measured;
  int64_t high_dims = -1;         ///< -1 = the paper's share
  DType entry_type = DType::f16;  ///< half the book's size; the rounding is far below the error

  std::vector<OptionField> fields() override;
  void check() const override {
    if (high_dims > 0 && high_dims % 2 != 0)
      throw usage_error("--high-dims is {}; dimensions go in pairs, so it must be even", high_dims);
  }
};

/// The named settings of --preset, or nullptr; "paper-8b" and "paper-3b" are the paper's.
struct RvqPreset {
  std::string_view name, summary;
  int64_t codebooks[3], entries[3];  ///< of value, key_low, key_high
  bool paper;  ///< whether the method, its steps and the type of entries are the paper's
};
std::span<const RvqPreset> rvq_presets();
const RvqPreset* find_rvq_preset(std::string_view name);
/// Sets the options of a preset. The paper's: entries W q (its equation 1), W by the gradient of equation 4 and nothing after it;
/// kvcodec-rvq(7) names the source of each.
void apply_preset(const RvqPreset& preset, RvqBookOptions& book, RvqTrainOptions& training);

enum class RvqPart : uint8_t { value, key_low, key_high };
inline constexpr RvqPart kRvqParts[] = {RvqPart::value, RvqPart::key_low, RvqPart::key_high};
constexpr auto names_of(RvqPart) { return std::to_array<std::string_view>({"value", "key_low", "key_high"}); }

struct RvqBook {
  RvqBookOptions options;
  RvqTrainOptions training;
  int head_dim = 0;                    ///< of keys
  int value_dim = kAsKeys;             ///< with 0 there are codebooks of keys alone
  RopeChoice rope = RopeChoice::keep;  ///< the keys they were learned from
  /// Vectors are divided by their layer's scale before they are quantized, and multiplied by it after.
  LayerWeights weights = {};
  std::string source;  ///< identifies the data it was learned from
  DimensionSplit split;
  std::vector<double> dimension_error, dimension_energy;  ///< of keys; empty if no probe was made

  struct Part {
    Codebooks books;  ///< with the training record as trained, else as stored, rounded to entry_type
    RvqTrainState state;
  };
  std::array<Part, 3> parts;

  Part& of(RvqPart part) { return parts[static_cast<size_t>(part)]; }
  const Part& of(RvqPart part) const { return parts[static_cast<size_t>(part)]; }
  /// Numbers of codebooks and entries in the options. Without a split key_low has the codebooks of both, so
  /// that the bits are the same if low and high have equally many entries.
  size_t stages(RvqPart part) const {
    if (part == RvqPart::value) return value_dim == 0 ? 0 : static_cast<size_t>(options.codebooks_value);
    if (part == RvqPart::key_high)
      return split.high.empty() ? 0 : static_cast<size_t>(options.codebooks_high);
    return static_cast<size_t>(options.codebooks_low + (split.high.empty() ? options.codebooks_high : 0));
  }
  size_t entries(RvqPart part) const {
    const int64_t of[] = {options.entries_value, options.entries_low, options.entries_high};
    return static_cast<size_t>(of[static_cast<size_t>(part)]);
  }
  size_t width(RvqPart part) const {
    const size_t of[] = {dims(Side::value), split.low.size(), split.high.size()};
    return of[static_cast<size_t>(part)];
  }
  size_t dims(Side side) const { return as_size(layer_of(1, head_dim, value_dim).stored_dim(side)); }
};

/// Entries are rounded to their stored type. Throws Error(bad_input) for entries beyond its range.
Book to_book(const RvqBook& rvq);

/// Checks everything: type, parameters, shapes, dimensions, finite values. Throws Error(bad_input) naming the
/// array. with_training: also reads the training record, which must then be there; else it stays empty.
RvqBook rvq_book_from(const Book& book, bool with_training);

}  // namespace kvcodec
