// Writes GGUF files for tests, valid ones and forged ones.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcodec::test {

/// Numbers of value types in the file.
enum class GgufValue : uint32_t { u32 = 4, i32 = 5, f32 = 6, boolean = 7, string = 8, array = 9, u64 = 10 };

/// A file in parts; bytes() puts them together.
class GgufWriter {
 public:
  template <class T>
  static std::string number(T value) {
    std::string bytes(sizeof(T), '\0');
    std::memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
  }
  static std::string text(std::string_view value) {
    return number(uint64_t{value.size()}) + std::string(value);
  }
  static std::string value_type(GgufValue type) { return number(static_cast<uint32_t>(type)); }

  std::string magic = "GGUF";
  uint32_t version = 3;
  int64_t more_keys = 0, more_tensors = 0;  ///< announced beyond those that are there
  size_t alignment = 32;
  std::string data;

  /// A key with the bytes of its type and value.
  GgufWriter& key(std::string_view name, const std::string& rest) {
    keys_.push_back(text(name) + rest);
    return *this;
  }
  GgufWriter& set(std::string_view name, uint32_t value) {
    return key(name, value_type(GgufValue::u32) + number(value));
  }
  /// Replaces an existing key.
  template <class Value>
  GgufWriter& replace(std::string_view name, const Value& value) {
    std::erase_if(keys_, [&](const std::string& entry) { return entry.starts_with(text(name)); });
    return set(name, value);
  }
  GgufWriter& set(std::string_view name, float value) {
    return key(name, value_type(GgufValue::f32) + number(value));
  }
  GgufWriter& set_bool(std::string_view name, bool value) {
    return key(name, value_type(GgufValue::boolean) + number(static_cast<uint8_t>(value)));
  }
  GgufWriter& set(std::string_view name, std::string_view value) {
    return key(name, value_type(GgufValue::string) + text(value));
  }
  GgufWriter& set(std::string_view name, const std::vector<std::string>& values) {
    std::string bytes;
    for (const std::string& value : values) bytes += text(value);
    return array(name, GgufValue::string, values.size(), bytes);
  }
  GgufWriter& set(std::string_view name, const std::vector<int32_t>& values) {
    std::string bytes;
    for (const int32_t value : values) bytes += number(value);
    return array(name, GgufValue::i32, values.size(), bytes);
  }
  GgufWriter& set(std::string_view name, const std::vector<float>& values) {
    std::string bytes;
    for (const float value : values) bytes += number(value);
    return array(name, GgufValue::f32, values.size(), bytes);
  }
  GgufWriter& array(std::string_view name, GgufValue type, uint64_t count, const std::string& bytes) {
    return key(name, value_type(GgufValue::array) + value_type(type) + number(count) + bytes);
  }

  /// A tensor as the list has it; dimensions fastest first.
  GgufWriter& describe(std::string_view name, const std::vector<uint64_t>& dimensions, uint32_t type,
                       uint64_t offset) {
    std::string bytes = text(name) + number(static_cast<uint32_t>(dimensions.size()));
    for (const uint64_t dimension : dimensions) bytes += number(dimension);
    tensors_.push_back(bytes + number(type) + number(offset));
    return *this;
  }
  /// A tensor with its data, after the existing ones.
  GgufWriter& add(std::string_view name, const std::vector<uint64_t>& dimensions, uint32_t type,
                  const std::string& bytes) {
    data.resize((data.size() + alignment - 1) / alignment * alignment);
    describe(name, dimensions, type, data.size());
    data += bytes;
    return *this;
  }
  GgufWriter& add(std::string_view name, const std::vector<uint64_t>& dimensions,
                  const std::vector<float>& values) {
    std::string bytes;
    for (const float value : values) bytes += number(value);
    return add(name, dimensions, 0, bytes);
  }

  std::string bytes() const {
    std::string out = magic + number(version);
    out += number(static_cast<uint64_t>(static_cast<int64_t>(tensors_.size()) + more_tensors));
    out += number(static_cast<uint64_t>(static_cast<int64_t>(keys_.size()) + more_keys));
    for (const std::string& entry : keys_) out += entry;
    for (const std::string& entry : tensors_) out += entry;
    out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data;
  }

 private:
  std::vector<std::string> keys_, tensors_;
};

}  // namespace kvcodec::test
