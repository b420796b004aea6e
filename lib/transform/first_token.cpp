#include "lib/transform/first_token.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

float finer_step(float step, double finer) { return static_cast<float>(static_cast<double>(step) / finer); }

/// The class of values by the mean level that rounding gives them; never dead.
uint8_t class_of(std::span<const float> values, float step) {
  double sum = 0;
  for (const float value : values) sum += std::round(std::abs(static_cast<double>(value / step)));
  const uint8_t level_class = class_of_mean_level(sum / static_cast<double>(values.size()));
  return level_class == kDeadClass ? 0 : level_class;
}

}  // namespace

FirstTokens learn_first_tokens(MatrixView<const float> rows, const ErrorMetric& metric, size_t blocks,
                               std::span<const float> steps, double finer) {
  const size_t width = rows.cols();
  if (rows.rows() == 0 || blocks == 0 || width % blocks != 0)
    throw failed("{} first tokens of {} values in {} heads", rows.rows(), width, blocks);
  FirstTokens learned;
  for (size_t c = 0; c < width; ++c) {
    double sum = 0;
    for (size_t i = 0; i < rows.rows(); ++i) sum += static_cast<double>(rows(i, c));
    learned.mean.push_back(static_cast<float>(sum / static_cast<double>(rows.rows())));
  }
  Matrix<float> centred(rows.rows(), width);
  for (size_t i = 0; i < rows.rows(); ++i)
    for (size_t c = 0; c < width; ++c) centred(i, c) = rows(i, c) - learned.mean[c];
  const Matrix<float> weighted = metric.times_root(centred);
  // The values of a head, of all tokens.
  const size_t of_head = width / blocks;
  Matrix<float> heads(blocks, rows.rows() * of_head);
  for (size_t i = 0; i < rows.rows(); ++i)
    for (size_t c = 0; c < width; ++c) heads(c / of_head, i * of_head + c % of_head) = weighted(i, c);
  for (const float step : steps) {
    auto& classes = learned.classes.emplace_back();
    for (size_t b = 0; b < blocks; ++b) classes.push_back(class_of(heads.row(b), finer_step(step, finer)));
  }
  return learned;
}

FirstTokenCoder::FirstTokenCoder(const ErrorMetric& metric, const LevelTables& tables,
                                 std::vector<float> mean, const std::vector<uint8_t>& classes, float step,
                                 double finer)
    : metric_(metric),
      tables_(tables),
      mean_(std::move(mean)),
      classes_(classes),
      step_(finer_step(step, finer)),
      coder_(tables, classes) {
  if (classes_.empty() || width() % classes_.size() != 0 || metric_.width() != width())
    throw failed("first tokens of {} values in {} heads; the metric has {}", width(), classes_.size(),
                 metric_.width());
}

void FirstTokenCoder::encode(std::span<const float> row, std::vector<uint8_t>& out) const {
  if (row.size() != width()) throw failed("a first token of {} values, not {}", row.size(), width());
  Matrix<float> centred(1, width());
  for (size_t c = 0; c < width(); ++c) centred(0, c) = row[c] - mean_[c];
  const Matrix<float> weighted = metric_.times_root(centred);
  Matrix<int32_t> levels(classes_.size(), of_head());
  for (size_t b = 0; b < classes_.size(); ++b)
    tables_.quantize(classes_[b], step_, weighted.row(0).subspan(b * of_head(), of_head()), levels.row(b));
  coder_.encode(levels, out);
}

void FirstTokenCoder::decode(std::span<const uint8_t> bytes, std::span<float> row) const {
  if (row.size() != width()) throw failed("room for {} values of a first token of {}", row.size(), width());
  Matrix<int32_t> levels(classes_.size(), of_head());
  const auto size = static_cast<uint32_t>(bytes.size());
  coder_.decode(bytes, {&size, 1}, of_head(), levels);
  Matrix<float> weighted(1, width());
  for (size_t b = 0; b < classes_.size(); ++b)
    tables_.reconstruct(classes_[b], step_, 1, levels.row(b),
                        weighted.row(0).subspan(b * of_head(), of_head()));
  const Matrix<float> back = metric_.times_inverse_root(weighted);
  for (size_t c = 0; c < width(); ++c) row[c] = mean_[c] + back(0, c);
}

}  // namespace kvcodec
