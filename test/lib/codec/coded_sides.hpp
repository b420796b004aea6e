// Keys and values of a document in a codec's streams, and views of each.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <memory>

#include "lib/codec/codec.hpp"
#include "lib/codec/encoded.hpp"
#include "test/lib/codec/codec_table.hpp"
#include "test/transform_books.hpp"

namespace kvcodec::test {

class CodedSides {
 public:
  /// For a group of layers; rows: of its keys and its values, (n, shape.side_width(side)) each. The codec outlives this object.
  CodedSides(const Codec& codec, const GroupShape& shape, const std::array<Matrix<float>, 2>& rows) {
    for (const Side side : codec.sides()) {
      const GroupShape coded = of_side(shape, side);
      const Matrix<float> own = joined(coded, rows), surveyed = joined(codec.surveyed(coded), rows);
      DocumentRows document(own);
      document.surveyed = surveyed;
      document.token_ids = sample_ids(own.rows());
      encoded_.push_back(encode_in_memory(codec, coded, {&document, 1}));
    }
    for (const Side side : kSides) {
      const size_t i = static_cast<size_t>(side);
      views_[i] = codec.open(of_side(shape, side), encoded_[std::min(i, encoded_.size() - 1)].document(0));
    }
  }

  const DocumentView& view(Side side) const { return *views_[static_cast<size_t>(side)]; }

  Matrix<float> decoded(Side side) const {
    Matrix<float> out(view(side).tokens(), view(side).shape().width());
    view(side).decode(0, out);
    return out;
  }

  /// Rows in the form that a codec takes.
  static Matrix<float> joined(const GroupShape& shape, const std::array<Matrix<float>, 2>& rows) {
    Matrix<float> out(rows[0].rows(), shape.width());
    for (const Side side : sides_in(shape.side)) {
      const auto to = out.view().columns(shape.column_of(side), shape.side_width(side));
      for (size_t t = 0; t < to.rows(); ++t)
        std::ranges::copy(rows[static_cast<size_t>(side)].row(t), to.row(t).begin());
    }
    return out;
  }

 private:
  std::deque<Encoded> encoded_;  // views refer to them
  std::unique_ptr<DocumentView> views_[2];
};

}  // namespace kvcodec::test
