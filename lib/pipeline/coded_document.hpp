// A document's codes in memory, of all layers of a model: encoded from rows, or copied from a file. They grow by what the model reads, and are
// decoded layer by layer, or multiplied as they are. The closed loop and text that a model writes behind codes (generation.hpp) use them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/codec/codec.hpp"
#include "lib/codec/encoded.hpp"
#include "lib/model/llama.hpp"
#include "lib/pipeline/continuation.hpp"

namespace kvcodec {

/// Bits stored, by category; index streams packed.
struct StoredBits {
  std::array<uint64_t, std::size(kCategories)> category{};
  uint64_t values = 0;  ///< number of keys' and values' elements

  uint64_t bits() const { return std::accumulate(category.begin(), category.end(), uint64_t{0}); }
  /// All bits, and those of books, over the values; 0 without values and bits.
  double bits_per_value(uint64_t book_bytes = 0) const;
  void add(const StoredBits& other) {
    for (size_t i = 0; i < category.size(); ++i) category[i] += other.category[i];
    values += other.values;
  }
};

/// Bits that a stream's bytes take in a file, where ids are packed.
uint64_t stream_bits(const StreamSpec& spec, uint64_t bytes);

/// A codec's parts of a model's cache: a side of a group of layers, or both sides where they are coded together. Only sides that the model
/// stores.
class CodedLayout {
 public:
  /// dtype: of the cache; the codec's input and output are rounded to it. Codec and config outlive this. Throws Error(usage) for groups with
  /// layers that the model does not have.
  CodedLayout(const Codec& codec, const ModelConfig& config, DType dtype);

  const Codec& codec() const { return *codec_; }
  const ModelConfig& config() const { return *config_; }
  size_t parts() const { return shapes_.size(); }
  const GroupShape& shape(size_t part) const { return shapes_[part]; }
  std::span<const size_t> parts_of(int layer) const { return parts_of_layer_[as_size(layer)]; }

  /// Calls body(side, layer, columns) for all layers that lie side by side in rows of that shape.
  template <class Body>
  static void for_each_layer(const GroupShape& shape, MatrixView<float> rows, const Body& body) {
    for (const Side side : sides_in(shape.side))
      for (size_t l = 0; l < shape.layers.size(); ++l)
        if (shape.layer.width(side) > 0) body(side, as_size(shape.layers[l]), shape.columns(rows, side, l));
  }
  /// Tokens [first, end) of a group as the codec takes them: the layers side by side, in the cache's type.
  Matrix<float> rows_of(const LayerRows& rows, const GroupShape& shape, size_t first, size_t end) const;
  /// Rounds values to the cache's type.
  void round(std::span<float> values) const;

 private:
  const Codec* codec_;
  const ModelConfig* config_;
  DType dtype_;
  std::vector<GroupShape> shapes_;
  std::vector<std::vector<size_t>> parts_of_layer_;
};

/// Rows of a prefix as a survey sees them; rows: of its tokens from `first` on.
DocumentRows surveyed_rows(const Codec& codec, const Prefix& prefix, const GroupShape& shape,
                           MatrixView<const float> rows, size_t first);

class CodedDocument {
 public:
  /// Bytes of the shared streams of a part, by name.
  using Shared = std::vector<std::pair<std::string, std::vector<std::byte>>>;

  /// An empty document. token_ids: of all its tokens, where the codec predicts from them. left_out: for each part, the first tokens that it does
  /// not hold. The layout outlives this.
  CodedDocument(const CodedLayout& layout, const std::vector<uint32_t>& token_ids,
                std::vector<size_t> left_out);

  /// Encodes a prefix: shared streams first, then the document's own survey, if the codec makes one. weights: of its tokens, where the
  /// codec weighs them; tokens that are appended later have none.
  void encode(const Prefix& prefix, std::span<const Shared> shared, std::span<const float> weights = {});
  /// Copies the document's streams of a part, those that all documents share included.
  void copy(size_t part, const StreamReader& from);
  /// Adds tokens [first, end) of these rows; ids: theirs, if they are not among token_ids.
  void append(const LayerRows& rows, size_t first, size_t end, std::span<const uint32_t> ids = {});

  /// Of the codes and those left out.
  uint64_t tokens() const { return views_.empty() ? 0 : left_out_.front() + views_.front()->tokens(); }
  /// The first keys.rows() tokens of a layer, decoded. Tokens that were left out become zeros: no query attends to them.
  /// Layers of a group are to be read in order: the group is decoded once, for the first of them.
  void read(int layer, MatrixView<float> keys, MatrixView<float> values);

  /// True if each layer is coded by itself, so that multiply() decodes or multiplies no other.
  bool multiplies() const {
    for (size_t part = 0; part < layout_.parts(); ++part)
      if (const GroupShape& shape = layout_.shape(part); shape.layers.size() > 1 || shape.side == Side::both)
        return false;
    return true;
  }
  /// Products as of DocumentView::multiply with tokens of one side of a layer; scores of tokens that were left out are zeros.
  void multiply(Side side, int layer, uint64_t first, MatrixView<const float> factors,
                MatrixView<float> out) const;
  /// The index of the tokens in the codes; of codecs that code each layer by itself.
  std::unique_ptr<GrowingSelector> index(int layer, size_t head) const {
    const std::span<const size_t> parts = layout_.parts_of(layer);
    if (parts.empty()) throw failed("layer {} has no codes", layer);
    return views_[parts.front()]->selector(head, false);
  }

  /// All bits but those of shared streams; tokens: those that count as values.
  StoredBits stored(uint64_t tokens) const;
  /// A part's streams, by name.
  const Encoded& encoded(size_t part) const { return encoded_[part]; }

 private:
  void refresh(size_t part) {
    views_[part]->refresh();
    if (values_[part]) values_[part]->refresh();
  }

  const CodedLayout& layout_;
  std::vector<size_t> left_out_;  // tokens, of each part
  std::vector<Encoded> encoded_;  // per part; documents stay where they are when these move
  std::vector<StreamStore*> stores_;
  std::vector<ViewPtr> views_;          // of these
  std::vector<ViewPtr> values_;         // of parts whose keys hold the values; else null
  std::vector<Matrix<float>> decoded_;  // of each part, those in work
};

}  // namespace kvcodec
