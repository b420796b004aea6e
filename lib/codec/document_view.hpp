// A document opened for reading (Codec::open): decoding, products, and selection of tokens.
//
// Data (books, modes and sizes, the places of blocks) is parsed once, on first use, and lives as long as the view. Only those parts
// of the document are read that the requested tokens need: opening reads the lengths of streams and little else.
//
// A document that grows. append() may move tokens between streams (from those kept exactly into a block), so
// after each append() the caller calls refresh() first. It keeps parsed data that is still valid and reads
// what is new. A selector is never refreshed: it covers the document as it was when the selector was made, and
// keys that are appended to it.
//
// The codec, its book and engine, and the streams that were opened outlive the view. Const members may be called by several threads at
// once; inside they use parallel_for. Members throw Error(bad_input) for streams that no encoder writes (an id beyond the book, a length
// beyond the data), Error(failed) for shapes that do not fit.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lib/attention/selector.hpp"
#include "lib/codec/group_shape.hpp"
#include "lib/codec/stream.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

class DocumentView {
 public:
  virtual ~DocumentView() = default;
  DocumentView(const DocumentView&) = delete;
  DocumentView& operator=(const DocumentView&) = delete;

  const GroupShape& shape() const { return shape_; }

  /// Tokens that the document had when it was opened, or at the last refresh().
  uint64_t tokens() const { return tokens_; }

  /// Must be called after the document was appended to: see above. Not while other threads use the view.
  void refresh() { tokens_ = take_in(); }

  /// Writes tokens [first, first + out.rows()) to out: (n, shape().width()).
  void decode(uint64_t first, MatrixView<float> out) const;

  /// Row i of out, (tokens.size(), shape().width()), becomes token tokens[i]. tokens: rising. A block that
  /// holds several of them is decoded once.
  void decode_tokens(std::span<const uint32_t> tokens, MatrixView<float> out) const;

  /// Products of some tokens from `first` on with n queries for each head, or with n weights of each token, without decoding the
  /// tokens where the codec can (Capabilities::multiplies). heads = layers * heads of the shape; rows of head 0 come first.
  /// For keys factors are queries (heads * n, head_dim), out (heads * n, tokens) = queries . keys.
  /// For values factors are weights (heads * n, tokens), out (heads * n, head_dim) = weights . values.
  void multiply(uint64_t first, MatrixView<const float> factors, MatrixView<float> out) const;

  /// Makes a selector that chooses tokens of one head by the index in the codes (Capabilities::has_index), of
  /// keys only. The selector needs neither view nor streams afterwards; of keys that are appended it makes the codes that the
  /// codec would. signs_only: it uses the signs of keys
  /// alone, to measure what the rest of the index gains. Throws Error(failed) for codecs without an index.
  virtual std::unique_ptr<GrowingSelector> selector(size_t head, bool signs_only) const;

  /// Tokens of one head, of either side, that the codec keeps exactly because queries attend to them most, rising.
  virtual std::vector<uint32_t> kept_whole(size_t /*head*/) const { return {}; }

  /// The count of each symbol among the document's quantized values, before entropy coding: the payload is compared with the entropy of
  /// these. Values kept exactly in rows or blocks of their own have no symbol. Empty where the codec makes no symbols.
  virtual std::vector<uint64_t> symbol_counts() const { return {}; }

 protected:
  DocumentView(const GroupShape& shape, const StreamReader& document) : shape_(shape), document_(document) {}

  const StreamReader& document() const { return document_; }

  /// Reads the sizes of the streams, for the first time or after they have grown, and returns the number of
  /// tokens in them. Throws Error(bad_input) if they disagree with each other.
  virtual uint64_t take_in() = 0;

  /// decode() of existing tokens, to rows of the right width.
  virtual void decode_rows(uint64_t first, MatrixView<float> out) const = 0;

  /// multiply() of existing tokens and factors that fit. By default it decodes the tokens first.
  virtual void multiply_range(uint64_t first, MatrixView<const float> factors, MatrixView<float> out) const;

  /// Tokens [begin, end) that are decoded together: decoding any of them costs as much as decoding all.
  struct Block {
    uint64_t begin = 0, end = 0;
  };
  /// The block of an existing token. By default every token is a block of its own.
  virtual Block block_of(uint64_t token) const { return {token, token + 1}; }
  /// The same for a view that this one wraps.
  static Block block_of(const DocumentView& other, uint64_t token) { return other.block_of(token); }
  /// The block of a token for codecs that store tokens [0, end) in blocks of `tokens`, and later ones singly.
  static Block equal_block(uint64_t token, uint64_t tokens, uint64_t end) {
    if (token >= end) return {token, token + 1};
    return {token / tokens * tokens, token / tokens * tokens + tokens};
  }

 private:
  void check_range(uint64_t first, uint64_t count) const {
    if (first > tokens_ || count > tokens_ - first)
      throw bad_input("there are {} tokens; {} from token {} on are not all there", tokens_, count, first);
  }

  GroupShape shape_;
  const StreamReader& document_;
  uint64_t tokens_ = 0;
};

using ViewPtr = std::unique_ptr<DocumentView>;

/// A view around an inner one: its members forward to it, except those that a class derived from this one overrides.
class OuterView : public DocumentView {
 public:
  OuterView(ViewPtr inner, const GroupShape& shape, const StreamReader& document)
      : DocumentView(shape, document), inner_(std::move(inner)) {}
  std::vector<uint64_t> symbol_counts() const override { return inner_->symbol_counts(); }

 protected:
  const DocumentView& inner() const { return *inner_; }
  uint64_t take_in() override {
    inner_->refresh();
    return inner_->tokens();
  }
  void decode_rows(uint64_t first, MatrixView<float> out) const override { inner_->decode(first, out); }
  void multiply_range(uint64_t first, MatrixView<const float> factors, MatrixView<float> out) const override {
    inner_->multiply(first, factors, out);
  }
  Block block_of(uint64_t token) const override { return DocumentView::block_of(*inner_, token); }

 private:
  ViewPtr inner_;
};

/// Values that lie in keys (LayerShape::values_in_keys): the first dimensions of each of so many heads. keys: (n, heads * d), values:
/// (n, heads * d of theirs).
void copy_values(MatrixView<const float> keys, size_t heads, MatrixView<float> values);
/// A view of such values. keys and their streams outlive it.
ViewPtr values_in(const DocumentView& keys, const StreamReader& streams, int value_dim);

/// Decodes tokens [first, first + keys_out.rows()) of both sides in turns, a range of keys and then the same range of
/// values, so that joint codes are decoded once (Codec::open_sides). keys_out, values_out: (n, width of a side).
void decode_sides(const DocumentView& keys, const DocumentView& values, uint64_t first,
                  MatrixView<float> keys_out, MatrixView<float> values_out);

/// Writes tokens [first, first + rows.rows()) to rows: (n, width).
using ReadRows = std::function<void(uint64_t first, MatrixView<float> rows)>;

/// DocumentView::multiply for rows of that side from any source: reads some tokens at a time, few enough for the
/// processor's cache, and multiplies them.
void read_and_multiply(Side side, size_t width, const ReadRows& read, uint64_t first,
                       MatrixView<const float> factors, MatrixView<float> out);

/// out(i, t) = vector i . row t of its head. rows: (tokens, heads * d) of floats, vectors: (heads * n, d)
/// with those of head 0 first, out: (heads * n, tokens).
void multiply_key_rows(MatrixView<const float> rows, MatrixView<const float> vectors, MatrixView<float> out);

/// out(i, c) += sum over t of weights(i, t) * rows(t, c) of its head. weights: (heads * n, tokens), out: (heads * n, d).
void multiply_value_rows(MatrixView<const float> rows, MatrixView<const float> weights,
                         MatrixView<float> out);

}  // namespace kvcodec
