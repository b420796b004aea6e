// The codecs that codec_test.cpp checks against the promises of the Codec interface: one row per codec and set of options that
// deserves a separate test. A new codec adds its rows in codec_table(), at any place, and, if it needs them, a book and an error bound.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/codec/codec.hpp"
#include "lib/codec/outer_codecs.hpp"
#include "lib/core/rng.hpp"
#include "lib/rvq/codec/book.hpp"
#include "lib/sparse/codec/book.hpp"

namespace kvcodec::test {

struct CodecCase {
  std::string label;  ///< codec and options; what is drawn at random for the row follows from it
  std::string codec;
  std::vector<std::pair<std::string, Scalar>>
      options;  ///< beside the form of the codec's paper, or else the defaults

  /// Compares decoded rows with the encoded ones (rounded to the storage type), both (tokens, width). Empty for lossless codecs:
  /// theirs must be equal.
  std::function<void(const GroupShape&, DType storage, MatrixView<const float> original,
                     MatrixView<const float> decoded)>
      check_error = {};

  /// A book that fits the context, for codecs that need one.
  std::function<Book(const CodecContext&, Rng&)> make_book = {};

  /// The maximum fraction by which a document that does not shrink may exceed its 16-bit values: flags that mark this.
  double flags = 0;

  /// Bits that a document may use in addition: lengths of its blocks.
  double block_bits = 0;

  /// The number of first tokens that a separate stream keeps exactly (outer_codecs.hpp). The inner codec gets copies of a later
  /// token in their place, which may wait at 16 bits too.
  size_t sink = 0;

  /// Head dimensions that are not a multiple of this are refused.
  int head_dim_multiple = 1;

  /// Head dimensions below this are refused: no code could be smaller than the values.
  int least_head_dim = 1;

  /// True if the codec sees keys turned back.
  RopeChoice rope = RopeChoice::keep;
};

std::vector<CodecCase> codec_table();

/// The row's codec; context: with a book if it needs one.
std::unique_ptr<Codec> codec_of(const CodecCase& row, const CodecContext& context);

/// A rotary embedding that differs from layer to layer: whole heads, a part, another base, and none.
KeyRope sample_rope(int layers, int head_dim);

struct SparseSettings {
  int layer_group = 1;
  SignalUnit signal = SignalUnit::token;
  Normalize normalize = Normalize::layer;
  Center center = Center::channel;
  double error_target = 0;
  AtomType atom_type = AtomType::i8;
  DictScope dict_scope = DictScope::global;
  std::string coefficients = "f16";
  bool sort_ids = false;
};

/// A dictionary of random atoms, with as many atoms per signal as are smaller than the values, eight at most.
SparseBook random_sparse_book(const SparseSettings& settings, const CodecContext& context, Rng& rng);

struct RvqSettings {
  int64_t beam = 1, sink = 4, window = 16, codebooks = 2, entries = 8;
  SplitBy split = SplitBy::rope;
  DType entry_type = DType::f16;
  bool weighed = false;
};

/// Weights of powers of four: scales are powers of two, which multiply without rounding.
LayerWeights sample_weights(int layers);

/// Codebooks of random entries.
RvqBook random_rvq_book(const RvqSettings& settings, const CodecContext& context, Rng& rng);

}  // namespace kvcodec::test
