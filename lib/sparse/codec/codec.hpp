// The codec `sparse` as its parts see it: codec.cpp describes it.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/codec/codec.hpp"
#include "lib/codec/sink_codec.hpp"
#include "lib/core/error.hpp"
#include "lib/sparse/codec/book.hpp"
#include "lib/sparse/codec/side_coder.hpp"
#include "lib/sparse/codec/streams.hpp"
#include "lib/sparse/codec/view.hpp"

namespace kvcodec::sparse {

struct SparseOptions final : Options {
  int64_t sparsity = 0;  ///< the dictionary knows best what it was trained for
  double error_target = 0;
  CoefficientType coefficients = CoefficientType::i8;  ///< the paper's is f16: twice the bits for 0.04 dB
  AtomSelection selection = AtomSelection::omp;        ///< the paper's
  bool sort_ids =
      true;  ///< the order that the paper keeps says nothing, and takes a quarter of the bits and more
  double rounding_error = 0.01;  ///< half of it costs as many bits as a whole atom, which gains more
  int64_t sink = kBestSink;      ///< the paper has none

  std::vector<OptionField> fields() override {
    return {
        {"sparsity", "atoms per signal at most; 0 = as many as the dictionary was trained for", &sparsity, 0,
         1 << 16},
        {"error-target", "stop when the relative error of a signal is this small; 0 = always take all atoms",
         &error_target, 0, 1},
        {.name = "coefficients",
         .help = "type of the coefficients; each signal has a scale of 8 bits, except with f16",
         .target = &coefficients},
        {"selection",
         "the next atom: the one with the largest correlation (omp), or the one that lowers the error most "
         "(ols: a little better, slower)",
         &selection},
        {.name = "sort-ids",
         .help = "keep the order in which a code's atoms were taken; by default ids are sorted, and "
                 "their gaps and the coefficients are entropy-coded",
         .target = &sort_ids},
        {"rounding-error",
         "with coefficients of type i8: the error energy that rounding them may add, as a "
         "fraction of the signal's error energy; more rounding takes fewer bits in sorted "
         "codes. 0 = finest rounding",
         &rounding_error, 0, 1},
        sink_field(sink)};
  }

  void check() const override {
    if (coefficients != CoefficientType::i8 && rounding_error != SparseOptions{}.rounding_error)
      throw usage_error(
          "rounding-error is {}; coefficients of type {} are always rounded as well as they can "
          "be: it goes with coefficients i8",
          rounding_error, coefficients);
  }
};

class SparseCodec final : public Codec {
 public:
  SparseCodec(const SparseOptions& options, SparseBook book, Engine* engine);

  Record parameters() const override;
  int layer_group() const override { return layout_.layers; }
  /// Refuses layers that the dictionary was trained without, before there is any work.
  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    (void)book_.part_for(shape.first_layer);
    return form(shape.side).streams();
  }

  /// Signals, as they are and coded (ids, coefficients, residuals), and pairs as stored and sorted; the same
  /// for decoding.
  size_t scratch_bytes_per_row(const GroupShape& shape) const override {
    return shape.width() * sizeof(float) + layout_.signals_per_row() * (pairs() * 24 + 40);
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override;

 protected:
  std::unique_ptr<DocumentView> view_of(const GroupShape& shape,
                                        const StreamReader& document) const override {
    check_shape(shape, shape.width());
    return std::make_unique<SparseView>(form(shape.side), layout_, coder(shape), engine_, shape, document);
  }

 private:
  size_t pairs() const { return static_cast<size_t>(options_.sparsity); }  // of a signal, at most
  bool gained(Side side) const {
    return parts_.front()->of(side).normalization().normalize == Normalize::signal;
  }
  SparseForm form(Side side) const;
  SideCoder& coder(const GroupShape& shape) const {
    return parts_[book_.part_for(shape.first_layer)]->of(shape.side);
  }
  std::shared_ptr<const Omp> omp_for(SideCoder& side, uint64_t signals, const OmpOptions& options) const;
  void check_shape(const GroupShape& shape, size_t columns) const;
  void round_jointly(const Omp& omp, CoefficientType type, const SparseCodes& codes,
                     std::span<const float> coefficients, SparsePairs& stored) const;

  struct Part {
    SideCoder key, value;
    SideCoder& of(Side side) { return side == Side::key ? key : value; }
  };

  SparseOptions options_;
  SparseBook book_;  // without its dictionaries, which the parts have
  SignalLayout layout_;
  uint64_t atoms_ = 0;
  Engine* engine_;
  std::vector<std::unique_ptr<Part>> parts_;  // what they learn while coding is about speed only
  mutable std::mutex mutex_;
  mutable std::list<SideCoder*> with_gram_;  // the one used last in front
};

}  // namespace kvcodec::sparse
