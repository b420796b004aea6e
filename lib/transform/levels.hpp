// Quantization of the components of a transform, and the cost of their levels.
//
// One step serves all components (basis.hpp). A component of deviation far below the step gives zeros only, and a
// book calls it dead: it costs nothing. The others belong to classes by their mean level E|q|, two to an octave.
// Each class has one table of the frequencies of levels, learned beforehand, so that a file holds none.
//
// Levels. q is the level of y / step. Where a class's levels are large, their low bits are nearly uniform: shift(class) of them are
// stored as they are, and the symbol coded is q >> shift. Symbols from -15 to 15 have frequencies; the escape stands for all others.
//
// Decision with rate (entropy-constrained scalar quantization: Chou, Lookabaugh and Gray, 1989). Of two neighbouring
// levels k - 1 and k the encoder takes the one with the smaller
//   (|y| / step - r_k)^2 + lambda * bits of k
// where r_k is the reconstruction of level k.
//
// Reconstruction. Level k stands for k - shrink(class, k), the mean of the values that are quantized to it.
// Means have less energy than the values. Attention adds this loss up over all tokens that it sees, whereas
// noise averages out. A gain for each component restores a fraction of the energy:
//   gain = (E[y^2] / E[y yhat])^unbias, the quotient limited to 1 to 3
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lib/core/lazy.hpp"
#include "lib/core/progress.hpp"
#include "lib/core/team.hpp"
#include "lib/core/view.hpp"
#include "lib/entropy/rans.hpp"
#include "lib/transform/basis.hpp"
#include "lib/transform/level_value.hpp"

namespace kvcodec {

inline constexpr size_t kLevelClasses = 40;
inline constexpr uint8_t kDeadClass = 255;
/// Symbols: -kLargestSymbol to kLargestSymbol, stored from 0 on.
inline constexpr int kLargestSymbol = 15;
inline constexpr size_t kLevelSymbols = 2 * kLargestSymbol + 1;
/// Bits of an escaped symbol: levels that can be stored are below 2^(kEscapedBits - 1).
inline constexpr unsigned kEscapedBits = 24;
/// A component of this many steps or more gets no level: its token is kept exactly.
inline constexpr float kMaxSteps = 1 << (kEscapedBits - 2);

/// The class of components of this mean level, or kDeadClass.
uint8_t class_of_mean_level(double mean_level);
/// The same for components that must not be dead: 0 in place of kDeadClass.
uint8_t live_class_of_mean(double mean_level);
/// The mean magnitude of levels; 0 for none.
double mean_size(std::span<const int32_t> levels);
/// Number of low bits of a class's levels that are stored as they are.
unsigned shift_of_class(size_t level_class);

/// The model and shrinks that all components of a class share.
struct LevelClass {
  RansModel model;
  std::array<float, kShrunkLevels> shrink{};  ///< of levels 1, 2, and 3 and beyond, in steps
};

/// Codes the symbols of levels. The model of a run is its class's number.
struct LevelSymbolCoder {
  explicit LevelSymbolCoder(std::span<const RansModel> models) : encoder(models), decoder(models) {}
  RansEncoder encoder;
  RansDecoder<uint8_t> decoder;
};

/// All classes, and the encoder's decisions by them.
class LevelTables {
 public:
  /// Throws Error(bad_input) unless there are kLevelClasses classes, whose models have kLevelSymbols symbols and an
  /// escape of kEscapedBits bits, and whose shrinks are in [0, 0.5]; or for a lambda below 0.
  LevelTables(std::vector<LevelClass> classes, double lambda);

  const LevelClass& operator[](size_t level_class) const { return classes_[level_class]; }
  const std::vector<LevelClass>& classes() const { return classes_; }
  /// The coder of all classes' models. It is made on first use, once for all copies: its tables take a megabyte.
  const LevelSymbolCoder& symbol_coder() const;

  /// Levels of one component. Throws Error(bad_input) for values whose level would be 2^23 or more.
  void quantize(size_t level_class, float step, std::span<const float> values,
                std::span<int32_t> levels) const;
  /// The values that levels stand for.
  void reconstruct(size_t level_class, float step, float gain, std::span<const int32_t> levels,
                   std::span<float> values) const;
  /// bits[i] += the bits of levels[i] in that class.
  void add_bits(size_t level_class, std::span<const int32_t> levels, std::span<float> bits) const;
  /// True if it is better to code a vector of `width` values, with this squared error (in squared steps) and these bits, than
  /// to keep it exactly, without an error and with 16 bits for each value. A bit costs lambda, but at least the default of
  /// LevelOptions. So the squared error of a coded vector stays below lambda times 16 for each value.
  bool better_coded(double error, double bits, size_t width) const;

 private:
  std::vector<LevelClass> classes_;
  double lambda_;
  /// Per class: the smallest |y| / step that gets level k = 1 .. kLargestSymbol.
  std::vector<std::array<float, kLargestSymbol + 1>> thresholds_;
  std::vector<std::array<float, kLevelSymbols + 1>> symbol_bits_;
  std::shared_ptr<Lazy<LevelSymbolCoder>> symbol_coder_;
};

/// Quantization of the components of one basis at one step.
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
/// product: the sum of its values times their reconstructions. 1 where the product is not positive.
double unbiasing_gain(double energy, double product, double unbias);

/// Bits and errors of one step on the training sample.
struct RungMeasure {
  double bits = 0;   ///< per token, over all bases; in LearnedTransform and TransformBook per value
  double error = 0;  ///< squared, weighted, per token, over all bases and their components
};

struct LearnedLevels {
  std::vector<LevelClass> classes;
  std::vector<std::vector<LevelRung>> rungs;  ///< of each basis, of each step
  std::vector<RungMeasure> measures;          ///< of each step
};

/// Learns classes, gains and tables. samples: for each basis its components, (components, tokens), all with the same
/// number of tokens. steps: in any order. team: all ranks have all samples; each quantizes its share of bases and steps.
/// Throws Error(failed) for samples without tokens or with different numbers of them.
LearnedLevels learn_levels(std::span<const Matrix<float>> samples, std::span<const float> steps,
                           const LevelOptions& options, const Progress& progress = {},
                           const Team& team = alone());

// Blocks of levels as bytes, and back.
//
// A block is the levels of n tokens, (components, n). Its bytes are
//   a segment   of rANS (lib/entropy/rans.hpp): symbols of component 0, of all tokens in turn, then of component 1 …;
//               a run of symbols has the model of its component's class
//   low bits    component by component, those of all tokens in turn, shift(class) bits each, most significant first,
//               then zero bits to the end of the byte
// Escapes of the segment hold q >> shift, zigzag: 0, -1, 1, -2 … are 0, 1, 2, 3 …

class LevelCoder {
 public:
  /// classes: of the components, none of them dead. The tables outlive it.
  LevelCoder(const LevelTables& tables, std::vector<uint8_t> classes);

  size_t components() const { return classes_.size(); }

  /// Appends a block. levels: (components, tokens), sizes below 2^23. Returns its bytes.
  uint32_t encode(MatrixView<const int32_t> levels, std::vector<uint8_t>& out) const;

  /// Decodes consecutive blocks of `tokens` tokens each, the first one at payload[0], block i of block_bytes[i] bytes, to columns [i *
  /// tokens, (i + 1) * tokens) of levels: (components, blocks * tokens). Decoding four of them at a time is several times as fast as one by
  /// one. Throws Error(bad_input) for bytes that no encoder writes, which includes levels of 2^23 and beyond.
  void decode(std::span<const uint8_t> payload, std::span<const uint32_t> block_bytes, size_t tokens,
              MatrixView<int32_t> levels) const;

 private:
  std::vector<RansRun> runs(size_t tokens) const;
  uint64_t low_bytes(size_t tokens) const;

  const LevelTables& tables_;
  std::vector<uint8_t> classes_;
  uint64_t low_bits_ = 0;  // of a token
};

// A document's first token, coded by itself.
//
// Attention without a relevant token goes to the first token (Xiao et al., "Efficient Streaming Language Models with Attention
// Sinks", 2024). Its keys and values are like no other token's and, except for the first layers, nearly the same in all documents;
// an error in them reaches every later token. So first tokens have a mean of their own, learned from those of many documents, and
// the difference is quantized value by value, `finer` times as finely as other tokens' components:
//   q ~ (x - mean) W finer / step        x = mean + q V step / finer        W = M^(1/2), V = W^-1 (basis.hpp)
// The values of a head have one class of levels (levels.hpp). None is dead, so that no error is unbounded.

/// Statistics of the first tokens of one part.
struct FirstTokens {
  std::vector<float> mean;                    ///< (width); empty: nothing
  std::vector<std::vector<uint8_t>> classes;  ///< of each step, of each head: (width / head_dim)

  bool empty() const { return mean.empty(); }
};

/// Minimum number of documents for learning first tokens: fewer say too little about others.
inline constexpr size_t kMinFirstTokens = 8;

/// rows: first tokens, (documents, width), at least one; blocks: number of heads in a row; steps: those of other tokens.
FirstTokens learn_first_tokens(MatrixView<const float> rows, const ErrorMetric& metric, size_t blocks,
                               std::span<const float> steps, double finer);

/// First tokens of one part at one step, to bytes and back.
class FirstTokenCoder {
 public:
  /// metric and tables outlive it. classes: those of the step.
  FirstTokenCoder(const ErrorMetric& metric, const LevelTables& tables, std::vector<float> mean,
                  const std::vector<uint8_t>& classes, float step, double finer);

  size_t width() const { return mean_.size(); }

  /// Appends a block of levels (LevelCoder), a head's values side by side. row: (width).
  void encode(std::span<const float> row, std::vector<uint8_t>& out) const;
  /// Throws Error(bad_input) for bytes that no encoder writes.
  void decode(std::span<const uint8_t> bytes, std::span<float> row) const;

 private:
  size_t head_dim() const { return width() / classes_.size(); }

  const ErrorMetric& metric_;
  const LevelTables& tables_;
  std::vector<float> mean_;
  std::vector<uint8_t> classes_;
  float step_;
  LevelCoder coder_;
};

// A device that decodes levels and rebuilds vectors in place of LevelCoder::decode, LevelTables::reconstruct and
// Synthesis::apply.

/// The components of a part of a transform at one step.
struct SynthesisTask {
  const LevelTables& tables;
  std::span<const uint8_t> classes;  ///< of each component, none of them dead
  std::span<const float> gains;      ///< likewise
  float step = 0;
  MatrixView<const float> rows;  ///< (components, width): the vector of each in the synthesis
  std::span<const float> mean;   ///< (width)
};

/// For one task. Threads may share it. Finds the vectors of consecutive blocks of `tokens` tokens each, the first one at
/// payload[0], block i of block_bytes[i] bytes: out (block_bytes.size() * tokens, width), with the same bits as from lib.
/// False: the device did not do it, for damaged blocks too, and `out` is undefined; the caller does it.
using SynthesisFunction =
    std::function<bool(std::span<const uint8_t> payload, std::span<const uint32_t> block_bytes, size_t tokens,
                       MatrixView<float> out)>;
/// For Engine::make. The function needs nothing of the task afterwards.
struct SynthesisOnDevice {
  using Factory = SynthesisFunction(const SynthesisTask&);
};

}  // namespace kvcodec
