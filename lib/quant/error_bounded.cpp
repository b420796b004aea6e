#include "lib/quant/error_bounded.hpp"

#include <algorithm>
#include <vector>

#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/quant/error_bounded_kernels.hpp"
#include "lib/quant/error_bounded_value.hpp"

namespace kvcodec {

namespace error_bounded_kernels::scalar {
static void measure(Values x, bool by_rows, float* low, float* high, float* sums) {
  for (size_t i = 0; i < x.rows; ++i)
    for (size_t j = 0; j < x.cols; ++j) {
      const float value = x.data[i * x.stride + j];
      const size_t unit = by_rows ? i : j;
      low[unit] = value < low[unit] ? value : low[unit];
      high[unit] = value > high[unit] ? value : high[unit];
      sums[unit] += value;
    }
}

static void quantize(Values x, Grids grids, bool brain, Cells<uint8_t> symbols, uint32_t* failures) {
  for (size_t i = 0; i < x.rows; ++i)
    for (size_t j = 0; j < x.cols; ++j) {
      const size_t unit = grids.by_rows ? i : j;
      const Grid grid{grids.steps[unit], grids.inverses[unit], grids.bounds[unit], grids.offsets[unit]};
      uint8_t symbol = 0;
      failures[unit] += error_bounded_kernels::quantize(x.data[i * x.stride + j], grid, brain, symbol);
      if (symbols.data) symbols.data[i * symbols.stride + j] = symbol;
    }
}

static void dequantize(Cells<const uint8_t> symbols, Grids grids, Cells<float> out) {
  for (size_t i = 0; i < out.rows; ++i)
    for (size_t j = 0; j < out.cols; ++j) {
      const size_t unit = grids.by_rows ? i : j;
      out.data[i * out.stride + j] =
          (static_cast<float>(symbols.data[i * symbols.stride + j]) - grids.offsets[unit]) *
          grids.steps[unit];
    }
}

constexpr Table kTable = {measure, quantize, dequantize};

const Table& table() { return kTable; }

}  // namespace error_bounded_kernels::scalar

namespace {

namespace kernels = error_bounded_kernels;
using kernels::Extremes, kernels::StepSearch;

static_assert(kernels::kZeroLevelSymbol == kZeroSymbol && kernels::kLargestSymbol + 1 == kExactSymbol);

/// Calls body(table, first, count) for the columns that the wide table takes and for the rest.
template <class Body>
void split_columns(size_t columns, Body&& body) {
  using namespace kernels;
  const size_t wide = columns / kColumns * kColumns;
  if (wide > 0) body(pick(scalar::table, avx2::table, avx512::table)(), size_t{0}, wide);
  if (wide < columns) body(scalar::table(), wide, columns - wide);
}

/// Units are worked on in batches, whose grids fit on the stack and whose values are still near when they are read again.
constexpr size_t kBatch = 128;

/// Grids of a batch's columns or rows, as the kernels read them.
class GridBatch {
 public:
  explicit GridBatch(bool by_rows) : by_rows_(by_rows) {}

  bool by_rows() const { return by_rows_; }
  void set_step(size_t i, float step) {
    steps_[i] = step;
    inverses_[i] = step > 0 ? 1 / step : 0.0f;
  }
  void set_origin(size_t i, int origin) {
    offsets_[i] = static_cast<float>(kZeroSymbol - origin);
    bases_[i] = static_cast<uint32_t>(kZeroSymbol - origin) - kernels::kRounderBits;
  }
  void set(size_t i, float step, float bound, int origin) {
    set_step(i, step);
    set_origin(i, origin);
    bounds_[i] = bound;
  }
  float step(size_t i) const { return steps_[i]; }
  float inverse(size_t i) const { return inverses_[i]; }
  float bound(size_t i) const { return bounds_[i]; }
  int origin(size_t i) const { return kZeroSymbol - static_cast<int>(offsets_[i]); }
  /// Those of columns from `first` on, or of all rows.
  kernels::Grids from(size_t first) const {
    const size_t i = by_rows_ ? 0 : first;
    return {by_rows_, steps_ + i, inverses_ + i, bounds_ + i, offsets_ + i, bases_ + i};
  }

 private:
  bool by_rows_;
  alignas(64) float steps_[kBatch], inverses_[kBatch], bounds_[kBatch], offsets_[kBatch];
  alignas(64) uint32_t bases_[kBatch];
};

template <class Element>
kernels::Cells<Element> cells_of(MatrixView<Element> x) {
  return {x.data(), x.rows(), x.cols(), x.stride()};
}

/// At most kBatch columns or rows of a matrix, with grids and results for each.
class Batch : public GridBatch {
 public:
  Batch(MatrixView<const float> x, bool by_rows, bool brain) : GridBatch(by_rows), x_(x), brain_(brain) {
    std::fill_n(low_, units(), Extremes{}.low);
    std::fill_n(high_, units(), Extremes{}.high);
    std::fill_n(sums_, units(), 0.0f);
  }

  size_t units() const { return by_rows() ? x_.rows() : x_.cols(); }
  Extremes extremes(size_t i) const { return {low_[i], high_[i]}; }
  uint32_t failures(size_t i) const { return failures_[i]; }

  /// Finds extremes, and sums of columns.
  void measure() {
    split_columns(x_.cols(), [&](const kernels::Table& table, size_t first, size_t count) {
      const size_t i = by_rows() ? 0 : first;
      table.measure(cells_of(x_.columns(first, count)), by_rows(), low_ + i, high_ + i, sums_ + i);
    });
  }

  /// Counts failures, and writes symbols unless the view is empty.
  void quantize(MatrixView<uint8_t> symbols) {
    std::fill_n(failures_, units(), 0u);
    split_columns(x_.cols(), [&](const kernels::Table& table, size_t first, size_t count) {
      const size_t i = by_rows() ? 0 : first;
      const auto part = symbols.data() ? symbols.columns(first, count) : symbols;
      table.quantize(cells_of(x_.columns(first, count)), from(first), brain_, cells_of(part), failures_ + i);
    });
  }

  /// Sets a column's origin by its mean.
  int16_t choose_origin(size_t j) {
    const int16_t origin = kernels::origin_of(extremes(j), sums_[j], x_.rows(), inverse(j));
    set_origin(j, origin);
    return origin;
  }

  void choose_origins(std::span<int16_t> origins) {
    for (size_t j = 0; j < origins.size(); ++j) origins[j] = choose_origin(j);
  }

  /// Fits the grids to a bound, once extremes are known, and quantizes. Chooses origins where there is room. Most first
  /// steps stand, so quantizing with them counts their failures; where a step changes, its unit is quantized again.
  void fit(const ErrorBound& bound, std::span<int16_t> origins, MatrixView<uint8_t> symbols) {
    for (size_t i = 0; i < units(); ++i) {
      const double limit = kernels::bound_of(bound.range, bound.absolute, bound.magnitude, extremes(i));
      set(i, kernels::widest_step(extremes(i), limit), kernels::float_below(limit), 0);
    }
    choose_origins(origins);
    quantize(symbols);
    std::vector<float> values;
    std::vector<uint8_t> unit_symbols;
    for (size_t i = 0; i < units(); ++i) {
      if (failures(i) == 0 || step(i) == 0) continue;
      values.resize(by_rows() ? x_.cols() : x_.rows());
      for (size_t k = 0; k < values.size(); ++k) values[k] = by_rows() ? x_(i, k) : x_(k, i);
      Batch unit({values.data(), 1, values.size()}, true, brain_);
      unit.set(0, step(i), this->bound(i), 0);
      StepSearch search(step(i), kernels::spacing_at(extremes(i).magnitude(), brain_), values.size(),
                        failures(i));
      while (const float next = search.next()) {
        unit.set_step(0, next);
        unit.quantize({});
        search.tried(next, unit.failures(0));
      }
      if (search.best() == step(i)) continue;
      set_step(i, search.best());
      if (!origins.empty()) origins[i] = choose_origin(i);
      unit.set(0, step(i), this->bound(i), origin(i));
      unit_symbols.resize(values.size());
      unit.quantize({unit_symbols.data(), 1, values.size()});
      for (size_t k = 0; k < values.size(); ++k)
        (by_rows() ? symbols(i, k) : symbols(k, i)) = unit_symbols[k];
    }
  }

 private:
  MatrixView<const float> x_;
  bool brain_;
  alignas(64) float low_[kBatch], high_[kBatch], sums_[kBatch];
  alignas(64) uint32_t failures_[kBatch];
};

/// Calls body(batch, first column or row) for batches of a matrix's columns or, with units of rows, rows.
template <class Body>
void for_batches(MatrixView<const float> x, UnitShape unit, bool brain, const Body& body) {
  if (x.rows() == 0 || x.cols() == 0) return;
  const bool by_rows = unit == UnitShape::row;
  const size_t all = by_rows ? x.rows() : x.cols();
  for (size_t first = 0; first < all; first += kBatch) {
    const size_t count = std::min(kBatch, all - first);
    Batch batch(by_rows ? x.rows(first, count) : x.columns(first, count), by_rows, brain);
    body(batch, first);
  }
}

/// Returns the step of a matrix that is one unit; float_bound: its bound.
float fit_block(MatrixView<const float> x, bool brain, const ErrorBound& bound, float& float_bound) {
  Extremes all;
  for_batches(x, UnitShape::block, brain, [&](Batch& batch, size_t) {
    batch.measure();
    for (size_t j = 0; j < batch.units(); ++j) {
      all.low = std::min(all.low, batch.extremes(j).low);
      all.high = std::max(all.high, batch.extremes(j).high);
    }
  });
  const double limit = kernels::bound_of(bound.range, bound.absolute, bound.magnitude, all);
  float_bound = kernels::float_below(limit);
  const float widest = kernels::widest_step(all, limit);
  if (widest == 0) return 0;
  const auto count_failures = [&](float step) {
    uint64_t sum = 0;
    for_batches(x, UnitShape::block, brain, [&](Batch& batch, size_t) {
      for (size_t j = 0; j < batch.units(); ++j) batch.set(j, step, float_bound, 0);
      batch.quantize({});
      for (size_t j = 0; j < batch.units(); ++j) sum += batch.failures(j);
    });
    return sum;
  };
  StepSearch search(widest, kernels::spacing_at(all.magnitude(), brain), x.rows() * x.cols(),
                    count_failures(widest));
  while (const float step = search.next()) search.tried(step, count_failures(step));
  return search.best();
}

void check_count(size_t got, size_t expected, const char* what) {
  if (got != expected) throw failed("{} {} where {} are needed", got, what, expected);
}

/// values: symbols or floats, of (rows, cols).
template <class Element>
void check_shapes(UnitShape unit, size_t rows, size_t cols, size_t steps, size_t origins,
                  MatrixView<Element> values) {
  check_count(steps, unit_count(unit, rows, cols), "steps");
  check_count(values.rows(), rows, "rows");
  check_count(values.cols(), cols, "columns");
  if (origins == 0) return;
  if (unit == UnitShape::row) throw failed("units of rows have no origins");
  check_count(origins, cols, "origins");
}

}  // namespace

void quantize_bounded(MatrixView<const float> x, UnitShape unit, const ErrorBound& bound, DType storage,
                      const BoundedCodes& out) {
  const std::span<float> steps = out.steps;
  const std::span<int16_t> origins = out.origins;
  const MatrixView<uint8_t> symbols = out.symbols;
  if (storage != DType::f16 && storage != DType::bf16)
    throw failed("values of {} cannot be quantized with a bound; f16 and bf16 can", name_of(storage));
  if (!(bound.range > 0 || bound.absolute > 0 || bound.magnitude > 0))
    throw usage_error("no error bound is above 0");
  check_shapes(unit, x.rows(), x.cols(), steps.size(), origins.size(), symbols);
  std::ranges::fill(steps, 0.0f);
  std::ranges::fill(origins, int16_t{0});
  if (x.rows() == 0 || x.cols() == 0) return;
  const bool brain = storage == DType::bf16;
  float block_bound = 0;
  if (unit == UnitShape::block) steps[0] = fit_block(x, brain, bound, block_bound);
  for_batches(x, unit, brain, [&](Batch& batch, size_t first) {
    const size_t count = batch.units();
    const auto own = batch.by_rows() ? symbols.rows(first, count) : symbols.columns(first, count);
    const auto own_origins = origins.empty() ? origins : origins.subspan(first, count);
    if (unit != UnitShape::block || !origins.empty()) batch.measure();
    if (unit != UnitShape::block) {
      batch.fit(bound, own_origins, own);
      for (size_t i = 0; i < count; ++i) steps[first + i] = batch.step(i);
      return;
    }
    for (size_t j = 0; j < count; ++j) batch.set(j, steps[0], block_bound, 0);
    batch.choose_origins(own_origins);
    batch.quantize(own);
  });
}

void dequantize_bounded(MatrixView<const uint8_t> symbols, UnitShape unit, std::span<const float> steps,
                        std::span<const int16_t> origins, MatrixView<float> out) {
  check_shapes(unit, symbols.rows(), symbols.cols(), steps.size(), origins.size(), out);
  if (symbols.rows() == 0 || symbols.cols() == 0) return;
  const bool by_rows = unit == UnitShape::row;
  const size_t units = by_rows ? symbols.rows() : symbols.cols();
  for (size_t begin = 0; begin < units; begin += kBatch) {
    const size_t batch = std::min(kBatch, units - begin);
    GridBatch grids(by_rows);
    for (size_t i = 0; i < batch; ++i)
      grids.set(i, steps[unit == UnitShape::block ? 0 : begin + i], 0,
                origins.empty() ? 0 : origins[begin + i]);
    const auto of_symbols = by_rows ? symbols.rows(begin, batch) : symbols.columns(begin, batch);
    const auto of_out = by_rows ? out.rows(begin, batch) : out.columns(begin, batch);
    split_columns(of_out.cols(), [&](const kernels::Table& table, size_t first, size_t count) {
      table.dequantize(cells_of(of_symbols.columns(first, count)), grids.from(first),
                       cells_of(of_out.columns(first, count)));
    });
  }
}

}  // namespace kvcodec
