// Statistics of a basis' components (classes, gains, means), fitted to the text to be coded.
//
// In text that differs from the training text of a basis, components have other variances, and means that are not 0. The book's classes
// then waste bits (on SmolLM2-135M a fifth of those of C++ code, 3% of those of another novel). So the encoder first surveys the tokens
// that it is about to code. Where this saves more bits than it takes, the file stores a class, an offset and a gain (levels.hpp) of its
// own for each component. Offsets shift the mean that is subtracted from the vectors, in quarters of a step.
//
// The saving of a change is measured over a histogram of each component. Tokens that are kept exactly whatever the component's class say
// nothing about it, and a few of them would decide a mean or a class. So the histogram has only tokens that are coded with the book's
// classes. Tokens that only other classes could code have a histogram of their own: an adaptation is fitted without and with them, and the
// better one is taken. Forward adaptation of a transform coder: Jayant and Noll, "Digital Coding of Waveforms", chapter 12.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/transform/levels.hpp"

namespace kvcodec {

/// Offsets are multiples of a step divided by this.
inline constexpr int kOffsetsPerStep = 4;
/// Gains change by multiples of 1 divided by this.
inline constexpr int kGainsPerUnit = 32;

struct Adaptation {
  std::vector<uint8_t> classes;       ///< of all components of the basis, or kDeadClass
  std::vector<int32_t> offsets;       ///< of all components
  std::vector<int32_t> gain_changes;  ///< likewise
};

/// As bytes. Three rows have a number for each component: the difference from the rung's class, the offset, and the
/// change of the gain. The bytes are the level class of each row, a byte each, then the rows as one block of
/// levels.hpp. Throws Error(failed) for an adaptation of another number of components.
std::vector<uint8_t> write_adaptation(const Adaptation& adaptation, const LevelTables& tables,
                                      std::span<const uint8_t> rung_classes);
/// Throws Error(bad_input) for bytes that no encoder writes.
Adaptation read_adaptation(std::span<const uint8_t> bytes, const LevelTables& tables,
                           std::span<const uint8_t> rung_classes);

/// The rung `rung` of a basis, changed as an adaptation, which was fitted at `fitted`, changes that one: the same differences of classes,
/// dead ones counting as -1, and of gains. What lives at `rung` and in the adaptation stays alive. Gains are 1 / kGainsPerUnit at least.
LevelRung changed_alike(LevelRung rung, const LevelRung& fitted, const Adaptation& adaptation);

/// Collects statistics of the first components of a basis, and fits an adaptation to them.
class AdaptationSurvey {
 public:
  /// tables and rung outlive it. rung: of all components; those from `components` on stay as they are. width: number of
  /// values of a vector. unbias: of the training (LevelOptions).
  AdaptationSurvey(const LevelTables& tables, const LevelRung& rung, size_t components, size_t width,
                   double unbias);

  size_t components() const { return coded_.counts.rows(); }

  /// values: (components(), tokens). weights: (tokens), the number of tokens of the text that each one stands for.
  void add(MatrixView<const float> values, std::span<const uint32_t> weights);

  /// Returns std::nullopt without tokens, and if an adaptation would not save more bits than it takes.
  std::optional<Adaptation> finish() const;

 private:
  /// Fate of a token: coded with the book's classes; exact, unless it gets other classes; exact in any case.
  enum class Fate : uint8_t { coded, codable, exact };
  struct Tokens {
    Matrix<uint32_t> counts;  // (components, bins)
    uint64_t number = 0;
  };
  struct Fit {
    uint8_t level_class = kDeadClass;
    int32_t offset = 0, gain_change = 0;
    double before = 0,
           after = 0;  // bits of the component over the whole text: by the book, and with this fit
  };
  std::vector<Fate> fates_of(MatrixView<const float> values) const;
  bool is_codable(MatrixView<const float> values, size_t token) const;
  std::vector<Fit> fits(bool with_codable) const;
  Fit fit(size_t component, std::span<const uint32_t> counts, double zeros) const;

  const LevelTables& tables_;
  const LevelRung& rung_;
  size_t width_;
  double unbias_;
  Tokens coded_, codable_;
  uint64_t exact_ = 0;
};

}  // namespace kvcodec
