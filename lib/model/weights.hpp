// The source of weights for the forward pass: named tensors in memory that another object owns (a mapped
// file, a test's vectors).
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/model/tensor_type.hpp"

namespace kvcodec {

/// A tensor in memory that another object owns: row-major, little-endian, at any address. Quantized types:
/// a row is whole blocks.
struct TensorView {
  TensorType type = TensorType::f32;
  std::vector<uint64_t> shape;
  std::span<const std::byte> bytes;  ///< as many as the shape takes in the type; more with `apart` or steps
  std::string origin;                ///< for messages: "file: tensor 'name'"
  /// 0: rows lie in their order. Otherwise they come in heads of this many rows, an even number that divides
  /// their count, and the two halves of a head alternate in memory: rows 0, n/2, 1, n/2 + 1 … of n. llama.cpp
  /// stores query and key projections so for models in which it rotates neighbouring channels, not halves.
  uint64_t head_rows = 0;
  /// 0: rows lie one behind the other. Otherwise in runs of `run`, which begin `apart` rows of `bytes` from each
  /// other: the rows of one part of a tensor that holds several, head by head.
  uint64_t run = 0, apart = 0;

  /// 0: the columns of a row lie one behind the other. Otherwise they are this many elements apart, and rows `row_step`:
  /// a part of a tensor that is stored transposed. For float types only.
  uint64_t column_step = 0, row_step = 0;

  bool rows_in_order() const { return head_rows == 0 && run == 0 && column_step == 0; }
};

/// Some rows of a tensor: `count` rows, in runs of `run` that begin at row `first` and then every `apart` rows.
/// The tensor has these rows, in their order, or stored transposed, where it is one run.
struct RowRuns {
  uint64_t first = 0, count = 0, run = 0, apart = 0;
};
TensorView rows_of(const TensorView& tensor, const RowRuns& rows);

/// A matrix in a tensor of floats whose element (row, column) is the tensor's element first + row * row_step + column *
/// column_step, in the order of memory. The tensor has all of them.
struct Strides {
  uint64_t first = 0, row_step = 0, column_step = 0;
};
TensorView matrix_of(const TensorView& tensor, uint64_t rows, uint64_t columns, const Strides& strides);

/// Matrix `index`, below count, of a tensor of shape (count, rows, columns).
TensorView matrix_at(const TensorView& tensor, uint64_t index);

using TensorSet = std::set<std::string, std::less<>>;

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  /// The tensor of that name; its bytes live as long as the source. nullptr if there is none.
  /// Throws Error(bad_input) if there is one that cannot be used (an element type that is not a TensorType).
  virtual const TensorView* find(std::string_view name) const = 0;

  /// For messages: the file or folder of the tensors.
  virtual std::string name() const = 0;

  /// Called when a model has found all its tensors, by these names. Throws Error(bad_input) if there are other
  /// tensors that make this another model.
  virtual void refuse_others(const TensorSet& found) const { static_cast<void>(found); }
};

/// The tensor of that name and shape. Throws Error(bad_input) naming the missing tensor, or what is there
/// and what would be right.
const TensorView& get_tensor(const WeightSource& source, std::string_view name,
                             const std::vector<uint64_t>& shape);

/// Elements [first, first + out.size()) of a tensor, widened to float or dequantized. The tensor has all of them.
void read_floats(const TensorView& tensor, uint64_t first, std::span<float> out);

/// All of a tensor, as floats.
std::vector<float> read_floats(const TensorView& tensor);

/// The elements where they lie, if they are floats in their order at a suitable address; nullptr otherwise.
const float* floats_in_place(const TensorView& tensor);

/// The same for bf16.
const uint16_t* bf16_in_place(const TensorView& tensor);

}  // namespace kvcodec
