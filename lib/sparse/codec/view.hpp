// Documents of the codec `sparse`, opened: decoding (view.cpp), and products without it (products.cpp).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lib/codec/document_view.hpp"
#include "lib/core/view.hpp"
#include "lib/engine/engine.hpp"
#include "lib/sparse/codec/reader.hpp"
#include "lib/sparse/codec/side_coder.hpp"
#include "lib/sparse/reconstruct.hpp"
#include "lib/sparse/signals.hpp"

namespace kvcodec::sparse {

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
  void multiply_key_range(uint64_t first, MatrixView<const float> queries,
                          MatrixView<float> out) const override;
  void multiply_value_range(uint64_t first, MatrixView<const float> weights,
                            MatrixView<float> out) const override;
  Block block_of(uint64_t token) const override {
    if (!form_.sorted) return {token, token + 1};
    const Block block = equal_block(token, kSortedTokens, reader_.tokens());
    return {block.begin, std::min(block.end, reader_.tokens())};
  }

 private:
  /// Codes of some tokens, ready to be added up.
  struct Codes {
    std::vector<uint32_t> ids;
    std::vector<float> coefficients, gains;
    std::vector<uint64_t> offsets;
    CodeView view() const { return {ids, coefficients, offsets}; }
  };

  Codes read(uint64_t first, uint64_t count) const;
  bool straight_pays(size_t vectors, size_t tokens) const;
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
