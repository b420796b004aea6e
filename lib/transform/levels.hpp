// Quantizing the components of a transform, and what their levels take.
//
// One step serves all components (basis.hpp). A component of deviation far below the step gives zeros only, and a
// book calls it dead: it costs nothing. The others belong to classes by their mean level E|q|, two to an octave.
// Each class has one table of the frequencies of levels, learned beforehand, so that a file holds none.
//
// Levels. q is the level of y / step. Where a class's levels are large, their low bits are as good as uniform:
// shift(class) of them are stored as they are, and the symbol coded is q >> shift. Symbols from -15 to 15 have
// frequencies; beyond stands the escape.
//
// Decision with rate (entropy-constrained scalar quantization: Chou, Lookabaugh and Gray, 1989). Between two
// levels k - 1 and k the encoder takes the one of least
//   (|y| / step - r_k)^2 + lambda * bits of k
// where r_k is where level k is reconstructed.
//
// Reconstruction. Level k stands for k - shrink(class, k), the mean of the values that are quantized to it.
// Means have less energy than the values. Attention adds this loss up over all tokens it looks at, whereas
// noise averages out. A gain for each component gives a fraction of the energy back:
//   gain = (E[y^2] / E[y yhat])^unbias, the quotient limited to 1 to 3
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/core/lazy.hpp"
#include "lib/core/progress.hpp"
#include "lib/core/team.hpp"
#include "lib/core/view.hpp"
#include "lib/entropy/rans_decoder.hpp"
#include "lib/entropy/rans_encoder.hpp"
#include "lib/transform/level_value.hpp"

namespace kvcodec {

inline constexpr size_t kLevelClasses = 40;
inline constexpr uint8_t kDeadClass = 255;
/// Symbols: -kLargestSymbol to kLargestSymbol, stored from 0 on.
inline constexpr int kLargestSymbol = 15;
inline constexpr size_t kLevelSymbols = 2 * kLargestSymbol + 1;
/// Bits of an escaped symbol: the levels that can be stored at all are below 2^(kEscapedBits - 1).
inline constexpr unsigned kEscapedBits = 24;
/// Components of so many steps and more get no level: their token is kept exactly.
inline constexpr float kMostSteps = 1 << (kEscapedBits - 2);

/// The class of components of this mean level, or kDeadClass.
uint8_t class_of_mean_level(double mean_level);
/// Low bits of its levels that are stored as they are.
unsigned shift_of_class(size_t level_class);

/// What all components of a class share.
struct LevelClass {
  RansModel model;
  std::array<float, kShrunkLevels> shrink{};  ///< of levels 1, 2, and 3 and beyond, in steps
};

/// Codes the symbols of levels; a run's model is the number of its class.
struct LevelSymbolCoder {
  explicit LevelSymbolCoder(std::span<const RansModel> models) : encoder(models), decoder(models) {}
  RansEncoder encoder;
  RansDecoder<uint8_t> decoder;
};

/// All classes, and how encoders decide by them.
class LevelTables {
 public:
  /// Throws Error(bad_input) unless there are kLevelClasses classes, whose models have kLevelSymbols symbols and an
  /// escape of kEscapedBits bits, and whose shrinks are in [0, 0.5]; or for a lambda below 0.
  LevelTables(std::vector<LevelClass> classes, double lambda);

  const LevelClass& operator[](size_t level_class) const { return classes_[level_class]; }
  const std::vector<LevelClass>& classes() const { return classes_; }
  double lambda() const { return lambda_; }
  /// Of the models of all classes. Made when it is first asked for, once for all copies: its tables take a megabyte.
  const LevelSymbolCoder& symbol_coder() const;

  /// Levels of one component. Throws Error(bad_input) for values whose level would be 2^23 or more.
  void quantize(size_t level_class, float step, std::span<const float> values,
                std::span<int32_t> levels) const;
  /// The values that levels stand for.
  void reconstruct(size_t level_class, float step, float gain, std::span<const int32_t> levels,
                   std::span<float> values) const;
  /// bits[i] += what levels[i] takes in that class.
  void add_bits(size_t level_class, std::span<const int32_t> levels, std::span<float> bits) const;
  /// Whether a vector of `width` values is better coded, with this squared error in squared steps and these bits, than
  /// kept exactly, without an error and with 16 bits for each value. A bit counts lambda, but at least the default of
  /// LevelOptions. So the error of any vector that is coded stays below lambda times 16 bits for each value.
  bool better_coded(double error, double bits, size_t width) const;

 private:
  std::vector<LevelClass> classes_;
  double lambda_;
  /// Per class: the least |y| / step that level k = 1 .. kLargestSymbol takes.
  std::vector<std::array<float, kLargestSymbol + 1>> thresholds_;
  std::vector<std::array<float, kLevelSymbols + 1>> symbol_bits_;
  std::shared_ptr<Lazy<LevelSymbolCoder>> symbol_coder_;
};

/// How the components of one basis are quantized at one step.
struct LevelRung {
  float step = 0;
  std::vector<uint8_t> classes;  ///< of each component, or kDeadClass
  std::vector<float> gains;      ///< of each component

  /// Components that are not dead, in rising order.
  std::vector<uint32_t> live() const;
};

struct LevelOptions {
  double lambda = 0.12;  ///< 6% fewer bits than plain rounding at the same loss; larger values gain less
  double unbias = 0.5;   ///< at 1 the gain adds noise; at 0 (no gain) a bias adds up over tokens
};

/// The gain of a component: (energy / product)^unbias, from 1 to 3^unbias. energy: the sum of its squared values;
/// product: the sum of its values times what their levels stand for. 1 where the product is not positive.
double unbiasing_gain(double energy, double product, double unbias);

/// What one step came to on the training sample.
struct RungMeasure {
  double bits = 0;   ///< per token, over all bases; in LearnedTransform and TransformBook per value
  double error = 0;  ///< squared, weighted, per token, over all bases and the components that these have
};

struct LearnedLevels {
  std::vector<LevelClass> classes;
  std::vector<std::vector<LevelRung>> rungs;  ///< of each basis, of each step
  std::vector<RungMeasure> measures;          ///< of each step
};

/// Learns classes, gains and tables. samples: for each basis its components, (components, tokens), all of the same number
/// of tokens. steps: in any order. team: all ranks have all samples; each quantizes its share of bases and steps. Throws
/// Error(failed) for samples without tokens or of different numbers of them.
LearnedLevels learn_levels(std::span<const Matrix<float>> samples, std::span<const float> steps,
                           const LevelOptions& options, const Progress& progress = {},
                           const Team& team = alone());

}  // namespace kvcodec
