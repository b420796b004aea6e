// A part of a transform at one step, as the book has it or fitted to a file: the codec `transform` codes the
// vectors of some layers with it. Where each token has a rung of its own, it is a part at several steps: all rungs have one basis and one
// mean, and levels are those of all components that live at any of them, 0 where a token's rung has none.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lib/codec/group_shape.hpp"
#include "lib/codec/stream.hpp"
#include "lib/core/lazy.hpp"
#include "lib/engine/engine.hpp"
#include "lib/transform/adaptation.hpp"
#include "lib/transform/codec/book.hpp"
#include "lib/transform/levels.hpp"

namespace kvcodec {

/// All parts of a codec share it; it outlives them.
struct PartContext {
  const LevelTables& tables;
  const TokenFeatures* features = nullptr;  ///< nullptr where nothing is predicted
  Engine* engine = nullptr;                 ///< may be nullptr
  double first_finer = 0;                   ///< 0 where first tokens are not coded by themselves
  double brought = 0;                       ///< brought_at() for the codec's step
};

/// Rungs of a book around the codec's own that tokens may have, coarsest first.
struct RungRange {
  size_t own = 0;                     ///< of the book
  size_t first = own, end = own + 1;  ///< of the book

  /// As far from `own` as four bits for a token's rung allow: from two octaves coarser to almost two finer.
  static constexpr size_t kMost = 16;
  static RungRange around(size_t own, size_t steps) {
    const size_t first = own - std::min(own, kMost / 2);
    return {own, first, std::min(steps, own + kMost / 2)};
  }
};

/// The rungs of some tokens, counted from RungRange::first on; empty: all are of the codec's own rung.
using TokenRungs = std::span<const uint8_t>;
/// Those of tokens [first, first + count); nothing of nothing.
inline TokenRungs some_of(TokenRungs rungs, size_t first, size_t count) {
  return rungs.empty() ? rungs : rungs.subspan(first, count);
}

class TransformPart {
 public:
  /// Components are computed for tiles of so many tokens. A token's row in its tile follows from its index in the block,
  /// whichever of them are coded now: BLAS sums products of other shapes in another order, and a token's levels must not
  /// depend on the number of tokens that are coded with it.
  static constexpr size_t kTile = 64;

  TransformPart(TransformBook::Part part, const RungRange& range, const PartContext& context);
  TransformPart(const TransformPart&) = delete;  // Lazy members cannot be copied
  TransformPart& operator=(const TransformPart&) = delete;

  /// The same with the classes, gains and mean of an adaptation. Throws Error(bad_input) for gains that are not positive.
  std::shared_ptr<const TransformPart> adapted(const Adaptation& adaptation) const;

  const TransformBasis& basis() const { return *basis_; }
  Analysis analysis(std::span<const uint32_t> components) const {
    return {*basis_, components, context_.brought};
  }
  const std::vector<float>& mean() const { return mean_; }
  /// The codec's own.
  const LevelRung& rung() const { return rungs_[own_].rung; }
  size_t rungs() const { return rungs_.size(); }
  /// The rung whose step is nearest to the codec's own times weight^(-power / 2).
  uint8_t rung_for(double weight, double power) const;
  const LevelTables& tables() const { return context_.tables; }
  const TokenFeatures* features() const { return context_.features; }
  /// Number of the first components that a survey looks at: a text is not expected to need later ones at this step.
  size_t surveyed() const { return surveyed_; }

  /// nullptr where first tokens are not coded by themselves.
  const FirstTokenCoder* first() const { return first_ ? &*first_ : nullptr; }
  size_t width() const { return basis_->width(); }
  size_t components() const { return live_.size(); }

  /// Appends a block of tokens of these rungs: levels (components, tokens). Returns its bytes.
  uint32_t encode(MatrixView<const int32_t> levels, TokenRungs rungs, std::vector<uint8_t>& out) const;
  /// Decodes consecutive blocks, as LevelCoder::decode, to levels that are 0.
  void decode(std::span<const uint8_t> payload, std::span<const uint32_t> block_bytes, size_t tokens,
              TokenRungs rungs, MatrixView<int32_t> levels) const;

  /// The device that decodes blocks and rebuilds vectors in place of decode() and reconstruct(), or nullptr.
  const SynthesisFunction* device() const;

  /// The ids that quantize() and reconstruct() take for tokens [first, first + count) of a document: ids_with_lags(), or
  /// none where the book predicts nothing from ids.
  std::vector<uint32_t> ids(const StreamReader& document, uint64_t first, uint64_t count) const;

  /// Levels of consecutive tokens of a block, the first of them the block's token `first`: rows (tokens, width) to levels (components,
  /// tokens), which are 0 before. ids: those that ids() returns for these tokens. errors: for each token the squared error of its vector by
  /// the metric, in squared steps, including the error outside all components; infinite if a component is too large to be given a level.
  void quantize(size_t first, std::span<const uint32_t> ids, MatrixView<const float> rows, TokenRungs rungs,
                MatrixView<int32_t> levels, std::span<double> errors) const;

  /// Tokens that are better kept exactly (LevelTables::better_coded), rising. levels: (components, tokens).
  std::vector<size_t> costly(MatrixView<const int32_t> levels, TokenRungs rungs,
                             std::span<const double> errors) const;

  /// Vectors of tokens with these levels, (components, tokens): rows (tokens, width). ids: as in quantize().
  void reconstruct(MatrixView<const int32_t> levels, std::span<const uint32_t> ids, TokenRungs rungs,
                   MatrixView<float> rows) const;

 private:
  struct Rung {
    LevelRung rung;
    std::vector<size_t> rows;      // of its components among live_
    std::vector<uint8_t> classes;  // of these, as gains
    std::vector<float> gains;
    LevelCoder coder;
  };
  /// Some tokens, rising, and their rung.
  struct Alike {
    const Rung& at;
    std::vector<size_t> tokens;
  };

  TransformPart(std::shared_ptr<const TransformBasis> basis, std::vector<float> mean,
                std::vector<LevelRung> rungs, size_t own, size_t surveyed, const PartContext& context);

  std::vector<float> shifted_mean(const Adaptation& adaptation) const;
  Matrix<float> scores(std::span<const uint32_t> ids, size_t tokens) const;
  std::vector<Alike> by_rung(TokenRungs rungs, size_t tokens) const;
  void quantize(const Alike& some, MatrixView<const float> components, MatrixView<int32_t> levels,
                std::span<double> errors) const;

  std::shared_ptr<const TransformBasis> basis_;
  std::vector<float> mean_;
  std::vector<Rung> rungs_;
  size_t own_;
  size_t surveyed_;
  PartContext context_;
  std::vector<uint32_t> live_;            // components that live at any rung
  std::optional<FirstTokenCoder> first_;  // its metric is of *basis_
  Lazy<Analysis> analysis_;
  Lazy<Synthesis> synthesis_;
  Lazy<Scores> scores_;
  Lazy<SynthesisFunction> device_;
};

}  // namespace kvcodec
