// A foreign cache as a source to export: the equivalent of import and export with a kv file between them.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "formats/interop/foreign.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/half.hpp"

namespace kvcodec::test {

class ForeignSource final : public interop::CacheSource {
 public:
  explicit ForeignSource(interop::ForeignCache cache) : cache_(std::move(cache)) {
    for (const auto& [layer, rows] : cache_.documents.front().layers) layers_.push_back(layer);
    for (const auto& document : cache_.documents)
      documents_.add(document.name, document.positions.size(), interop::left_out_of(cache_, document));
  }
  const std::string& name() const override { return name_; }
  const ModelInfo& model() const override { return cache_.model; }
  DType dtype() const override { return cache_.dtype; }
  const std::vector<int>& layers() const override { return layers_; }
  const Documents& documents() const override { return documents_; }
  bool has_tokens() const override { return !cache_.documents.front().tokens.empty(); }
  std::vector<uint32_t> tokens(uint64_t first, uint64_t count) const override {
    return run_of(&interop::ForeignDocument::tokens, first, count);
  }
  std::vector<uint64_t> positions(uint64_t first, uint64_t count) const override {
    return run_of(&interop::ForeignDocument::positions, first, count);
  }
  void read(Side side, int layer, size_t document, uint64_t first, MatrixView<float> out) const override {
    const interop::ForeignLayer& held = cache_.documents[document].layers.at(layer);
    held.sides[static_cast<size_t>(side)](first - documents_.left_out_of(layer, document), out);
    for (size_t i = 0; i < out.rows(); ++i)
      for (float& value : out.row(i)) value = round_to(dtype(), value);
  }
  /// All tokens of a side of a layer, zeros for those that it does not hold.
  Matrix<float> all(Side side, int layer, size_t document) const {
    const LayerShape shape = model().layer_shape(layer);
    Matrix<float> rows(static_cast<size_t>(documents_.length(document)),
                       as_size(shape.heads) * as_size(shape.stored_dim(side)));
    const auto left_out = static_cast<size_t>(documents_.left_out_of(layer, document));
    if (rows.rows() > left_out)
      read(side, layer, document, left_out, rows.view().rows(left_out, rows.rows() - left_out));
    return rows;
  }
  std::vector<size_t> all_documents() const {
    std::vector<size_t> numbers;
    for (size_t i = 0; i < documents_.count(); ++i) numbers.push_back(i);
    return numbers;
  }

 private:
  /// That member of tokens [first, first + count), which are of one document.
  template <class T>
  std::vector<T> run_of(std::vector<T> interop::ForeignDocument::*member, uint64_t first,
                        uint64_t count) const {
    if (count == 0) return {};
    size_t document = 0;
    while (documents_.offsets[document + 1] <= first) ++document;
    const std::vector<T>& all = cache_.documents[document].*member;
    if (all.empty()) return {};
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first - documents_.offsets[document]);
    return {begin, begin + static_cast<std::ptrdiff_t>(count)};
  }

  interop::ForeignCache cache_;
  std::string name_ = "cache";
  std::vector<int> layers_;
  Documents documents_;
};

}  // namespace kvcodec::test
