// One dictionary of the codec `sparse` at work.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "lib/core/error.hpp"
#include "lib/core/view.hpp"
#include "lib/engine/engine.hpp"
#include "lib/sparse/dictionary.hpp"
#include "lib/sparse/omp.hpp"
#include "lib/sparse/reconstruct.hpp"

namespace kvcodec::sparse {

/// Largest Gram matrix made, per side: 16384 atoms. The paper's 8192 take a quarter of it.
inline constexpr uint64_t kGramBytes = uint64_t{768} << 20;

/// One dictionary, ready for both directions. What only encoding needs is made when it is needed.
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
  /// The signals of codes; on the device where there is one that takes them.
  void reconstruct(const CodeView& codes, MatrixView<float> out, const Finishing& finishing = {}) {
    const ReconstructionEngine* device = reconstruction_engine();
    if (!device || !device->run(codes, out, finishing)) reconstructor_.run(codes, out, finishing);
  }
  bool in_bytes() const { return !dictionary_.bytes.empty(); }

  /// The codes of signals, where there is a device that takes them.
  bool encode_on_device(MatrixView<const float> signals, const OmpOptions& options, SparseCodes& codes) {
    const PursuitEngine* device = pursuit_engine();
    return device && device->encode(signals, options, codes);
  }

  /// What Reconstructor::weights weighs: the atoms, or their levels as floats.
  MatrixView<const float> atoms() {
    const std::lock_guard lock(mutex_);
    Matrix<float>& atoms = dictionary_.atoms;
    if (atoms.size() == 0) {
      const Matrix<int8_t>& levels = dictionary_.bytes.levels;
      atoms = Matrix<float>(levels.rows(), levels.cols());
      std::copy_n(levels.data(), levels.size(), atoms.data());
    }
    return {atoms.data(), atoms.rows(), atoms.cols()};
  }

  /// The pursuit to use for that many more signals.
  std::shared_ptr<const Omp> omp_for(uint64_t signals, const OmpOptions& options) {
    const std::lock_guard lock(mutex_);
    signals_ += signals;
    if (with_gram_) return with_gram_;
    make_plain();
    const uint64_t bytes = Omp::gram_bytes(plain_->atoms());
    const bool needed = options.selection == AtomSelection::ols;
    if (needed && bytes > kGramBytes)
      throw usage_error(
          "selection ols needs the inner products of all atoms, {} bytes for {} atoms; {} bytes (16384 "
          "atoms) "
          "is the most: take selection omp",
          bytes, plain_->atoms(), kGramBytes);
    const bool pays = bytes <= kGramBytes && plain_->gram_pays(signals_, options.sparsity);
    if (!pays && !needed) return plain_;
    // A copy: other threads may still be coding with the one there is.
    auto with_gram = std::make_shared<Omp>(*plain_);
    with_gram->build_gram();
    plain_ = nullptr;
    return with_gram_ = std::move(with_gram);
  }

  /// For inner products of its atoms.
  std::shared_ptr<const Omp> any_omp() {
    const std::lock_guard lock(mutex_);
    if (with_gram_) return with_gram_;
    make_plain();
    return plain_;
  }

  /// Gives up the Gram matrix; its memory is freed when the last thread that codes with it is done.
  void drop_gram() {
    const std::lock_guard lock(mutex_);
    with_gram_ = nullptr;
    signals_ = 0;  // until as many come again, building it anew does not pay
  }

 private:
  void make_plain() {
    if (plain_) return;
    plain_ = in_bytes() ? std::make_shared<const Omp>(floats_of(dictionary_.bytes))
                        : std::make_shared<const Omp>(dictionary_.atoms);
  }

  const ReconstructionEngine* reconstruction_engine() {
    if (!engine_) return nullptr;
    const std::lock_guard lock(mutex_);
    if (!on_device_) on_device_ = engine_->make<ReconstructionEngine>(dictionary_);
    return on_device_->get();
  }

  const PursuitEngine* pursuit_engine() {
    if (!engine_) return nullptr;
    const std::lock_guard lock(mutex_);
    if (!pursuit_) pursuit_ = engine_->make<PursuitEngine>(dictionary_);
    return pursuit_->get();
  }

  Engine* engine_;
  std::optional<std::unique_ptr<PursuitEngine>> pursuit_;  // made when there is work, as is the other one
  std::optional<std::unique_ptr<ReconstructionEngine>> on_device_;  // made when something is decoded
  std::mutex mutex_;
  uint64_t signals_ = 0;  // coded so far
  std::shared_ptr<const Omp> plain_, with_gram_;
  Reconstructor reconstructor_;
  Dictionary dictionary_;  // floats of atoms that are kept in bytes are made when they are first needed
};

}  // namespace kvcodec::sparse
