// Weights of test models.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "lib/core/checked.hpp"
#include "lib/core/half.hpp"
#include "lib/model/weights.hpp"

namespace kvcodec {

/// Tensors in memory.
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

inline void WeightsInMemory::add(const std::string& name, DType type, std::vector<uint64_t> shape,
                                 std::span<const float> values) {
  if (checked_product(shape) != values.size())
    throw failed("tensor '{}': {} values for shape [{}]", name, values.size(), fmt::join(shape, ", "));
  Entry& entry = entries_[name];
  entry.bytes.resize(values.size() * size_of(type));
  if (type == DType::f32) {
    std::ranges::copy(std::as_bytes(values), entry.bytes.begin());
  } else {
    std::vector<uint16_t> halves(values.size());
    narrow(type, values, halves);
    std::memcpy(entry.bytes.data(), halves.data(), entry.bytes.size());
  }
  entry.view = {value_named<TensorType>(name_of(type)).value(), std::move(shape), entry.bytes,
                fmt::format("tensor '{}' in memory", name)};
}

inline void WeightsInMemory::remove(const std::string& name) { entries_.erase(name); }

inline const TensorView* WeightsInMemory::find(std::string_view name) const {
  const auto place = entries_.find(name);
  return place == entries_.end() ? nullptr : &place->second.view;
}

}  // namespace kvcodec
