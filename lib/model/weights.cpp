#include "lib/model/weights.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "lib/core/checked.hpp"
#include "lib/core/half.hpp"

namespace kvcodec {

const TensorView& get_tensor(const WeightSource& source, std::string_view name,
                             const std::vector<uint64_t>& shape) {
  const TensorView* tensor = source.find(name);
  if (!tensor)
    throw bad_input("{}: tensor '{}' is missing; it must have shape [{}]", source.name(), name,
                    fmt::join(shape, ", "));
  if (tensor->shape != shape)
    throw bad_input("{}: shape is [{}]; the configuration makes it [{}]", tensor->origin,
                    fmt::join(tensor->shape, ", "), fmt::join(shape, ", "));
  return *tensor;
}

static uint64_t count_of(const TensorView& tensor) { return checked_product(tensor.shape); }

/// Floats that lie `step` elements apart.
static void read_plain(TensorType type, const std::byte* from, uint64_t step, std::span<float> out) {
  const size_t size = block_of(type).bytes, bytes = step * size;
  if (type == TensorType::f32) {
    if (step == 1) return static_cast<void>(std::memcpy(out.data(), from, out.size_bytes()));
    for (size_t i = 0; i < out.size(); ++i) std::memcpy(&out[i], from + i * bytes, size);
    return;
  }
  const DType half = type == TensorType::f16 ? DType::f16 : DType::bf16;
  if (step == 1 && reinterpret_cast<uintptr_t>(from) % alignof(uint16_t) == 0)
    return widen(half, {reinterpret_cast<const uint16_t*>(from), out.size()}, out);
  std::array<uint16_t, 512> halves;  // apart or at an odd address: by way of an aligned copy
  for (size_t i = 0; i < out.size(); i += halves.size()) {
    const size_t count = std::min(halves.size(), out.size() - i);
    for (size_t j = 0; j < count; ++j) std::memcpy(&halves[j], from + (i + j) * bytes, size);
    widen(half, std::span(halves).first(count), out.subspan(i, count));
  }
}

/// Whole blocks as they are, parts of one by way of a copy.
static void dequantize_part(TensorType type, std::span<const std::byte> bytes, uint64_t first,
                            std::span<float> out) {
  const BlockLayout block = block_of(type);
  while (!out.empty()) {
    const size_t skipped = first % block.values;
    const std::byte* from = bytes.data() + first / block.values * block.bytes;
    size_t count = out.size() / block.values * block.values;
    if (skipped == 0 && count > 0) {
      dequantize(type, {from, count / block.values * block.bytes}, out.first(count));
    } else {
      std::array<float, kMaxBlockValues> values;
      dequantize(type, {from, block.bytes}, std::span(values).first(block.values));
      count = std::min(out.size(), block.values - skipped);
      std::copy_n(values.begin() + static_cast<ptrdiff_t>(skipped), count, out.begin());
    }
    first += count, out = out.subspan(count);
  }
}

/// Elements as they lie in memory.
static void read_stored(const TensorView& tensor, uint64_t first, std::span<float> out) {
  if (is_quantized(tensor.type)) return dequantize_part(tensor.type, tensor.bytes, first, out);
  read_plain(tensor.type, tensor.bytes.data() + first * block_of(tensor.type).bytes, 1, out);
}

/// Stored place of a row, for a tensor whose rows are not in order.
static uint64_t stored_row(uint64_t row, const TensorView& tensor) {
  if (tensor.run > 0) return row / tensor.run * tensor.apart + row % tensor.run;
  const uint64_t within = row % tensor.head_rows, half = tensor.head_rows / 2;
  return row - within + within % half * 2 + within / half;
}

template <class T>
static const T* in_place(const TensorView& tensor, TensorType type) {
  const bool aligned = reinterpret_cast<uintptr_t>(tensor.bytes.data()) % alignof(T) == 0;
  return tensor.type == type && tensor.rows_in_order() && aligned
             ? reinterpret_cast<const T*>(tensor.bytes.data())
             : nullptr;
}

void read_floats(const TensorView& tensor, uint64_t first, std::span<float> out) {
  if (checked_add(first, out.size()) > count_of(tensor))
    throw failed("{}: elements {} to {} asked for", tensor.origin, first, first + out.size());
  if (out.empty()) return;  // nothing has no address, and a tensor may have no rows
  if (tensor.rows_in_order()) return read_stored(tensor, first, out);
  const uint64_t width = count_of(tensor) / tensor.shape[0];
  while (!out.empty()) {
    const uint64_t row = first / width, column = first % width;
    const size_t count = std::min<uint64_t>(out.size(), width - column);
    if (tensor.column_step > 0)
      read_plain(tensor.type,
                 tensor.bytes.data() +
                     (row * tensor.row_step + column * tensor.column_step) * block_of(tensor.type).bytes,
                 tensor.column_step, out.first(count));
    else
      read_stored(tensor, stored_row(row, tensor) * width + column, out.first(count));
    first += count, out = out.subspan(count);
  }
}

TensorView rows_of(const TensorView& tensor, const RowRuns& rows) {
  if (tensor.column_step > 0 && rows.count <= rows.run && rows.first + rows.count <= tensor.shape[0]) {
    TensorView view = tensor;
    view.shape[0] = rows.count;
    view.bytes = tensor.bytes.subspan(rows.first * tensor.row_step * block_of(tensor.type).bytes);
    return view;
  }
  const uint64_t row_bytes = tensor.shape.at(0) == 0 ? 0 : tensor.bytes.size() / tensor.shape[0];
  const uint64_t last_run = (rows.count - 1) / rows.run, last = (rows.count - 1) % rows.run;
  const uint64_t end = checked_add(rows.first, checked_add(checked_mul(last_run, rows.apart), last + 1));
  if (!tensor.rows_in_order() || end > tensor.shape[0])
    throw failed("{}: rows up to {} asked for", tensor.origin, end);
  TensorView view = tensor;
  view.shape[0] = rows.count;
  view.bytes = tensor.bytes.subspan(rows.first * row_bytes, (end - rows.first) * row_bytes);
  if (last_run > 0) view.run = rows.run, view.apart = rows.apart;
  return view;
}

TensorView matrix_of(const TensorView& tensor, uint64_t rows, uint64_t columns, const Strides& strides) {
  const uint64_t last =
      checked_add(checked_mul(rows - 1, strides.row_step), checked_mul(columns - 1, strides.column_step));
  const uint64_t end = checked_add(checked_add(strides.first, last), 1);
  if (!tensor.rows_in_order() || is_quantized(tensor.type) || end > count_of(tensor))
    throw failed("{}: a matrix of {} x {} floats is taken from it", tensor.origin, rows, columns);
  const size_t size = block_of(tensor.type).bytes;
  TensorView view = tensor;
  view.shape = {rows, columns};
  view.bytes = tensor.bytes.subspan(strides.first * size, (end - strides.first) * size);
  view.row_step = strides.row_step, view.column_step = strides.column_step;
  return view;
}

TensorView matrix_at(const TensorView& tensor, uint64_t index) {
  if (!tensor.rows_in_order() || tensor.shape.size() != 3 || index >= tensor.shape[0])
    throw failed("{}: matrix {} is taken from it", tensor.origin, index);
  const uint64_t size = tensor.bytes.size() / tensor.shape[0];
  TensorView view = tensor;
  view.shape.erase(view.shape.begin());
  view.bytes = tensor.bytes.subspan(index * size, size);
  return view;
}

std::vector<float> read_floats(const TensorView& tensor) {
  std::vector<float> values(count_of(tensor));
  read_floats(tensor, 0, values);
  return values;
}

const float* floats_in_place(const TensorView& tensor) { return in_place<float>(tensor, TensorType::f32); }

const uint16_t* bf16_in_place(const TensorView& tensor) {
  return in_place<uint16_t>(tensor, TensorType::bf16);
}

}  // namespace kvcodec
