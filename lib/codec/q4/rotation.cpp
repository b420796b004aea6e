#include "lib/codec/q4/rotation.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "lib/core/error.hpp"
#include "lib/linalg/covariance.hpp"
#include "lib/linalg/eigen.hpp"
#include "lib/linalg/hadamard.hpp"
#include "lib/transform/basis.hpp"

namespace kvcodec::q4 {
namespace {

constexpr std::string_view kRotation = "rotation", kScales = "rotation_scales";
/// The byte of level 0.
constexpr int kZero = 128;

/// Sums of products x x' of vectors as they are: queries meet keys whole, not what they differ by from a mean.
class Moments {
 public:
  explicit Moments(size_t dims) : sums_(dims, dims) {}

  void add(std::span<const float> x) {
    for (size_t i = 0; i < x.size(); ++i)
      for (size_t j = 0; j <= i; ++j) sums_(i, j) += double{x[i]} * double{x[j]};
    any_ = true;
  }

  /// Rows of the rotation: eigenvectors of the sums, then a Hadamard transform across them.
  Matrix<float> rotation() const {
    const size_t d = sums_.rows();
    Matrix<double> vectors(d, d);
    for (size_t i = 0; i < d; ++i) vectors(i, i) = 1;
    if (any_) {
      Matrix<double> whole = sums_;
      for (size_t i = 0; i < d; ++i)
        for (size_t j = 0; j < i; ++j) whole(j, i) = whole(i, j);
      vectors = symmetric_eigen(std::move(whole)).vectors;
    }
    Matrix<float> rows(d, d);
    std::vector<float> column(d);
    for (size_t c = 0; c < d; ++c) {
      for (size_t i = 0; i < d; ++i) column[i] = static_cast<float>(vectors(i, c));
      hadamard(column, power_of_two_in(d));
      for (size_t i = 0; i < d; ++i) rows(i, c) = column[i];
    }
    return rows;
  }

 private:
  Matrix<double> sums_;  // the lower triangle
  bool any_ = false;
};

class RotationSurvey final : public Survey {
 public:
  RotationSurvey(const GroupShape& shape, bool stores)
      : shape_(shape), stores_(stores), moments_(shape.all_heads(), Moments(shape.dims())) {}

  void observe_queries(std::span<const uint64_t>, MatrixView<const float> queries) override {
    if (shape_.side == Side::key) add(queries);
  }
  void observe(MatrixView<const float> rows) override {
    if (shape_.side == Side::value) add(rows);
  }

  void finish(StreamStore& document) override {
    if (!stores_) return;
    for (const Moments& moments : moments_) {
      const ByteRows rotation = round_to_byte_rows(moments.rotation());
      std::vector<uint8_t> bytes(rotation.levels.size());
      std::transform(rotation.levels.data(), rotation.levels.data() + bytes.size(), bytes.begin(),
                     [](int8_t level) { return static_cast<uint8_t>(level + kZero); });
      document.append_values<uint8_t>(kRotation, bytes);
      document.append_values<float>(kScales, rotation.scales);
    }
  }

 private:
  /// rows: of as many heads as there are, or a multiple; consecutive ones belong to one.
  void add(MatrixView<const float> rows) {
    const size_t d = shape_.dims(), each = rows.cols() / (moments_.size() * d);
    for (size_t i = 0; i < rows.rows(); ++i)
      for (size_t head = 0; head < moments_.size() * each; ++head)
        moments_[head / each].add(rows.row(i).subspan(head * d, d));
  }

  GroupShape shape_;
  bool stores_;
  std::vector<Moments> moments_;
};

/// out[j] = sum over i of x[i] * matrix[i][j], heads one behind the other.
void multiply(const Matrix<float>& matrices, size_t dims, std::span<const float> x, std::span<float> out) {
  std::ranges::fill(out, 0.0f);
  for (size_t i = 0; i < x.size(); ++i) {
    const std::span<const float> row = matrices.row(i);
    const std::span<float> sums = out.subspan(i / dims * dims, dims);
    for (size_t j = 0; j < dims; ++j) sums[j] += x[i] * row[j];
  }
}

}  // namespace

std::vector<StreamSpec> rotation_streams(const GroupShape& shape) {
  const uint64_t d = shape.dims();
  return {{std::string(kRotation), DType::u8, {d, d}, Category::tables, 0, true},
          {std::string(kScales), DType::f32, {d}, Category::tables, 0, true}};
}

std::unique_ptr<Survey> make_rotation_survey(const GroupShape& shape, bool stores) {
  return std::make_unique<RotationSurvey>(shape, stores);
}

Rotations::Rotations(const GroupShape& shape, const StreamReader& document) : dims_(shape.dims()) {
  const size_t heads = shape.all_heads();
  ByteRows stored{Matrix<int8_t>(heads * dims_, dims_), document.read<float>(kScales, 0, heads, dims_)};
  std::ranges::transform(document.read<uint8_t>(kRotation, 0, heads, dims_ * dims_), stored.levels.data(),
                         [](uint8_t byte) { return static_cast<int8_t>(byte - kZero); });
  for (const float scale : stored.scales)
    if (!std::isfinite(scale)) throw bad_input("stream '{}': {} is not finite", kScales, scale);
  rows_ = floats_of(stored);
  columns_ = Matrix<float>(heads * dims_, dims_);
  for (size_t head = 0; head < heads; ++head)
    for (size_t i = 0; i < dims_; ++i)
      for (size_t j = 0; j < dims_; ++j) columns_(head * dims_ + j, i) = rows_(head * dims_ + i, j);
}

void Rotations::forward(std::span<const float> row, std::span<float> out) const {
  multiply(columns_, dims_, row, out);
}
void Rotations::back(std::span<const float> row, std::span<float> out) const {
  multiply(rows_, dims_, row, out);
}

}  // namespace kvcodec::q4
