// Codes of the codec `sparse` copied from one form of streams to another, without the dictionary.
#pragma once

#include <memory>
#include <vector>

#include "lib/codec/codec.hpp"
#include "lib/sparse/codec/streams.hpp"

namespace kvcodec {

/// Stands for the codec where codes are copied without the book: it knows streams and tokens, and refuses
/// to encode or decode.
class SparseCopyCodec final : public Codec {
 public:
  SparseCopyCodec(SparseForm keys, SparseForm values, const Record& parameters)
      : keys_(keys), values_(values), parameters_(parameters_of(keys, parameters)) {}

  Record parameters() const override { return parameters_; }
  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    return form(shape.side).streams();
  }
  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override;

  const SparseForm& form(Side side) const { return side == Side::key ? keys_ : values_; }

 protected:
  std::unique_ptr<DocumentView> view_of(const GroupShape& shape, const StreamReader& document) const override;

 private:
  SparseForm keys_, values_;
  Record parameters_;
};

/// Reads all of one document and adds it to another one in another form, with nothing lost but the order of
/// pairs within signals where the other form sorts.
void copy_codes(const SparseForm& from, const StreamReader& document, const SparseForm& to, StreamStore& out);

}  // namespace kvcodec
