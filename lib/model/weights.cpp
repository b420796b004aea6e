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
    throw bad_input("{}: shape is [{}]; config.json makes it [{}]", tensor->origin,
                    fmt::join(tensor->shape, ", "), fmt::join(shape, ", "));
  return *tensor;
}

void read_floats(const TensorView& tensor, uint64_t first, std::span<float> out) {
  const size_t size = size_of(tensor.type);
  if (checked_mul(checked_add(first, out.size()), size) > tensor.bytes.size())
    throw failed("{}: elements {} to {} asked for", tensor.origin, first, first + out.size());
  if (out.empty()) return;  // nothing has no address
  const std::byte* from = tensor.bytes.data() + first * size;
  if (tensor.type == DType::f32) {
    std::memcpy(out.data(), from, out.size_bytes());
    return;
  }
  if (reinterpret_cast<uintptr_t>(from) % alignof(uint16_t) == 0) {
    widen(tensor.type, {reinterpret_cast<const uint16_t*>(from), out.size()}, out);
    return;
  }
  std::array<uint16_t, 512> halves;  // an odd address: by way of an aligned copy
  for (size_t i = 0; i < out.size(); i += halves.size()) {
    const size_t count = std::min(halves.size(), out.size() - i);
    std::memcpy(halves.data(), from + i * size, count * size);
    widen(tensor.type, std::span(halves).first(count), out.subspan(i, count));
  }
}

std::vector<float> read_floats(const TensorView& tensor) {
  std::vector<float> values(tensor.bytes.size() / size_of(tensor.type));
  read_floats(tensor, 0, values);
  return values;
}

const float* floats_in_place(const TensorView& tensor) {
  const bool aligned = reinterpret_cast<uintptr_t>(tensor.bytes.data()) % alignof(float) == 0;
  return tensor.type == DType::f32 && aligned ? reinterpret_cast<const float*>(tensor.bytes.data()) : nullptr;
}

void WeightsInMemory::add(const std::string& name, DType type, std::vector<uint64_t> shape,
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
  entry.view = {type, std::move(shape), entry.bytes, fmt::format("tensor '{}' in memory", name)};
}

void WeightsInMemory::remove(const std::string& name) { entries_.erase(name); }

const TensorView* WeightsInMemory::find(std::string_view name) const {
  const auto place = entries_.find(name);
  return place == entries_.end() ? nullptr : &place->second.view;
}

}  // namespace kvcodec
