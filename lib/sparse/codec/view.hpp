// Documents of the codec `sparse`, opened: decoding, and products without it; and their dictionaries, ready for use.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "lib/codec/document_view.hpp"
#include "lib/core/lazy.hpp"
#include "lib/core/view.hpp"
#include "lib/engine/engine.hpp"
#include "lib/sparse/codec/streams.hpp"
#include "lib/sparse/dictionary.hpp"
#include "lib/sparse/omp.hpp"
#include "lib/sparse/reconstruct.hpp"

namespace kvcodec::sparse {

/// Largest Gram matrix made, per side: 16384 atoms. The paper's 8192 take a quarter of it.
inline constexpr uint64_t kGramBytes = uint64_t{768} << 20;

/// One dictionary, ready for both directions. Data that only encoding needs is made when it is needed.
class SideCoder {
 public:
  SideCoder(Dictionary dictionary, Engine* engine)
      : engine_(engine),
        reconstructor_(dictionary.bytes.empty() ? Reconstructor(dictionary.atoms)
                                                : Reconstructor(dictionary.bytes)),
        dictionary_(std::move(dictionary)) {
    if (in_bytes()) dictionary_.atoms = {};
  }

  const Normalization& normalization() const { return dictionary_.normalization; }
  const Reconstructor& reconstructor() const { return reconstructor_; }
  /// The signals of codes; computed on the device if there is one that takes them.
  void reconstruct(const CodeView& codes, MatrixView<float> out, const Finishing& finishing = {}) {
    const ReconstructFunction& device = twin<ReconstructionOnDevice>(reconstruction_);
    if (!device || !device(codes, out, finishing)) reconstructor_.run(codes, out, finishing);
  }
  bool in_bytes() const { return !dictionary_.bytes.empty(); }

  /// The codes of signals, if there is a device that takes them.
  bool encode_on_device(MatrixView<const float> signals, const OmpOptions& options, SparseCodes& codes) {
    const PursuitFunction& device = twin<PursuitOnDevice>(pursuit_);
    return device && device(signals, options, codes);
  }

  /// The rows that Reconstructor::weights weighs: the atoms, or their levels as floats.
  MatrixView<const float> atoms() const {
    if (!in_bytes()) return dictionary_.atoms;
    return levels_.get([&] {
      const Matrix<int8_t>& levels = dictionary_.bytes.levels;
      Matrix<float> atoms(levels.rows(), levels.cols());
      std::copy_n(levels.data(), levels.size(), atoms.data());
      return atoms;
    });
  }

  /// The pursuit to use for that many more signals.
  std::shared_ptr<const Omp> omp_for(uint64_t signals, const OmpOptions& options) {
    const std::lock_guard lock(mutex_);
    signals_ += signals;
    const Omp& present = *any();
    if (present.has_gram() || Omp::gram_bytes(present.atoms()) > kGramBytes ||
        !present.gram_pays(signals_, options.sparsity))
      return omp_;
    // A copy: other threads may still be coding with the present one.
    auto with_gram = std::make_shared<Omp>(present);
    with_gram->build_gram();
    return omp_ = std::move(with_gram);
  }

  /// For inner products of its atoms.
  std::shared_ptr<const Omp> any_omp() {
    const std::lock_guard lock(mutex_);
    return any();
  }

  /// Gives up the Gram matrix; its memory is freed when the last thread that codes with it is done.
  void drop_gram() {
    const std::lock_guard lock(mutex_);
    omp_ = nullptr;
    signals_ = 0;  // until as many come again, building it anew costs more than it saves
  }

 private:
  const std::shared_ptr<const Omp>& any() {
    if (!omp_)
      omp_ = in_bytes() ? std::make_shared<const Omp>(floats_of(dictionary_.bytes))
                        : std::make_shared<const Omp>(dictionary_.atoms);
    return omp_;
  }

  /// The device's function; empty if there is none.
  template <class Interface, class Function>
  const Function& twin(const Lazy<Function>& made) const {
    return made.get([&] { return engine_ ? engine_->make<Interface>(dictionary_) : Function(); });
  }

  Engine* engine_;
  Lazy<PursuitFunction> pursuit_;
  Lazy<ReconstructFunction> reconstruction_;
  Lazy<Matrix<float>> levels_;
  std::mutex mutex_;
  uint64_t signals_ = 0;  // coded so far
  std::shared_ptr<const Omp> omp_;
  Reconstructor reconstructor_;
  Dictionary dictionary_;  // without floats of atoms that are kept in bytes
};

class SparseView final : public DocumentView {
 public:
  /// coder: of the shape's dictionary; it, engine (or nullptr) and document outlive this.
  SparseView(const SparseForm& form, const SignalLayout& layout, SideCoder& coder, Engine* engine,
             const GroupShape& shape, const StreamReader& document)
      : DocumentView(shape, document),
        form_(form),
        layout_(layout),
        coder_(coder),
        engine_(engine),
        reader_(form, document) {}

 protected:
  uint64_t take_in() override {
    reader_.refresh();
    return reader_.tokens();
  }
  void decode_rows(uint64_t first, MatrixView<float> out) const override;
  void multiply_range(uint64_t first, MatrixView<const float> factors, MatrixView<float> out) const override {
    const bool keys = shape().side == Side::key;
    if (!straight_pays(factors.rows(), keys ? out.cols() : factors.cols()))
      return DocumentView::multiply_range(first, factors, out);
    keys ? multiply_keys(first, factors, out) : multiply_values(first, factors, out);
  }
  Block block_of(uint64_t token) const override {
    if (!form_.sorted) return {token, token + 1};
    const Block block = equal_block(token, kSortedTokens, reader_.tokens());
    return {block.begin, std::min(block.end, reader_.tokens())};
  }

 private:
  /// Codes of some tokens, ready to be added up.
  struct Codes : OwnedCodes {
    std::vector<float> gains;
  };

  Codes read(uint64_t first, uint64_t count) const;
  bool straight_pays(size_t vectors, size_t tokens) const;
  void multiply_keys(uint64_t first, MatrixView<const float> queries, MatrixView<float> out) const;
  void multiply_values(uint64_t first, MatrixView<const float> weights, MatrixView<float> out) const;
  void add_rows(Matrix<float> rows, const CodeView& codes, MatrixView<float> out,
                const Finishing& finishing) const;
  bool weigh_atoms_on_device(const Codes& codes, size_t signal, MatrixView<const float> weights,
                             std::span<const size_t> rows, MatrixView<float> of_atoms) const;

  SparseForm form_;
  SignalLayout layout_;
  SideCoder& coder_;
  Engine* engine_;
  SparseReader reader_;
};

}  // namespace kvcodec::sparse
