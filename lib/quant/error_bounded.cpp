#include "lib/quant/error_bounded.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/quant/error_bounded_kernels.hpp"

namespace kvcodec {
namespace error_bounded_kernels::scalar {
namespace {

/// The grid of one value.
struct Grid {
  float step, inverse, bound, offset;
};

Grid grid_at(const Grids& grids, size_t i) {
  return {grids.steps[i], grids.inverses[i], grids.bounds[i], grids.offsets[i]};
}

float level_of(float x, const Grid& grid) { return (x * grid.inverse + kRounder) - kRounder; }

/// Both differences are exact wherever they matter, so the comparison is one of real numbers: a level other
/// than 0 lies within a factor of 4 of its value, the value and its rounded reconstruction are multiples of
/// the smaller one's last place, of which the difference is at most a few thousand, and to the float
/// reconstruction Sterbenz' lemma applies or the same.
bool fails(float x, float level, const Grid& grid, bool brain) {
  const float back = level * grid.step;
  const float rounded = round_to(brain ? DType::bf16 : DType::f16, back);
  return !(std::abs(back - x) <= grid.bound && std::abs(rounded - x) <= grid.bound);
}

uint8_t symbol_of(float x, const Grid& grid, bool brain) {
  const float level = level_of(x, grid), symbol = level + grid.offset;
  const bool no = fails(x, level, grid, brain) || symbol < 0 || symbol > kLargestSymbol;
  return no ? kExactSymbol : static_cast<uint8_t>(symbol);
}

void widen_extremes(float value, float& low, float& high) {
  low = value < low ? value : low;
  high = value > high ? value : high;
}

void extremes_of_columns(Values x, float* low, float* high) {
  for (size_t i = 0; i < x.rows; ++i)
    for (size_t j = 0; j < x.cols; ++j) widen_extremes(x.data[i * x.stride + j], low[j], high[j]);
}

void extremes_of_rows(Values x, float* low, float* high) {
  for (size_t i = 0; i < x.rows; ++i)
    for (size_t j = 0; j < x.cols; ++j) widen_extremes(x.data[i * x.stride + j], low[i], high[i]);
}

void sums_of_columns(Values x, float* sums) {
  for (size_t i = 0; i < x.rows; ++i)
    for (size_t j = 0; j < x.cols; ++j) sums[j] += x.data[i * x.stride + j];
}

/// Calls body(row, column, value).
template <class Body>
void for_each(const Values& x, Body&& body) {
  for (size_t i = 0; i < x.rows; ++i)
    for (size_t j = 0; j < x.cols; ++j) body(i, j, x.data[i * x.stride + j]);
}

void failures_of_columns(Values x, Grids grids, bool brain, uint32_t* failures) {
  for_each(x, [&](size_t, size_t j, float value) {
    const Grid grid = grid_at(grids, j);
    failures[j] += fails(value, level_of(value, grid), grid, brain);
  });
}

void failures_of_rows(Values x, Grids grids, bool brain, uint32_t* failures) {
  for_each(x, [&](size_t i, size_t, float value) {
    const Grid grid = grid_at(grids, i);
    failures[i] += fails(value, level_of(value, grid), grid, brain);
  });
}

void quantize_columns(Values x, Grids grids, bool brain, uint8_t* symbols, size_t symbol_stride) {
  for_each(x, [&](size_t i, size_t j, float value) {
    symbols[i * symbol_stride + j] = symbol_of(value, grid_at(grids, j), brain);
  });
}

void quantize_rows(Values x, Grids grids, bool brain, uint8_t* symbols, size_t symbol_stride) {
  for_each(x, [&](size_t i, size_t j, float value) {
    symbols[i * symbol_stride + j] = symbol_of(value, grid_at(grids, i), brain);
  });
}

void dequantize_columns(const uint8_t* symbols, size_t symbol_stride, Grids grids, float* out, size_t rows,
                        size_t cols, size_t stride) {
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < cols; ++j)
      out[i * stride + j] =
          (static_cast<float>(symbols[i * symbol_stride + j]) - grids.offsets[j]) * grids.steps[j];
}

void dequantize_rows(const uint8_t* symbols, size_t symbol_stride, Grids grids, float* out, size_t rows,
                     size_t cols, size_t stride) {
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < cols; ++j)
      out[i * stride + j] =
          (static_cast<float>(symbols[i * symbol_stride + j]) - grids.offsets[i]) * grids.steps[i];
}

constexpr Table kTable = {extremes_of_columns, extremes_of_rows,   sums_of_columns,
                          failures_of_columns, failures_of_rows,   quantize_columns,
                          quantize_rows,       dequantize_columns, dequantize_rows};

}  // namespace

const Table& table() { return kTable; }

}  // namespace error_bounded_kernels::scalar

namespace {

namespace kernels = error_bounded_kernels;

const kernels::Table& table_in_force() {
  switch (simd_level()) {
    case SimdLevel::avx512:
      return kernels::avx512::table();
    case SimdLevel::avx2:
      return kernels::avx2::table();
    case SimdLevel::scalar:
      break;
  }
  return kernels::scalar::table();
}

/// Calls body(table, first, count) for the columns that the wide table takes and for the rest.
template <class Body>
void split_columns(size_t columns, Body&& body) {
  const size_t wide = columns / kernels::kColumns * kernels::kColumns;
  if (wide > 0) body(table_in_force(), size_t{0}, wide);
  if (wide < columns) body(kernels::scalar::table(), wide, columns - wide);
}

/// Units are worked on in batches, whose grids fit on the stack and whose values are still near when they are
/// read again.
constexpr size_t kBatch = 128;

/// Grids of one batch, as the kernels read them.
class GridBatch {
 public:
  void set_step(size_t i, float step) {
    steps_[i] = step;
    inverses_[i] = step > 0 ? 1 / step : 0.0f;
  }
  void set_bound(size_t i, float bound) { bounds_[i] = bound; }
  void set_origin(size_t i, int origin) {
    offsets_[i] = static_cast<float>(kZeroSymbol - origin);
    bases_[i] = static_cast<uint32_t>(kZeroSymbol - origin) - kernels::kRounderBits;
  }

  float step(size_t i) const { return steps_[i]; }
  float inverse(size_t i) const { return inverses_[i]; }
  kernels::Grids from(size_t i) const {
    return {steps_ + i, inverses_ + i, bounds_ + i, offsets_ + i, bases_ + i};
  }

 private:
  float steps_[kBatch] = {}, inverses_[kBatch] = {}, bounds_[kBatch] = {}, offsets_[kBatch] = {};
  uint32_t bases_[kBatch] = {};
};

kernels::Values values_of(MatrixView<const float> x) { return {x.data(), x.rows(), x.cols(), x.stride()}; }

// The loops over matrices of any number of columns; grids and results are per column or per row of x.

struct Extremes {
  float low = std::numeric_limits<float>::infinity(), high = -std::numeric_limits<float>::infinity();

  bool constant() const { return low == high; }
  float magnitude() const { return std::max(std::abs(low), std::abs(high)); }
};

struct ExtremesBatch {
  ExtremesBatch() {
    std::fill(low, low + kBatch, Extremes{}.low);
    std::fill(high, high + kBatch, Extremes{}.high);
  }
  Extremes operator[](size_t i) const { return {low[i], high[i]}; }
  float low[kBatch], high[kBatch];
};

ExtremesBatch extremes_of_columns(MatrixView<const float> x) {
  ExtremesBatch result;
  split_columns(x.cols(), [&](const kernels::Table& table, size_t first, size_t count) {
    table.extremes_of_columns(values_of(x.columns(first, count)), result.low + first, result.high + first);
  });
  return result;
}

ExtremesBatch extremes_of_rows(MatrixView<const float> x) {
  ExtremesBatch result;
  split_columns(x.cols(), [&](const kernels::Table& table, size_t first, size_t count) {
    table.extremes_of_rows(values_of(x.columns(first, count)), result.low, result.high);
  });
  return result;
}

void add_failures_of_columns(MatrixView<const float> x, const GridBatch& grids, size_t first_grid, bool brain,
                             uint32_t* failures) {
  split_columns(x.cols(), [&](const kernels::Table& table, size_t first, size_t count) {
    table.failures_of_columns(values_of(x.columns(first, count)), grids.from(first_grid + first), brain,
                              failures + first);
  });
}

void add_failures_of_rows(MatrixView<const float> x, const GridBatch& grids, size_t first_grid, bool brain,
                          uint32_t* failures) {
  split_columns(x.cols(), [&](const kernels::Table& table, size_t first, size_t count) {
    table.failures_of_rows(values_of(x.columns(first, count)), grids.from(first_grid), brain, failures);
  });
}

// Bounds and steps ---------------------------------------------------------------------------------

constexpr float kLargestF16 = 65504;

/// The largest value of f16 that is not above x; x >= 0.
float f16_below(double x) {
  uint16_t half = f16_from_float(static_cast<float>(std::min(x, double{kLargestF16})));
  if (double{f16_to_float(half)} > x) --half;
  return f16_to_float(half);
}

/// The largest float that is not above x; x >= 0.
float float_below(double x) {
  const auto nearest = static_cast<float>(std::min(x, double{FLT_MAX}));
  return double{nearest} > x ? std::nextafter(nearest, 0.0f) : nearest;
}

/// The distance of neighbouring values of a 16-bit type at x > 0.
double spacing_at(float x, bool brain) {
  return brain ? std::ldexp(1.0, std::max(std::ilogb(x), -126) - 7)
               : std::ldexp(1.0, std::max(std::ilogb(x), -14) - 10);
}

double bound_of(const ErrorBound& bound, const Extremes& unit) {
  double result = std::numeric_limits<double>::infinity();
  if (bound.range > 0) result = std::min(result, bound.range * (double{unit.high} - double{unit.low}));
  if (bound.absolute > 0) result = std::min(result, bound.absolute);
  if (bound.magnitude > 0) result = std::min(result, bound.magnitude * double{unit.magnitude()});
  return result;
}

/// A unit's first step. Constants that lie off the grid of their bound get a grid that holds them.
float widest_step(const Extremes& unit, double bound) {
  const float magnitude = unit.magnitude();
  if (magnitude == 0) return 0;
  if (unit.constant() && bound < double{magnitude} && round_to(DType::f16, magnitude) == magnitude)
    return magnitude;
  return f16_below(2 * bound);
}

/// About log2(ratio) for ratio in 1..2, by its series in (ratio - 1) / (ratio + 1); off by less than 0.0002.
/// Plain arithmetic, so that every machine chooses the same steps.
double log2_near(double ratio) {
  constexpr double kTwoOverLn2 = 2.8853900817779268;
  const double z = (ratio - 1) / (ratio + 1), z2 = z * z;
  return kTwoOverLn2 * z * (1 + z2 * (1.0 / 3 + z2 * (1.0 / 5)));
}

/// Looks for the step that costs the fewest bits, from the widest on: first the widest truncated to ever
/// coarser binary digits, then to a power of two. A step that is a multiple of the spacing of 16-bit values
/// in some binade has its levels among them, in that binade and in all above, so nothing is lost to rounding.
class StepSearch {
 public:
  /// `failures` of the unit's `values` fail with the widest step.
  StepSearch(float widest, double spacing, size_t values, uint64_t failures)
      : widest_(widest), spacing_(spacing), values_(values), last_(widest), best_(widest) {
    best_cost_ = cost(widest, failures);
  }

  /// A step to be tried next; 0 if no other can be better.
  float next() {
    while (round_ <= kRounds) {
      const float step = truncated(round_++);
      if (step <= 0 || step >= last_) continue;
      if (cost(step, 0) >= best_cost_) break;  // and all that follow cost more
      last_ = step;
      return step;
    }
    round_ = kRounds + 1;
    return 0;
  }

  void tried(float step, uint64_t failures) {
    const double tried_cost = cost(step, failures);
    if (tried_cost >= best_cost_) return;
    best_ = step;
    best_cost_ = tried_cost;
  }

  float best() const { return best_; }

 private:
  /// Binades below that of the largest value whose spacing is tried; below them 1/32 of a spacing is lost at
  /// most, less than the bits of one value in a thousand.
  static constexpr int kRounds = 5;

  /// What an exactly stored value costs: its 16 bits and the share of a rare symbol above those of others.
  static constexpr double kExactBits = 18;

  float truncated(int round) const {
    if (round == kRounds) return std::ldexp(1.0f, std::ilogb(widest_));
    const double unit = std::ldexp(spacing_, round + 1 - kRounds);
    return static_cast<float>(std::floor(double{widest_} / unit) * unit);
  }

  double cost(float step, uint64_t failures) const {
    return kExactBits * static_cast<double>(failures) +
           static_cast<double>(values_) * log2_near(double{widest_} / double{step});
  }

  float widest_;
  double spacing_;
  size_t values_;
  float last_, best_;
  double best_cost_ = 0;
  int round_ = 0;
};

// Fitting, by shape --------------------------------------------------------------------------------

/// Sets bound and widest step of units 0 .. count - 1 of a batch; true if there are units to look at more
/// closely.
void start_grids(const ExtremesBatch& extremes, size_t count, const ErrorBound& bound, GridBatch& grids) {
  for (size_t i = 0; i < count; ++i) {
    const double limit = bound_of(bound, extremes[i]);
    grids.set_bound(i, float_below(limit));
    grids.set_step(i, widest_step(extremes[i], limit));
  }
}

/// Improves the steps of columns [first, first + x.cols()) of the batch, at most kColumns; `failures` are
/// those of their first steps.
void refine_columns(MatrixView<const float> x, size_t first, const ExtremesBatch& extremes, bool brain,
                    const uint32_t* failures, GridBatch& grids) {
  std::vector<StepSearch> searches;
  std::vector<size_t> columns;
  for (size_t j = first; j < first + x.cols(); ++j)
    if (failures[j] > 0 && grids.step(j) > 0) {
      searches.emplace_back(grids.step(j), spacing_at(extremes[j].magnitude(), brain), x.rows(), failures[j]);
      columns.push_back(j);
    }
  for (bool searching = !searches.empty(); searching;) {
    searching = false;
    std::vector<float> trials(searches.size());
    for (size_t k = 0; k < searches.size(); ++k) {
      trials[k] = searches[k].next();
      if (trials[k] == 0) continue;
      grids.set_step(columns[k], trials[k]);
      searching = true;
    }
    if (!searching) break;
    uint32_t trial_failures[kernels::kColumns] = {};
    add_failures_of_columns(x, grids, first, brain, trial_failures);
    for (size_t k = 0; k < searches.size(); ++k)
      if (trials[k] > 0) searches[k].tried(trials[k], trial_failures[columns[k] - first]);
  }
  for (size_t k = 0; k < searches.size(); ++k) grids.set_step(columns[k], searches[k].best());
}

/// The grids of at most kBatch columns.
void fit_columns(MatrixView<const float> x, const ErrorBound& bound, bool brain, GridBatch& grids) {
  const ExtremesBatch extremes = extremes_of_columns(x);
  start_grids(extremes, x.cols(), bound, grids);
  uint32_t failures[kBatch] = {};
  add_failures_of_columns(x, grids, 0, brain, failures);
  for (size_t first = 0; first < x.cols(); first += kernels::kColumns)
    refine_columns(x.columns(first, std::min(kernels::kColumns, x.cols() - first)), first, extremes, brain,
                   failures, grids);
}

/// The grids of at most kBatch rows.
void fit_rows(MatrixView<const float> x, const ErrorBound& bound, bool brain, GridBatch& grids) {
  const ExtremesBatch extremes = extremes_of_rows(x);
  start_grids(extremes, x.rows(), bound, grids);
  uint32_t failures[kBatch] = {};
  add_failures_of_rows(x, grids, 0, brain, failures);
  for (size_t i = 0; i < x.rows(); ++i) {
    if (failures[i] == 0 || grids.step(i) == 0) continue;
    StepSearch search(grids.step(i), spacing_at(extremes[i].magnitude(), brain), x.cols(), failures[i]);
    while (const float step = search.next()) {
      grids.set_step(i, step);
      uint32_t trial_failures = 0;
      add_failures_of_rows(x.rows(i, 1), grids, i, brain, &trial_failures);
      search.tried(step, trial_failures);
    }
    grids.set_step(i, search.best());
  }
}

/// Calls body(columns of x, first column) for batches of columns.
template <class Body>
void for_column_batches(MatrixView<const float> x, Body&& body) {
  for (size_t first = 0; first < x.cols(); first += kBatch)
    body(x.columns(first, std::min(kBatch, x.cols() - first)), first);
}

template <class Body>
void for_row_batches(MatrixView<const float> x, Body&& body) {
  for (size_t first = 0; first < x.rows(); first += kBatch)
    body(x.rows(first, std::min(kBatch, x.rows() - first)), first);
}

uint64_t failures_of_block(MatrixView<const float> x, float step, float bound, bool brain) {
  GridBatch grids;
  for (size_t j = 0; j < std::min(kBatch, x.cols()); ++j) {
    grids.set_step(j, step);
    grids.set_bound(j, bound);
  }
  uint64_t sum = 0;
  for_column_batches(x, [&](MatrixView<const float> part, size_t) {
    uint32_t failures[kBatch] = {};
    add_failures_of_columns(part, grids, 0, brain, failures);
    for (size_t j = 0; j < part.cols(); ++j) sum += failures[j];
  });
  return sum;
}

/// Returns the step.
float fit_block(MatrixView<const float> x, const ErrorBound& bound, bool brain, float& float_bound) {
  Extremes all;
  for_column_batches(x, [&](MatrixView<const float> part, size_t) {
    const ExtremesBatch extremes = extremes_of_columns(part);
    all.low = std::min(all.low, *std::min_element(extremes.low, extremes.low + part.cols()));
    all.high = std::max(all.high, *std::max_element(extremes.high, extremes.high + part.cols()));
  });
  const double limit = bound_of(bound, all);
  float_bound = float_below(limit);
  const float widest = widest_step(all, limit);
  if (widest == 0) return 0;
  const auto count_failures = [&](float step) { return failures_of_block(x, step, float_bound, brain); };
  StepSearch search(widest, spacing_at(all.magnitude(), brain), x.rows() * x.cols(), count_failures(widest));
  while (const float step = search.next()) search.tried(step, count_failures(step));
  return search.best();
}

// Origins ------------------------------------------------------------------------------------------

float nearest_level(float x, float inverse) { return (x * inverse + kernels::kRounder) - kernels::kRounder; }

/// The level nearest to the mean, moved as far as needed for all levels between low and high to get symbols,
/// if there are so few.
int16_t origin_of(float mean, float low, float high, float inverse) {
  constexpr float kBelow = kZeroSymbol, kAbove = kernels::kLargestSymbol - kZeroSymbol;
  float origin = nearest_level(mean, inverse);
  const float least = nearest_level(high, inverse) - kAbove, most = nearest_level(low, inverse) + kBelow;
  if (least <= most) origin = std::clamp(origin, least, most);
  return static_cast<int16_t>(std::clamp(origin, -32768.0f, 32767.0f));
}

/// Origins of at most kBatch columns.
void choose_origins(MatrixView<const float> x, const GridBatch& grids, std::span<int16_t> origins) {
  const ExtremesBatch extremes = extremes_of_columns(x);
  float sums[kBatch] = {};
  split_columns(x.cols(), [&](const kernels::Table& table, size_t first, size_t count) {
    table.sums_of_columns(values_of(x.columns(first, count)), sums + first);
  });
  const float share = 1 / static_cast<float>(x.rows());
  for (size_t j = 0; j < x.cols(); ++j) {
    const float low = extremes.low[j], high = extremes.high[j];
    const float mean = std::isfinite(sums[j]) ? sums[j] * share : low / 2 + high / 2;  // bf16 sums overflow
    origins[j] = origin_of(mean, low, high, grids.inverse(j));
  }
}

// Checks -------------------------------------------------------------------------------------------

void check_storage(DType storage) {
  if (storage != DType::f16 && storage != DType::bf16)
    throw failed("values of {} cannot be quantized with a bound; f16 and bf16 can", name_of(storage));
}

void check_count(size_t got, size_t expected, const char* what) {
  if (got != expected) throw failed("{} {} where {} are needed", got, what, expected);
}

void check_origins(size_t origins, UnitShape unit, size_t columns) {
  if (origins == 0) return;
  if (unit == UnitShape::row) throw failed("units of rows have no origins");
  check_count(origins, columns, "origins");
}

}  // namespace

void fit_steps(MatrixView<const float> x, UnitShape unit, const ErrorBound& bound, DType storage,
               std::span<float> steps, std::span<float> bounds) {
  check_storage(storage);
  check_count(steps.size(), unit_count(unit, x.rows(), x.cols()), "steps");
  check_count(bounds.size(), steps.size(), "bounds");
  if (!(bound.range > 0 || bound.absolute > 0 || bound.magnitude > 0))
    throw usage_error("no error bound is above 0");
  std::fill(steps.begin(), steps.end(), 0.0f);
  std::fill(bounds.begin(), bounds.end(), 0.0f);
  if (x.rows() == 0 || x.cols() == 0) return;
  const bool brain = storage == DType::bf16;
  if (unit == UnitShape::block) {
    steps[0] = fit_block(x, bound, brain, bounds[0]);
    return;
  }
  const auto fit = [&](auto fit_units, MatrixView<const float> part, size_t first, size_t count) {
    GridBatch grids;
    fit_units(part, bound, brain, grids);
    const kernels::Grids fitted = grids.from(0);
    std::copy_n(fitted.steps, count, steps.begin() + static_cast<ptrdiff_t>(first));
    std::copy_n(fitted.bounds, count, bounds.begin() + static_cast<ptrdiff_t>(first));
  };
  if (unit == UnitShape::column)
    for_column_batches(x, [&](auto part, size_t first) { fit(fit_columns, part, first, part.cols()); });
  else
    for_row_batches(x, [&](auto part, size_t first) { fit(fit_rows, part, first, part.rows()); });
}

void quantize_with(MatrixView<const float> x, UnitShape unit, std::span<const float> steps,
                   std::span<const float> bounds, DType storage, std::span<int16_t> origins,
                   MatrixView<uint8_t> symbols) {
  check_storage(storage);
  check_count(steps.size(), unit_count(unit, x.rows(), x.cols()), "steps");
  check_count(bounds.size(), steps.size(), "bounds");
  check_origins(origins.size(), unit, x.cols());
  check_count(symbols.rows(), x.rows(), "rows of symbols");
  check_count(symbols.cols(), x.cols(), "columns of symbols");
  std::fill(origins.begin(), origins.end(), int16_t{0});
  if (x.rows() == 0 || x.cols() == 0) return;
  const bool brain = storage == DType::bf16;
  const auto fill = [&](GridBatch& grids, size_t first, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const size_t k = unit == UnitShape::block ? 0 : first + i;
      grids.set_step(i, steps[k]);
      grids.set_bound(i, bounds[k]);
      grids.set_origin(i, 0);
    }
  };
  if (unit == UnitShape::row) {
    for_row_batches(x, [&](MatrixView<const float> part, size_t first_row) {
      GridBatch grids;
      fill(grids, first_row, part.rows());
      split_columns(part.cols(), [&](const kernels::Table& table, size_t first, size_t count) {
        table.quantize_rows(values_of(part.columns(first, count)), grids.from(0), brain,
                            symbols.row(first_row).data() + first, symbols.stride());
      });
    });
    return;
  }
  for_column_batches(x, [&](MatrixView<const float> part, size_t first_column) {
    GridBatch grids;
    fill(grids, first_column, part.cols());
    if (!origins.empty()) {
      const std::span<int16_t> chosen = origins.subspan(first_column, part.cols());
      choose_origins(part, grids, chosen);
      for (size_t j = 0; j < part.cols(); ++j) grids.set_origin(j, chosen[j]);
    }
    split_columns(part.cols(), [&](const kernels::Table& table, size_t first, size_t count) {
      table.quantize_columns(values_of(part.columns(first, count)), grids.from(first), brain,
                             symbols.data() + first_column + first, symbols.stride());
    });
  });
}

void quantize_bounded(MatrixView<const float> x, UnitShape unit, const ErrorBound& bound, DType storage,
                      std::span<float> steps, std::span<int16_t> origins, MatrixView<uint8_t> symbols) {
  std::vector<float> bounds(unit_count(unit, x.rows(), x.cols()));
  fit_steps(x, unit, bound, storage, steps, bounds);
  quantize_with(x, unit, steps, bounds, storage, origins, symbols);
}

void dequantize_bounded(MatrixView<const uint8_t> symbols, UnitShape unit, std::span<const float> steps,
                        std::span<const int16_t> origins, MatrixView<float> out) {
  check_count(steps.size(), unit_count(unit, symbols.rows(), symbols.cols()), "steps");
  check_origins(origins.size(), unit, symbols.cols());
  check_count(out.rows(), symbols.rows(), "rows of values");
  check_count(out.cols(), symbols.cols(), "columns of values");
  if (symbols.rows() == 0 || symbols.cols() == 0) return;
  const bool by_rows = unit == UnitShape::row;
  const size_t units = by_rows ? symbols.rows() : symbols.cols();
  for (size_t begin = 0; begin < units; begin += kBatch) {
    const size_t batch = std::min(kBatch, units - begin);
    GridBatch grids;
    for (size_t i = 0; i < batch; ++i) {
      grids.set_step(i, steps[unit == UnitShape::block ? 0 : begin + i]);
      grids.set_origin(i, origins.empty() ? 0 : origins[begin + i]);
    }
    if (by_rows)
      split_columns(symbols.cols(), [&](const kernels::Table& table, size_t first, size_t count) {
        table.dequantize_rows(symbols.row(begin).data() + first, symbols.stride(), grids.from(0),
                              out.row(begin).data() + first, batch, count, out.stride());
      });
    else
      split_columns(batch, [&](const kernels::Table& table, size_t first, size_t count) {
        table.dequantize_columns(symbols.data() + begin + first, symbols.stride(), grids.from(first),
                                 out.data() + begin + first, symbols.rows(), count, out.stride());
      });
  }
}

}  // namespace kvcodec
