#include "lib/quant/error_bounded.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/quant/error_bounded_kernels.hpp"
#include "lib/quant/error_bounded_value.hpp"

namespace kvcodec {
namespace error_bounded_kernels::scalar {
namespace {

Grid grid_at(const Grids& grids, size_t i) {
  return {grids.steps[i], grids.inverses[i], grids.bounds[i], grids.offsets[i]};
}

void widen_extremes(float value, float& low, float& high) {
  low = value < low ? value : low;
  high = value > high ? value : high;
}

void moments_of_columns(Values x, float* low, float* high, float* sums) {
  for (size_t i = 0; i < x.rows; ++i)
    for (size_t j = 0; j < x.cols; ++j) {
      widen_extremes(x.data[i * x.stride + j], low[j], high[j]);
      sums[j] += x.data[i * x.stride + j];
    }
}

// Loops over rows keep what belongs to the row in locals: writes to symbols could change it otherwise, for all
// that the compiler knows.

std::span<const float> row_of(const Values& x, size_t i) { return {x.data + i * x.stride, x.cols}; }

void extremes_of_rows(Values x, float* low, float* high) {
  for (size_t i = 0; i < x.rows; ++i) {
    float lowest = low[i], highest = high[i];
    for (const float value : row_of(x, i)) widen_extremes(value, lowest, highest);
    low[i] = lowest, high[i] = highest;
  }
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
  for (size_t i = 0; i < x.rows; ++i) {
    const Grid grid = grid_at(grids, i);
    uint32_t failed = 0;
    for (const float value : row_of(x, i)) failed += fails(value, level_of(value, grid), grid, brain);
    failures[i] += failed;
  }
}

void quantize_columns(Values x, Grids grids, bool brain, uint8_t* symbols, size_t symbol_stride,
                      uint32_t* failures) {
  for_each(x, [&](size_t i, size_t j, float value) {
    failures[j] += quantize(value, grid_at(grids, j), brain, symbols[i * symbol_stride + j]);
  });
}

void quantize_rows(Values x, Grids grids, bool brain, uint8_t* symbols, size_t symbol_stride,
                   uint32_t* failures) {
  for (size_t i = 0; i < x.rows; ++i) {
    const Grid grid = grid_at(grids, i);
    const auto row = row_of(x, i);
    uint32_t failed = 0;
    for (size_t j = 0; j < row.size(); ++j)
      failed += quantize(row[j], grid, brain, symbols[i * symbol_stride + j]);
    failures[i] += failed;
  }
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
  for (size_t i = 0; i < rows; ++i) {
    const float offset = grids.offsets[i],
                step = grids.steps[i];  // for all that is known, `out` overlaps them
    for (size_t j = 0; j < cols; ++j)
      out[i * stride + j] = (static_cast<float>(symbols[i * symbol_stride + j]) - offset) * step;
  }
}

constexpr Table kTable = {moments_of_columns, extremes_of_rows, failures_of_columns, failures_of_rows,
                          quantize_columns,   quantize_rows,    dequantize_columns,  dequantize_rows};

}  // namespace

const Table& table() { return kTable; }

}  // namespace error_bounded_kernels::scalar

namespace {

namespace kernels = error_bounded_kernels;
using kernels::Extremes, kernels::StepSearch, kernels::float_below, kernels::spacing_at, kernels::widest_step;

double bound_of(const ErrorBound& bound, const Extremes& unit) {
  return kernels::bound_of(bound.range, bound.absolute, bound.magnitude, unit);
}
static_assert(kernels::kZeroLevelSymbol == kZeroSymbol && kernels::kLargestSymbol + 1 == kExactSymbol);

const kernels::Table& table_in_force() {
  return pick(kernels::scalar::table, kernels::avx2::table, kernels::avx512::table)();
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

/// A grid as the kernels read it.
struct SingleGrid {
  void set_step(float new_step) {
    step = new_step;
    inverse = new_step > 0 ? 1 / new_step : 0.0f;
  }
  kernels::Grids all() const { return {&step, &inverse, &bound, &offset, &base}; }

  float step, inverse, bound, offset;
  uint32_t base;
};

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
  SingleGrid single(size_t i) const { return {steps_[i], inverses_[i], bounds_[i], offsets_[i], bases_[i]}; }
  kernels::Grids from(size_t i) const {
    return {steps_ + i, inverses_ + i, bounds_ + i, offsets_ + i, bases_ + i};
  }
  kernels::Grids all() const { return from(0); }

 private:
  alignas(64) float steps_[kBatch] = {}, inverses_[kBatch] = {}, bounds_[kBatch] = {}, offsets_[kBatch] = {};
  alignas(64) uint32_t bases_[kBatch] = {};
};

kernels::Values values_of(MatrixView<const float> x) { return {x.data(), x.rows(), x.cols(), x.stride()}; }

// The loops over matrices of any number of columns; grids and results are per column or per row of x.

/// Of a batch of columns, or of rows (these without sums).
struct MomentsBatch {
  MomentsBatch() {
    std::fill(low, low + kBatch, Extremes{}.low);
    std::fill(high, high + kBatch, Extremes{}.high);
  }
  Extremes operator[](size_t i) const { return {low[i], high[i]}; }
  alignas(64) float low[kBatch], high[kBatch], sums[kBatch] = {};
};

MomentsBatch moments_of_columns(MatrixView<const float> x) {
  MomentsBatch result;
  split_columns(x.cols(), [&](const kernels::Table& table, size_t first, size_t count) {
    table.moments_of_columns(values_of(x.columns(first, count)), result.low + first, result.high + first,
                             result.sums + first);
  });
  return result;
}

MomentsBatch extremes_of_rows(MatrixView<const float> x) {
  MomentsBatch result;
  split_columns(x.cols(), [&](const kernels::Table& table, size_t first, size_t count) {
    table.extremes_of_rows(values_of(x.columns(first, count)), result.low, result.high);
  });
  return result;
}

/// How many values of each unit of a batch do not come back within their bound.
struct FailuresBatch {
  uint32_t& operator[](size_t i) { return counts[i]; }
  uint32_t operator[](size_t i) const { return counts[i]; }
  alignas(64) uint32_t counts[kBatch] = {};
};

FailuresBatch failures_of_columns(MatrixView<const float> x, const GridBatch& grids, bool brain) {
  FailuresBatch failures;
  split_columns(x.cols(), [&](const kernels::Table& table, size_t first, size_t count) {
    table.failures_of_columns(values_of(x.columns(first, count)), grids.from(first), brain,
                              failures.counts + first);
  });
  return failures;
}

FailuresBatch failures_of_rows(MatrixView<const float> x, const GridBatch& grids, bool brain) {
  FailuresBatch failures;
  split_columns(x.cols(), [&](const kernels::Table& table, size_t first, size_t count) {
    table.failures_of_rows(values_of(x.columns(first, count)), grids.all(), brain, failures.counts);
  });
  return failures;
}

uint32_t failures_of_row(std::span<const float> x, const SingleGrid& grid, bool brain) {
  uint32_t failures = 0;
  split_columns(x.size(), [&](const kernels::Table& table, size_t first, size_t count) {
    table.failures_of_rows({x.data() + first, 1, count, count}, grid.all(), brain, &failures);
  });
  return failures;
}

FailuresBatch quantize_columns(MatrixView<const float> x, const GridBatch& grids, bool brain,
                               MatrixView<uint8_t> symbols) {
  FailuresBatch failures;
  split_columns(x.cols(), [&](const kernels::Table& table, size_t first, size_t count) {
    table.quantize_columns(values_of(x.columns(first, count)), grids.from(first), brain,
                           symbols.data() + first, symbols.stride(), failures.counts + first);
  });
  return failures;
}

FailuresBatch quantize_rows(MatrixView<const float> x, const GridBatch& grids, bool brain,
                            MatrixView<uint8_t> symbols) {
  FailuresBatch failures;
  split_columns(x.cols(), [&](const kernels::Table& table, size_t first, size_t count) {
    table.quantize_rows(values_of(x.columns(first, count)), grids.all(), brain, symbols.data() + first,
                        symbols.stride(), failures.counts);
  });
  return failures;
}

void quantize_row(std::span<const float> x, const SingleGrid& grid, bool brain, uint8_t* symbols) {
  uint32_t failures = 0;
  split_columns(x.size(), [&](const kernels::Table& table, size_t first, size_t count) {
    table.quantize_rows({x.data() + first, 1, count, count}, grid.all(), brain, symbols + first, count,
                        &failures);
  });
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

// Fitting, by shape --------------------------------------------------------------------------------

/// Sets bound and widest step of units 0 .. count - 1 of a batch.
void start_grids(const MomentsBatch& moments, size_t count, const ErrorBound& bound, GridBatch& grids) {
  for (size_t i = 0; i < count; ++i) {
    const double limit = bound_of(bound, moments[i]);
    grids.set_bound(i, float_below(limit));
    grids.set_step(i, widest_step(moments[i], limit));
    grids.set_origin(i, 0);
  }
}

/// The step that costs fewest bits for one unit, `failures` of whose values fail with the grid's.
float refined_step(std::span<const float> unit, float magnitude, bool brain, uint64_t failures,
                   SingleGrid grid) {
  StepSearch search(grid.step, spacing_at(magnitude, brain), unit.size(), failures);
  while (const float step = search.next()) {
    grid.set_step(step);
    search.tried(step, failures_of_row(unit, grid, brain));
  }
  return search.best();
}

/// Improves the steps of a batch's units that fail with their first steps. values_of_unit(i) gives a unit's
/// values side by side; changed(i, values) is called where there is a better step.
template <class ValuesOfUnit, class Changed>
void refine(size_t units, const MomentsBatch& moments, bool brain, const FailuresBatch& failures,
            GridBatch& grids, ValuesOfUnit&& values_of_unit, Changed&& changed) {
  for (size_t i = 0; i < units; ++i) {
    const float first_step = grids.step(i);
    if (failures[i] == 0 || first_step == 0) continue;
    const std::span<const float> unit = values_of_unit(i);
    grids.set_step(i, refined_step(unit, moments[i].magnitude(), brain, failures[i], grids.single(i)));
    if (grids.step(i) != first_step) changed(i, unit);
  }
}

/// Columns of a matrix one at a time, side by side.
class ColumnCopy {
 public:
  explicit ColumnCopy(MatrixView<const float> x) : x_(x) {}

  std::span<const float> operator()(size_t column) {
    values_.resize(x_.rows());
    for (size_t i = 0; i < x_.rows(); ++i) values_[i] = x_(i, column);
    return values_;
  }

 private:
  MatrixView<const float> x_;
  std::vector<float> values_;
};

uint64_t failures_of_block(MatrixView<const float> x, float step, float bound, bool brain) {
  GridBatch grids;
  for (size_t j = 0; j < std::min(kBatch, x.cols()); ++j) {
    grids.set_step(j, step);
    grids.set_bound(j, bound);
  }
  uint64_t sum = 0;
  for_column_batches(x, [&](MatrixView<const float> part, size_t) {
    const FailuresBatch failures = failures_of_columns(part, grids, brain);
    for (size_t j = 0; j < part.cols(); ++j) sum += failures[j];
  });
  return sum;
}

/// Returns the step.
float fit_block(MatrixView<const float> x, const ErrorBound& bound, bool brain, float& float_bound) {
  Extremes all;
  for_column_batches(x, [&](MatrixView<const float> part, size_t) {
    const MomentsBatch moments = moments_of_columns(part);
    all.low = std::min(all.low, *std::min_element(moments.low, moments.low + part.cols()));
    all.high = std::max(all.high, *std::max_element(moments.high, moments.high + part.cols()));
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

int16_t origin_of(const MomentsBatch& moments, size_t rows, size_t j, float inverse) {
  return kernels::origin_of(moments.low[j], moments.high[j], moments.sums[j], rows, inverse);
}

/// Origins of at most kBatch columns, also into the grids; none where the span is empty.
void choose_origins(const MomentsBatch& moments, size_t rows, GridBatch& grids, std::span<int16_t> origins) {
  for (size_t j = 0; j < origins.size(); ++j) {
    origins[j] = origin_of(moments, rows, j, grids.inverse(j));
    grids.set_origin(j, origins[j]);
  }
}

/// The part of a span of origins, which may be empty, for columns of a matrix.
std::span<int16_t> part_of(std::span<int16_t> origins, size_t first, size_t count) {
  return origins.empty() ? origins : origins.subspan(first, count);
}

// Fitting and quantizing in one go -------------------------------------------------------------------

/// At most kBatch columns. Most first steps stand, so quantizing with them counts their failures; where a
/// step changes, its column is quantized again.
void quantize_fitting_columns(MatrixView<const float> x, const ErrorBound& bound, bool brain,
                              GridBatch& grids, std::span<int16_t> origins, MatrixView<uint8_t> symbols) {
  const MomentsBatch moments = moments_of_columns(x);
  start_grids(moments, x.cols(), bound, grids);
  choose_origins(moments, x.rows(), grids, origins);
  const FailuresBatch failures = quantize_columns(x, grids, brain, symbols);
  std::vector<uint8_t> column_symbols;
  refine(x.cols(), moments, brain, failures, grids, ColumnCopy(x),
         [&](size_t j, std::span<const float> column) {
           if (!origins.empty()) {
             origins[j] = origin_of(moments, x.rows(), j, grids.inverse(j));
             grids.set_origin(j, origins[j]);
           }
           column_symbols.resize(x.rows());
           quantize_row(column, grids.single(j), brain, column_symbols.data());
           for (size_t i = 0; i < x.rows(); ++i) symbols(i, j) = column_symbols[i];
         });
}

/// The same of rows.
void quantize_fitting_rows(MatrixView<const float> x, const ErrorBound& bound, bool brain, GridBatch& grids,
                           MatrixView<uint8_t> symbols) {
  const MomentsBatch extremes = extremes_of_rows(x);
  start_grids(extremes, x.rows(), bound, grids);
  const FailuresBatch failures = quantize_rows(x, grids, brain, symbols);
  refine(
      x.rows(), extremes, brain, failures, grids, [&](size_t i) { return x.row(i); },
      [&](size_t i, std::span<const float> row) {
        quantize_row(row, grids.single(i), brain, symbols.row(i).data());
      });
}

// Checks -------------------------------------------------------------------------------------------

void check_storage(DType storage) {
  if (storage != DType::f16 && storage != DType::bf16)
    throw failed("values of {} cannot be quantized with a bound; f16 and bf16 can", name_of(storage));
}

void check_count(size_t got, size_t expected, const char* what) {
  if (got != expected) throw failed("{} {} where {} are needed", got, what, expected);
}

void check_bound(const ErrorBound& bound) {
  if (!(bound.range > 0 || bound.absolute > 0 || bound.magnitude > 0))
    throw usage_error("no error bound is above 0");
}

void check_shapes(MatrixView<const float> x, MatrixView<uint8_t> symbols) {
  check_count(symbols.rows(), x.rows(), "rows of symbols");
  check_count(symbols.cols(), x.cols(), "columns of symbols");
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
  check_bound(bound);
  std::fill(steps.begin(), steps.end(), 0.0f);
  std::fill(bounds.begin(), bounds.end(), 0.0f);
  if (x.rows() == 0 || x.cols() == 0) return;
  const bool brain = storage == DType::bf16;
  const auto ignore = [](size_t, std::span<const float>) {};
  const auto keep = [&](const GridBatch& grids, size_t first, size_t count) {
    const kernels::Grids fitted = grids.all();
    std::copy_n(fitted.steps, count, steps.begin() + static_cast<ptrdiff_t>(first));
    std::copy_n(fitted.bounds, count, bounds.begin() + static_cast<ptrdiff_t>(first));
  };
  switch (unit) {
    case UnitShape::column:
      return for_column_batches(x, [&](MatrixView<const float> part, size_t first) {
        GridBatch grids;
        const MomentsBatch moments = moments_of_columns(part);
        start_grids(moments, part.cols(), bound, grids);
        refine(part.cols(), moments, brain, failures_of_columns(part, grids, brain), grids, ColumnCopy(part),
               ignore);
        keep(grids, first, part.cols());
      });
    case UnitShape::row:
      return for_row_batches(x, [&](MatrixView<const float> part, size_t first) {
        GridBatch grids;
        const MomentsBatch extremes = extremes_of_rows(part);
        start_grids(extremes, part.rows(), bound, grids);
        refine(
            part.rows(), extremes, brain, failures_of_rows(part, grids, brain), grids,
            [&](size_t i) { return part.row(i); }, ignore);
        keep(grids, first, part.rows());
      });
    case UnitShape::block:
      steps[0] = fit_block(x, bound, brain, bounds[0]);
  }
}

void quantize_with(MatrixView<const float> x, UnitShape unit, std::span<const float> steps,
                   std::span<const float> bounds, DType storage, std::span<int16_t> origins,
                   MatrixView<uint8_t> symbols) {
  check_storage(storage);
  check_count(steps.size(), unit_count(unit, x.rows(), x.cols()), "steps");
  check_count(bounds.size(), steps.size(), "bounds");
  check_origins(origins.size(), unit, x.cols());
  check_shapes(x, symbols);
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
    for_row_batches(x, [&](MatrixView<const float> part, size_t first) {
      GridBatch grids;
      fill(grids, first, part.rows());
      quantize_rows(part, grids, brain, symbols.rows(first, part.rows()));
    });
    return;
  }
  for_column_batches(x, [&](MatrixView<const float> part, size_t first) {
    GridBatch grids;
    fill(grids, first, part.cols());
    const std::span<int16_t> chosen = part_of(origins, first, part.cols());
    if (!chosen.empty()) choose_origins(moments_of_columns(part), part.rows(), grids, chosen);
    quantize_columns(part, grids, brain, symbols.columns(first, part.cols()));
  });
}

void quantize_bounded(MatrixView<const float> x, UnitShape unit, const ErrorBound& bound, DType storage,
                      std::span<float> steps, std::span<int16_t> origins, MatrixView<uint8_t> symbols) {
  check_storage(storage);
  check_bound(bound);
  check_count(steps.size(), unit_count(unit, x.rows(), x.cols()), "steps");
  check_origins(origins.size(), unit, x.cols());
  check_shapes(x, symbols);
  if (unit == UnitShape::block) {
    float block_bound = 0;
    fit_steps(x, unit, bound, storage, steps, std::span(&block_bound, 1));
    return quantize_with(x, unit, steps, std::span(&block_bound, 1), storage, origins, symbols);
  }
  std::fill(steps.begin(), steps.end(), 0.0f);
  std::fill(origins.begin(), origins.end(), int16_t{0});
  if (x.rows() == 0 || x.cols() == 0) return;
  const bool brain = storage == DType::bf16;
  const auto keep = [&](const GridBatch& grids, size_t first, size_t count) {
    std::copy_n(grids.all().steps, count, steps.begin() + static_cast<ptrdiff_t>(first));
  };
  if (unit == UnitShape::column)
    for_column_batches(x, [&](MatrixView<const float> part, size_t first) {
      GridBatch grids;
      quantize_fitting_columns(part, bound, brain, grids, part_of(origins, first, part.cols()),
                               symbols.columns(first, part.cols()));
      keep(grids, first, part.cols());
    });
  else
    for_row_batches(x, [&](MatrixView<const float> part, size_t first) {
      GridBatch grids;
      quantize_fitting_rows(part, bound, brain, grids, symbols.rows(first, part.rows()));
      keep(grids, first, part.rows());
    });
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
        table.dequantize_rows(symbols.row(begin).data() + first, symbols.stride(), grids.all(),
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
