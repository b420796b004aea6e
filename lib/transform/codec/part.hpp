// A part of a transform at one step, as the book has it or fitted to a file: the codec `transform` codes the
// vectors of some layers with it.
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
};

class TransformPart {
 public:
  /// Components are computed for tiles of so many tokens. A token's row in its tile follows from its index in the block,
  /// whichever of them are coded now: BLAS sums products of other shapes in another order, and a token's levels must not
  /// depend on the number of tokens that are coded with it.
  static constexpr size_t kTile = 64;

  TransformPart(TransformBook::Part part, size_t rung, const PartContext& context);
  TransformPart(const TransformPart&) = delete;  // Lazy members cannot be copied
  TransformPart& operator=(const TransformPart&) = delete;

  /// The same with the classes, gains and mean of an adaptation. Throws Error(bad_input) for gains that are not positive.
  std::shared_ptr<const TransformPart> adapted(const Adaptation& adaptation) const;

  const TransformBasis& basis() const { return *basis_; }
  const std::vector<float>& mean() const { return mean_; }
  const LevelRung& rung() const { return rung_; }
  const LevelTables& tables() const { return context_.tables; }
  const TokenFeatures* features() const { return context_.features; }
  /// Number of the first components that a survey looks at: a text is not expected to need later ones at this step.
  size_t surveyed() const { return surveyed_; }

  /// nullptr where first tokens are not coded by themselves.
  const FirstTokenCoder* first() const { return first_ ? &*first_ : nullptr; }
  size_t width() const { return basis_->width(); }
  size_t components() const { return live_.size(); }
  const LevelCoder& coder() const { return coder_; }

  /// The device that decodes blocks and rebuilds vectors in place of coder() and reconstruct(), or nullptr.
  const SynthesisFunction* device() const;

  /// The ids that quantize() and reconstruct() take for tokens [first, first + count) of a document: ids_with_lags(), or
  /// none where the book predicts nothing from ids.
  std::vector<uint32_t> ids(const StreamReader& document, uint64_t first, uint64_t count) const;

  /// Levels of consecutive tokens of a block, the first of them the block's token `first`: rows (tokens, width) to levels (components,
  /// tokens). ids: those that ids() returns for these tokens. errors: for each token the squared error of its vector by the metric, in
  /// squared steps, including the error outside all components; infinite if a component is too large to be given a level.
  void quantize(size_t first, std::span<const uint32_t> ids, MatrixView<const float> rows,
                MatrixView<int32_t> levels, std::span<double> errors) const;

  /// Tokens that are better kept exactly (LevelTables::better_coded), rising. levels: (components, tokens).
  std::vector<size_t> costly(MatrixView<const int32_t> levels, std::span<const double> errors) const;

  /// Vectors of tokens with these levels, (components, tokens): rows (tokens, width). ids: as in quantize().
  void reconstruct(MatrixView<const int32_t> levels, std::span<const uint32_t> ids,
                   MatrixView<float> rows) const;

 private:
  TransformPart(std::shared_ptr<const TransformBasis> basis, std::vector<float> mean, LevelRung rung,
                size_t surveyed, const PartContext& context);

  std::vector<float> shifted_mean(const Adaptation& adaptation) const;
  Matrix<float> scores(std::span<const uint32_t> ids, size_t tokens) const;
  std::vector<size_t> take_out_beyond(MatrixView<float> components, size_t begin, size_t count) const;
  void add_errors(MatrixView<const float> components, MatrixView<const int32_t> levels, size_t begin,
                  MatrixView<float> centred, MatrixView<const float> scores, std::span<double> errors) const;

  std::shared_ptr<const TransformBasis> basis_;
  std::vector<float> mean_;
  LevelRung rung_;
  size_t surveyed_;
  PartContext context_;
  std::vector<uint32_t> live_;
  LevelCoder coder_;
  std::vector<uint8_t> classes_;  // of the components in live_, as gains_
  std::vector<float> gains_;
  std::optional<FirstTokenCoder> first_;  // its metric is of *basis_
  Lazy<Analysis> analysis_;
  Lazy<Synthesis> synthesis_;
  Lazy<Scores> scores_;
  Lazy<Matrix<float>> loadings_;
  Lazy<SynthesisFunction> device_;
};

}  // namespace kvcodec
