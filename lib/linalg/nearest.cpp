#include "lib/linalg/nearest.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/nearest_kernels.hpp"

namespace kvcodec {

namespace nearest_kernels::scalar {

static void exact(const float* row, const float* entries, size_t padded, const uint32_t* ids, size_t count,
                  float* out) {
  for (size_t i = 0; i < count; ++i) {
    const float* entry = entries + size_t{ids[i]} * padded;
    float lanes[kLanes] = {};
    for (size_t j = 0; j < padded; j += kLanes)
      for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += row[j + lane] * entry[j + lane];
    for (size_t half = kLanes / 2; half > 0; half /= 2)
      for (size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    out[i] = lanes[0];
  }
}

const Table& table() {
  static constexpr Table kTable = {exact,   nullptr, nullptr, nullptr, nullptr,
                                   nullptr, nullptr, nullptr, nullptr};
  return kTable;
}

}  // namespace nearest_kernels::scalar

using namespace nearest_kernels;

namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

/// Rough scores in work at a time: 96 KiB, a tenth of a second-level cache. All of up to 1,024 entries are scored before any is kept, since
/// what is kept of the first ones would be too much; of more, few at a time, so that many rows use what was read of them.
constexpr size_t kBlockScores = 24576, kMaxBlockEntries = 1024, kFewBlockEntries = 256;

/// Rows per piece of parallel work.
constexpr size_t kPieceRows = 384;

/// Sums of 255 * 127 must stay within 31 bits.
constexpr size_t kMaxByteDimensions = 1 << 15;

/// Rough candidates of one group before they are scored exactly and most of them dropped.
constexpr size_t kMaxCandidates = 512;

/// Bounds are multiplied by it, as they are computed in floats themselves.
constexpr double kBoundSlack = 1.0001;

/// Added under square roots of sums of squares in floats, so that squares that underflow break no bound.
constexpr double kUnderflow = 1e-36;

const Table& table_in_force() {
  return pick(scalar::table, avx2::table, avx512::table, avx512_vnni::table)();
}

bool before(const ProductSearch::Match& a, const ProductSearch::Match& b) {
  if (a.score != b.score) return a.score > b.score;
  return a.row != b.row ? a.row < b.row : a.id < b.id;
}

/// The best `width` matches seen so far, in order.
class BestList {
 public:
  void reset(std::span<ProductSearch::Match> room) {
    room_ = room;
    std::ranges::fill(room_, ProductSearch::Match{kNone, 0, 0});
    size_ = 0;
  }
  void add(const ProductSearch::Match& match) {
    // NaN, from products beyond float, and rows that do not count are no matches.
    if (room_.empty() || !(match.score > kNone)) return;
    if (size_ == room_.size() && !before(match, room_.back())) return;
    size_t at = size_ < room_.size() ? size_++ : size_ - 1;
    for (; at > 0 && before(match, room_[at - 1]); --at) room_[at] = room_[at - 1];
    room_[at] = match;
  }

 private:
  std::span<ProductSearch::Match> room_;
  size_t size_ = 0;
};

/// The value in place `place` (from 0) of the floats in falling order.
float place_of(std::span<const float> values, size_t place, std::vector<float>& scratch) {
  if (place == 0) return *std::ranges::max_element(values);
  if (place >= values.size()) return kNone;
  scratch.assign(place + 1, kNone);
  for (const float value : values) {
    if (!(value > scratch[place])) continue;
    size_t at = place;
    for (; at > 0 && value > scratch[at - 1]; --at) scratch[at] = scratch[at - 1];
    scratch[at] = value;
  }
  return scratch[place];
}

}  // namespace

// Making entries ready

ProductSearch::ProductSearch(MatrixView<const float> entries, std::span<const float> bias)
    : count_(entries.rows()), dimensions_(entries.cols()), padded_(round_up(entries.cols(), kLanes)) {
  if (count_ == 0) throw failed("no entry to choose from");
  if (count_ > std::numeric_limits<uint32_t>::max()) throw failed("{} entries: ids have 32 bits", count_);
  if (!bias.empty() && bias.size() != count_) throw failed("{} biases for {} entries", bias.size(), count_);
  entries_ = entries.data();
  if (padded_ != dimensions_ || !entries.contiguous()) own_.resize(count_ * padded_);
  for (size_t i = 0; i < count_ && !own_.empty(); ++i)
    std::ranges::copy(entries.row(i), own_.data() + i * padded_);
  bias_.assign(count_, 0);
  std::ranges::copy(bias, bias_.begin());
  const Table& table = table_in_force();
  if (!table.screen_floats || dimensions_ == 0) return;
  for (size_t i = 0; i < count_; ++i) {
    largest_norm_ = std::max(largest_norm_, std::sqrt(squared_norm(entries.row(i))));
    largest_bias_ = std::max(largest_bias_, std::abs(double{bias_[i]}));
  }
  // A norm that no float holds leaves no bound to work with.
  if (!(largest_norm_ < 1e18) || !(largest_bias_ < 1e36)) return;
  if (table.screen_bytes && dimensions_ <= kMaxByteDimensions)
    pack_bytes(entries);
  else
    pack_floats(entries);
}

void ProductSearch::pack_floats(MatrixView<const float> entries) {
  screen_ = Screen::floats;
  const size_t panels = round_up(count_, kTile) / kPanel;
  float_panels_.resize(panels * dimensions_ * kPanel);
  screen_bias_.assign(panels * kPanel, kNone);
  margin_.assign(panels * kPanel, 0);
  std::ranges::copy(bias_, screen_bias_.begin());
  parallel_each(count_, 1024, [&](size_t i) {
    float* panel = float_panels_.data() + i / kPanel * dimensions_ * kPanel + i % kPanel;
    for (size_t j = 0; j < dimensions_; ++j) panel[j * kPanel] = entries(i, j);
  });
}

void ProductSearch::pack_bytes(MatrixView<const float> entries) {
  screen_ = Screen::bytes;
  // <x, e> = <x - c, e - c> + <c, e - c> + <x, c>: with the mean c of the entries taken off both, bytes hold
  // what differs between them. The second term goes to the bias, the third is the same for all entries.
  center_.assign(padded_, 0);
  std::vector<double> mean(dimensions_);
  for (size_t i = 0; i < count_; ++i)
    for (size_t j = 0; j < dimensions_; ++j) mean[j] += double{entries(i, j)};
  for (size_t j = 0; j < dimensions_; ++j)
    center_[j] = static_cast<float>(mean[j] / static_cast<double>(count_));
  center_norm_ = std::sqrt(squared_norm(center_));
  const size_t panels = round_up(count_, kTile) / kPanel, quads = padded_ / 4;
  byte_panels_.assign(panels * quads * kPanel * 4, 128);
  screen_bias_.assign(panels * kPanel, kNone);
  scale_.assign(panels * kPanel, 0);
  std::vector<float> centered(dimensions_);
  std::vector<double> centered_norms(count_), rounding_norms(count_);
  for (size_t i = 0; i < count_; ++i) {
    float largest = 0;
    double with_center = 0, squares = 0, rounding = 0;
    for (size_t j = 0; j < dimensions_; ++j) {
      centered[j] = entries(i, j) - center_[j];
      largest = std::max(largest, std::abs(centered[j]));
      with_center += double{center_[j]} * double{centered[j]};
      squares += double{centered[j]} * double{centered[j]};
    }
    const bool none = largest < kMinPeak;
    const float scale = none ? 0 : largest / 127, inverse = none ? 0 : 127 / largest;
    uint8_t* panel = byte_panels_.data() + i / kPanel * quads * kPanel * 4 + i % kPanel * 4;
    for (size_t j = 0; j < dimensions_; ++j) {
      const float rounded = std::clamp(std::nearbyint(centered[j] * inverse), -127.0f, 127.0f);
      panel[j / 4 * kPanel * 4 + j % 4] = static_cast<uint8_t>(static_cast<int>(rounded) + 128);
      const double difference = double{centered[j]} - double{rounded} * double{scale};
      rounding += difference * difference;
    }
    scale_[i] = scale;
    screen_bias_[i] = static_cast<float>(double{bias_[i]} + with_center);
    largest_bias_ = std::max(largest_bias_, std::abs(double{screen_bias_[i]}));
    centered_norms[i] = std::sqrt(squares);
    rounding_norms[i] = std::sqrt(rounding);
    largest_centered_ = std::max(largest_centered_, centered_norms[i]);
    largest_rounding_ = std::max(largest_rounding_, rounding_norms[i]);
  }
  // Both terms of the bound are below this share of what they are for the largest norms.
  margin_.assign(panels * kPanel, 0);
  const auto share = [](double part, double whole) { return whole > 0 ? part / whole : 0; };
  for (size_t i = 0; i < count_; ++i)
    margin_[i] = static_cast<float>(kBoundSlack * std::max(share(centered_norms[i], largest_centered_),
                                                           share(rounding_norms[i], largest_rounding_)));
}

// Searching

/// Searches blocks of whole groups of rows; one per thread.
class ProductSearch::Scratch::Worker {
 public:
  /// Turns to other entries or groups.
  void bind(const ProductSearch& search, size_t group) {
    s_ = &search;
    group_ = group;
    table_ = &table_in_force();
    // The level may have been lowered since the entries were made ready.
    screened_ = s_->screen_ == Screen::bytes ? table_->screen_bytes != nullptr
                                             : s_->screen_ == Screen::floats && table_->screen_floats;
    const size_t all = round_up(s_->count_, kTile);
    block_entries_ = all <= kMaxBlockEntries ? all : kFewBlockEntries;
    const size_t max_rows = kBlockScores / block_entries_;
    // Whole steps of the kernels, where whole groups allow it.
    const size_t step = group * kRows <= 2 * max_rows ? group * kRows : group;
    const size_t rows = std::max(max_rows / step * step, step);
    block_rows_ = rows;
    grow(groups_, rows / group);
    grow(ids_, screened_ ? block_entries_ + kLanes : all);
    if (!screened_) return;
    grow(kept_, block_entries_ + kLanes);
    grow(scores_, rows * block_entries_);
    grow(class_best_, rows * kTile);
    grow(bytes_, rows * s_->padded_);
    grow(scale_, rows), grow(error_, rows), grow(slack_, rows), grow(shift_, rows), grow(start_, rows);
  }

  /// rows: whole groups; offsets: as many, or empty.
  void search(MatrixView<const float> rows, std::span<const float> offsets, MatrixView<Match> out) {
    offsets_ = offsets;
    for (size_t first = 0; first < rows.rows(); first += block_rows_) {
      const size_t count = std::min(block_rows_, rows.rows() - first);
      if (!offsets.empty()) offsets_ = offsets.subspan(first, count);
      search_block(rows.rows(first, count), out.rows(first / group_, count / group_));
    }
  }

 private:
  template <class Vector>
  static void grow(Vector& values, size_t size) {
    if (values.size() < size) values.resize(size);
  }

  struct Candidate {
    uint32_t row, id;
    float score;  // rough, with the offset, and the bound of its error added
  };
  struct Group {
    BestList best;
    std::vector<Candidate> candidates;
    float limit = kNone;  // no pair that counts has a score below it
  };

  float product(const float* a, const float* b) const {
    const uint32_t id = 0;
    float result = 0;
    table_->exact(a, b, s_->padded_, &id, 1, &result);
    return result;
  }

  static float total(float product, float bias, float offset) { return (product + bias) + offset; }

  float offset_of(size_t row) const { return offsets_.empty() ? 0.0f : offsets_[row]; }

  /// Adds the products of a row of group g with these entries to the best of the group.
  void score(size_t g, uint32_t row_of_group, std::span<const uint32_t> ids) {
    const size_t row = g * group_ + row_of_group;
    grow(values_, ids.size());
    table_->exact(row_data_ + row * row_stride_, s_->exact(), s_->padded_, ids.data(), ids.size(),
                  values_.data());
    for (size_t i = 0; i < ids.size(); ++i)
      groups_[g].best.add({total(values_[i], s_->bias_[ids[i]], offset_of(row)), row_of_group, ids[i]});
  }

  void search_block(MatrixView<const float> rows, MatrixView<Match> out) {
    const size_t count = rows.rows();
    if (rows.cols() != s_->padded_) {
      block_.assign(block_rows_ * s_->padded_, 0);
      for (size_t i = 0; i < count; ++i) std::ranges::copy(rows.row(i), block_.data() + i * s_->padded_);
      row_data_ = block_.data(), row_stride_ = s_->padded_;
    } else {
      row_data_ = rows.data(), row_stride_ = rows.stride();
    }
    for (size_t i = 0; i < count / group_; ++i) {
      groups_[i].best.reset(out.row(i));
      groups_[i].candidates.clear();
      groups_[i].limit = kNone;
    }
    if (!screened_) {
      std::iota(ids_.begin(), ids_.end(), 0u);
      for (size_t i = 0; i < count; ++i)
        score(i / group_, static_cast<uint32_t>(i % group_), std::span(ids_).first(s_->count_));
      return;
    }
    for (size_t i = 0; i < count; ++i) prepare(i);
    if (out.cols() > 1) std::fill_n(class_best_.begin(), count * kTile, kNone);
    for (size_t first = 0; first < s_->screen_bias_.size(); first += block_entries_) {
      const size_t entries = std::min(block_entries_, s_->screen_bias_.size() - first);
      screen(first, entries, count);
      for (size_t i = 0; i < count / group_; ++i)
        if (entries == s_->screen_bias_.size())
          choose(i, entries, out.row(i));
        else
          collect(i, first, entries, out.cols());
    }
    for (size_t i = 0; i < count / group_; ++i) score_candidates(i);
  }

  /// The bounds of the error of row i's rough scores: that from bytes, for the entries of the largest norms,
  /// and that from rounding, for any; its bytes, and what its rough scores lack.
  void prepare(size_t i) {
    const float* row = row_data_ + i * row_stride_;
    // Rounding while adding up d products is below d units in the last place of the sum of magnitudes, twice
    // because exact scores are rounded too; the constant covers bias and offset.
    const double unit = 0x1p-23 * static_cast<double>(s_->dimensions_ + 32);
    const double offset = std::isfinite(offset_of(i)) ? std::abs(double{offset_of(i)}) : 0;
    double error = 0, squares = 0;
    float with_center = 0;
    if (s_->screen_ == Screen::bytes) {
      float moments[4];
      int32_t sum = 0;
      scale_[i] = table_->to_bytes(row, s_->center_.data(), s_->padded_, bytes_.data() + i * s_->padded_,
                                   &sum, moments);
      start_[i] = -128 * sum;
      squares = double{moments[2]};
      with_center = moments[3];
      error = std::sqrt(double{moments[1]} + kUnderflow) * s_->largest_centered_ +
              std::sqrt(double{moments[0]} + kUnderflow) * s_->largest_rounding_;
    } else {
      squares = double{product(row, row)};
    }
    const double norm = std::sqrt(squares + kUnderflow);
    const double slack = unit * ((norm + s_->center_norm_) * (s_->largest_norm_ + s_->center_norm_) +
                                 s_->largest_bias_ + offset) +
                         static_cast<double>(s_->dimensions_) * 0x1p-146;  // products that underflow
    error_[i] = static_cast<float>(error * kBoundSlack);
    slack_[i] = static_cast<float>((slack + error * 0x1p-22) * kBoundSlack);
    shift_[i] = with_center + offset_of(i);
  }

  void screen(size_t first, size_t entries, size_t count) {
    const size_t panel = first / kPanel;
    const float* bias = s_->screen_bias_.data() + first;
    if (s_->screen_ == Screen::bytes) {
      const size_t quads = s_->padded_ / 4;
      table_->screen_bytes({s_->byte_panels_.data() + panel * quads * kPanel * 4, quads,
                            s_->scale_.data() + first, bias, entries},
                           {bytes_.data(), scale_.data(), start_.data(), count}, scores_.data(),
                           block_entries_);
    } else {
      table_->screen_floats(
          {s_->float_panels_.data() + panel * s_->dimensions_ * kPanel, s_->dimensions_, bias, entries},
          {row_data_, row_stride_, count}, scores_.data(), block_entries_);
    }
  }

  RoughScores rough_of(size_t row, size_t first, size_t entries) const {
    return {scores_.data() + row * block_entries_, s_->margin_.data() + first, error_[row], entries};
  }

  /// A score that the best of a group's pairs does not fall below.
  float sure_best(size_t first_row, size_t first, size_t entries) const {
    float best = kNone;
    for (size_t row = first_row; row < first_row + group_; ++row)
      best = std::max(best, table_->highest(rough_of(row, first, entries)) + (shift_[row] - slack_[row]));
    return best;
  }

  /// The same of the pair in that place, counted from 0: that many classes have a pair above it. Few of the
  /// best pairs share a class where they are few; else each row has classes of its own.
  float sure_place(size_t first_row, size_t first, size_t entries, size_t place) {
    const bool together = place < kTile / 4;
    const size_t count = together ? 1 : group_;
    for (size_t r = 0; r < group_; ++r) {
      const size_t row = first_row + r;
      table_->highest_of_classes(rough_of(row, first, entries), shift_[row] - slack_[row],
                                 class_best_.data() + (together ? first_row : row) * kTile);
    }
    const std::span<const float> classes(class_best_.data() + first_row * kTile, count * kTile);
    return together && table_->nth_highest ? table_->nth_highest(classes.data(), place)
                                           : place_of(classes, place, scratch_);
  }

  /// Raises what no pair of group g that counts falls below.
  void raise_limit(size_t g, size_t first, size_t entries, size_t width) {
    const size_t first_row = g * group_;
    const float limit =
        width == 1 ? sure_best(first_row, first, entries) : sure_place(first_row, first, entries, width - 1);
    // NaN and infinities rule nothing out.
    float& known = groups_[g].limit;
    known = limit > known && limit < std::numeric_limits<float>::max() ? limit : known;
  }

  /// Entries of a block that may be among the best pairs with the row, by its group's limit: ids_, rising,
  /// and kept_, their rough scores without `reach`, the most that the row adds. Returns how many.
  size_t not_ruled_out(size_t row, float limit, float reach, size_t first, size_t entries) {
    if (shift_[row] == kNone) return 0;
    // The subtraction rounds: one more step down keeps it a bound.
    float row_limit = limit - reach;
    row_limit -= std::abs(row_limit) * 0x1p-22f + std::abs(reach) * 0x1p-22f;
    if (!(row_limit >= kNone)) row_limit = kNone;
    size_t found = table_->not_below(rough_of(row, first, entries), row_limit, static_cast<uint32_t>(first),
                                     ids_.data(), kept_.data());
    while (found > 0 && ids_[found - 1] >= s_->count_) --found;
    return found;
  }

  /// The best pairs of group g where the block has all entries.
  void choose(size_t g, size_t entries, std::span<Match> out) {
    raise_limit(g, 0, entries, out.size());
    size_t count = 0;
    for (size_t r = 0; r < group_; ++r) {
      const size_t row = g * group_ + r;
      const size_t found = not_ruled_out(row, groups_[g].limit, shift_[row] + slack_[row], 0, entries);
      grow(values_, count + found), grow(matches_, count + found);
      table_->exact(row_data_ + row * row_stride_, s_->exact(), s_->padded_, ids_.data(), found,
                    values_.data() + count);
      const float offset = offset_of(row);
      for (size_t i = 0; i < found; ++i, ++count) {
        values_[count] = total(values_[count], s_->bias_[ids_[i]], offset);
        matches_[count] = {values_[count], static_cast<uint32_t>(r), ids_[i]};
      }
    }
    uint32_t order[kMaxRanked];
    if (count <= kMaxRanked && table_->rank && table_->rank(values_.data(), count, order)) {
      const size_t chosen = std::min(count, out.size());
      for (size_t i = 0; i < chosen; ++i) out[i] = matches_[order[i]];
    } else {
      for (size_t i = 0; i < count; ++i) groups_[g].best.add(matches_[i]);
    }
  }

  /// Keeps the entries of a block that may be among the best of group g.
  void collect(size_t g, size_t first, size_t entries, size_t width) {
    raise_limit(g, first, entries, width);
    Group& group = groups_[g];
    for (size_t r = 0; r < group_; ++r) {
      const size_t row = g * group_ + r;
      const float reach = shift_[row] + slack_[row];
      const size_t found = not_ruled_out(row, group.limit, reach, first, entries);
      for (size_t i = 0; i < found; ++i)
        group.candidates.push_back({static_cast<uint32_t>(r), ids_[i], kept_[i] + reach});
    }
    if (group.candidates.size() > kMaxCandidates) score_candidates(g);
  }

  void score_candidates(size_t g) {
    Group& group = groups_[g];
    const float limit = group.limit - std::abs(group.limit) * 0x1p-21f;
    for (size_t first = 0; first < group.candidates.size();) {
      const uint32_t of_row = group.candidates[first].row;
      chosen_ids_.clear();
      for (; first < group.candidates.size() && group.candidates[first].row == of_row; ++first)
        if (!(group.candidates[first].score < limit)) chosen_ids_.push_back(group.candidates[first].id);
      score(g, of_row, chosen_ids_);
    }
    group.candidates.clear();
  }

  const ProductSearch* s_ = nullptr;
  size_t group_ = 1, block_rows_ = 0, block_entries_ = 0;
  const Table* table_ = nullptr;
  bool screened_ = false;           // else all entries are scored exactly
  std::span<const float> offsets_;  // of the rows at hand, or empty
  const float* row_data_ = nullptr;
  size_t row_stride_ = 0;
  AlignedVector<float> block_, scores_, class_best_;
  AlignedVector<int8_t> bytes_;
  std::vector<float> scale_, error_, slack_, shift_, scratch_, kept_, values_;
  std::vector<int32_t> start_;
  std::vector<uint32_t> ids_, chosen_ids_;
  std::vector<Match> matches_;
  std::vector<Group> groups_;
};

ProductSearch::Scratch::Scratch() : worker_(std::make_shared<Worker>()) {}

void ProductSearch::best_of_groups(MatrixView<const float> rows, std::span<const float> offsets, size_t group,
                                   MatrixView<Match> out, Scratch& scratch) const {
  if (group == 0 || rows.rows() % group != 0 || rows.cols() != dimensions_ ||
      out.rows() != rows.rows() / group || out.cols() == 0 ||
      (!offsets.empty() && offsets.size() != rows.rows()))
    throw failed("{} rows of {} in groups of {}, {} offsets and {} results for entries of {}", rows.rows(),
                 rows.cols(), group, offsets.size(), out.rows(), dimensions_);
  if (rows.rows() == 0) return;
  scratch.worker_->bind(*this, group);
  scratch.worker_->search(rows, offsets, out);
}

void ProductSearch::best(MatrixView<const float> rows, std::span<uint32_t> ids,
                         std::span<float> scores) const {
  if (rows.cols() != dimensions_ || ids.size() != rows.rows() ||
      (!scores.empty() && scores.size() != rows.rows()))
    throw failed("{} ids and {} scores for {} rows of {} and entries of {} dimensions", ids.size(),
                 scores.size(), rows.rows(), rows.cols(), dimensions_);
  std::vector<Scratch> scratch(static_cast<size_t>(num_threads()));
  parallel_for(rows.rows(), kPieceRows, [&](size_t begin, size_t end, int worker) {
    std::vector<Match> matches(end - begin);
    best_of_groups(rows.rows(begin, matches.size()), {}, 1, {matches.data(), matches.size(), 1},
                   scratch[static_cast<size_t>(worker)]);
    for (size_t i = begin; i < end; ++i) {
      ids[i] = matches[i - begin].id;
      if (!scores.empty()) scores[i] = matches[i - begin].score;
    }
  });
}

void products(std::span<const float> row, MatrixView<const float> entries, std::span<float> out) {
  const size_t d = row.size(), padded = round_up(d, kLanes);
  if (entries.cols() != d || out.size() != entries.rows())
    throw failed("{} products of a row of {} dimensions with {} entries of {}", out.size(), d, entries.rows(),
                 entries.cols());
  const auto exact = table_in_force().exact;
  const uint32_t only = 0;
  if (d == padded) {
    for (size_t e = 0; e < out.size(); ++e) exact(row.data(), entries.row(e).data(), d, &only, 1, &out[e]);
    return;
  }
  std::vector<float> both(2 * padded);
  std::ranges::copy(row, both.begin());
  for (size_t e = 0; e < out.size(); ++e) {
    std::ranges::copy(entries.row(e), both.data() + padded);
    exact(both.data(), both.data() + padded, padded, &only, 1, &out[e]);
  }
}

}  // namespace kvcodec
