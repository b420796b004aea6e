// Where the forward pass gets its weights: named tensors that somebody else holds (a mapped file, a test's
// vectors).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

/// A tensor in somebody else's memory: row-major, little-endian, at any address.
struct TensorView {
  DType type = DType::f32;  ///< f32, f16 or bf16
  std::vector<uint64_t> shape;
  std::span<const std::byte> bytes;  ///< exactly the product of the shape times the element size
  std::string origin;                ///< for messages: "file: tensor 'name'"
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  /// The tensor of that name; its bytes live as long as the source. nullptr if there is none.
  /// Throws Error(bad_input) if there is one that cannot be used (an element type other than f32, f16, bf16).
  virtual const TensorView* find(std::string_view name) const = 0;

  /// For messages: the file or folder the tensors come from.
  virtual std::string name() const = 0;
};

/// The tensor of that name and shape. Throws Error(bad_input) naming what is missing, or what is there and
/// what would be right.
const TensorView& get_tensor(const WeightSource& source, std::string_view name,
                             const std::vector<uint64_t>& shape);

/// Elements [first, first + out.size()) of a tensor, widened to float. They must be there.
void read_floats(const TensorView& tensor, uint64_t first, std::span<float> out);

/// All of a tensor, widened to float.
std::vector<float> read_floats(const TensorView& tensor);

/// The elements where they lie, if they are floats at a suitable address; nullptr otherwise.
const float* floats_in_place(const TensorView& tensor);

/// Tensors in memory, for programs that make weights instead of loading them.
class WeightsInMemory final : public WeightSource {
 public:
  /// Adds or replaces a tensor of floats, stored rounded to `type` (f32, f16 or bf16). values.size() must fit
  /// the shape.
  void add(const std::string& name, DType type, std::vector<uint64_t> shape, std::span<const float> values);
  void remove(const std::string& name);

  const TensorView* find(std::string_view name) const override;
  std::string name() const override { return "weights in memory"; }

 private:
  struct Entry {
    std::vector<std::byte> bytes;
    TensorView view;
  };
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace kvcodec
