#include "formats/models/gguf.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <utility>

#include "formats/io/byte_cursor.hpp"
#include "formats/io/json_file.hpp"
#include "formats/io/mapped_file.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/digest.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are used as they lie in the file");

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint32_t kMostDimensions = 4;  // the format's own limit
// The least that an entry takes: an empty name, a type, and a byte of value, or a dimension and an offset.
constexpr uint64_t kLeastKeyBytes = 8 + 4 + 1;
constexpr uint64_t kLeastTensorBytes = 8 + 4 + 8 + 4 + 8;

/// Types of values, numbered as in the file.
enum class ValueType : uint8_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64,
};
constexpr auto names_of(ValueType) {
  return std::to_array<std::string_view>(
      {"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"});
}
constexpr uint32_t kValueTypes = kNamesOf<ValueType>.size();

/// Bytes of a value; 0: they differ.
constexpr uint64_t size_of(ValueType type) {
  constexpr uint64_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kSizes[static_cast<size_t>(type)];
}

/// The types of tensors, numbered as in the file. Sizes of all are known, so that the places of all can be
/// checked.
struct TensorTypeName {
  uint32_t number;
  const char* name;
  BlockLayout block;
  std::optional<TensorType> usable;
};
constexpr BlockLayout layout(TensorType type) { return block_of(type); }
constexpr TensorTypeName readable(uint32_t number, const char* name, TensorType type) {
  return {number, name, layout(type), type};
}
constexpr TensorTypeName kTensorTypes[] = {
    readable(0, "F32", TensorType::f32),
    readable(1, "F16", TensorType::f16),
    readable(2, "Q4_0", TensorType::q4_0),
    readable(3, "Q4_1", TensorType::q4_1),
    readable(6, "Q5_0", TensorType::q5_0),
    readable(7, "Q5_1", TensorType::q5_1),
    readable(8, "Q8_0", TensorType::q8_0),
    {9, "Q8_1", {32, 40}, {}},
    readable(10, "Q2_K", TensorType::q2_k),
    readable(11, "Q3_K", TensorType::q3_k),
    readable(12, "Q4_K", TensorType::q4_k),
    readable(13, "Q5_K", TensorType::q5_k),
    readable(14, "Q6_K", TensorType::q6_k),
    {15, "Q8_K", {256, 292}, {}},
    {16, "IQ2_XXS", {256, 66}, {}},
    {17, "IQ2_XS", {256, 74}, {}},
    {18, "IQ3_XXS", {256, 98}, {}},
    {19, "IQ1_S", {256, 50}, {}},
    readable(20, "IQ4_NL", TensorType::iq4_nl),
    {21, "IQ3_S", {256, 110}, {}},
    {22, "IQ2_S", {256, 82}, {}},
    readable(23, "IQ4_XS", TensorType::iq4_xs),
    {24, "I8", {1, 1}, {}},
    {25, "I16", {1, 2}, {}},
    {26, "I32", {1, 4}, {}},
    {27, "I64", {1, 8}, {}},
    {28, "F64", {1, 8}, {}},
    {29, "IQ1_M", {256, 56}, {}},
    readable(30, "BF16", TensorType::bf16),
    {34, "TQ1_0", {256, 54}, {}},
    {35, "TQ2_0", {256, 66}, {}},
    readable(39, "MXFP4", TensorType::mxfp4),
};

/// A value as it lies in the file; what is no array has one element.
struct Value {
  ValueType type = ValueType::u8;  ///< of the elements
  bool is_array = false;
  uint64_t count = 0;
  const std::byte* bytes = nullptr;       ///< of elements that are no strings
  std::vector<std::string_view> strings;  ///< otherwise

  template <class T>
  T element(uint64_t index) const {
    T value;
    std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
    return value;
  }
  std::string type_name() const {
    return is_array ? fmt::format("array of {}", name_of(type)) : std::string(name_of(type));
  }
};
using Values = std::map<std::string, Value, std::less<>>;

/// A text with its length before it.
std::string_view read_text(ByteCursor& cursor) { return cursor.text(cursor.number<uint64_t>()); }

/// So many entries of at least so many bytes each must be left.
void expect(const ByteCursor& cursor, uint64_t count, uint64_t least_bytes, const char* what) {
  if (count > cursor.left() / least_bytes)
    throw bad_input("{} {} are announced at byte {}, but {} bytes follow; it is truncated or damaged", count,
                    what, cursor.position(), cursor.left());
}

ValueType read_value_type(ByteCursor& cursor) {
  const auto number = cursor.number<uint32_t>();
  if (number >= kValueTypes) throw bad_input("its type is {}; known are 0 to {}", number, kValueTypes - 1);
  return static_cast<ValueType>(number);
}

Value read_value(ByteCursor& cursor) {
  Value value;
  value.type = read_value_type(cursor);
  value.is_array = value.type == ValueType::array;
  value.count = 1;
  if (value.is_array) {
    value.type = read_value_type(cursor);
    value.count = cursor.number<uint64_t>();
  }
  if (value.type == ValueType::array) throw bad_input("is an array of arrays, which are not supported");
  if (value.type == ValueType::string) {
    expect(cursor, value.count, sizeof(uint64_t), "strings");
    value.strings.reserve(value.count);
    for (uint64_t i = 0; i < value.count; ++i) value.strings.push_back(read_text(cursor));
  } else {
    value.bytes = cursor.take(checked_mul(value.count, size_of(value.type))).data();
  }
  return value;
}

/// Numbers of tensors and keys.
struct Counts {
  uint64_t tensors, keys;
};

Counts read_head(ByteCursor& cursor) {
  if (cursor.left() < kMagic.size() || cursor.text(kMagic.size()) != kMagic)
    throw bad_input("does not begin with GGUF; a model is a GGUF file or a directory with config.json");
  const auto version = cursor.number<uint32_t>();
  if ((version & 0xffff) == 0 && version != 0)
    throw bad_input("is a big-endian GGUF file; only little-endian ones are supported");
  if (version != 2 && version != 3) throw bad_input("is of GGUF version {}; supported are 2 and 3", version);
  Counts counts{};
  counts.tensors = cursor.number<uint64_t>();
  counts.keys = cursor.number<uint64_t>();
  expect(cursor, counts.keys, kLeastKeyBytes, "keys");
  expect(cursor, counts.tensors, kLeastTensorBytes, "tensors");
  return counts;
}

/// A tensor and where it lies within the data.
struct TensorBytes {
  std::string name;
  uint64_t begin, bytes;
};

/// Bytes of a tensor with that shape; first_dimension: values of a row.
uint64_t bytes_of(BlockLayout block, uint64_t first_dimension, uint64_t values, const std::string& type) {
  if (first_dimension % block.values != 0)
    throw bad_input("rows have {} values; {} stores them by {}", first_dimension, type, block.values);
  return checked_mul(values / block.values, block.bytes);
}

std::string type_name_of(uint32_t number) {
  for (const TensorTypeName& known : kTensorTypes)
    if (known.number == number) return known.name;
  return fmt::format("number {}", number);
}

/// Everything but where the bytes are; adds to places if that is known.
Gguf::Tensor read_tensor(ByteCursor& cursor, const std::string& name, std::vector<TensorBytes>& places) {
  const auto dimensions = cursor.number<uint32_t>();
  if (dimensions < 1 || dimensions > kMostDimensions)
    throw bad_input("has {} dimensions; it must have 1 to {}", dimensions, kMostDimensions);
  Gguf::Tensor tensor;
  for (uint32_t i = 0; i < dimensions; ++i)
    tensor.view.shape.insert(tensor.view.shape.begin(), cursor.number<uint64_t>());
  const uint64_t values = checked_product(tensor.view.shape);
  const auto type = cursor.number<uint32_t>();
  const auto offset = cursor.number<uint64_t>();
  tensor.type = type_name_of(type);
  for (const TensorTypeName& known : kTensorTypes)
    if (known.number == type) {
      tensor.usable = known.usable;
      tensor.view.type = known.usable.value_or(TensorType::f32);
      places.push_back({name, offset, bytes_of(known.block, tensor.view.shape.back(), values, tensor.type)});
    }
  return tensor;
}

void check_overlaps(std::vector<TensorBytes>& places) {
  std::sort(places.begin(), places.end(), [](const TensorBytes& a, const TensorBytes& b) {
    return std::pair(a.begin, a.bytes) < std::pair(b.begin, b.bytes);
  });
  for (size_t i = 1; i < places.size(); ++i) {
    const TensorBytes &before = places[i - 1], &place = places[i];
    if (place.begin < before.begin + before.bytes)
      throw bad_input(
          "tensor '{}': begins at byte {} of the data, inside the tensor before it, which ends at {}",
          printable(place.name), place.begin, before.begin + before.bytes);
  }
}

/// The shortest decimal number that rounds to this float.
double as_written(float value) {
  char text[64];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  double number = value;
  if (error == std::errc{}) std::from_chars(text, end, number);
  return number;
}

template <class T>
std::optional<int64_t> integer(const Value& value, uint64_t i) {
  const T number = value.element<T>(i);
  return std::in_range<int64_t>(number) ? std::optional(static_cast<int64_t>(number)) : std::nullopt;
}

std::optional<int64_t> as_int(const Value& value, uint64_t i) {
  constexpr std::optional<int64_t> (*kReaders[])(const Value&, uint64_t) = {
      integer<uint8_t>, integer<int8_t>,   integer<uint16_t>,
      integer<int16_t>, integer<uint32_t>, integer<int32_t>,
      nullptr,          nullptr,           nullptr,
      nullptr,          integer<uint64_t>, integer<int64_t>,
      nullptr};
  const auto reader = kReaders[static_cast<size_t>(value.type)];
  return reader ? reader(value, i) : std::nullopt;
}

std::optional<bool> as_bool(const Value& value, uint64_t i) {
  return value.type == ValueType::boolean ? std::optional(value.element<uint8_t>(i) != 0) : std::nullopt;
}

std::optional<double> as_number(const Value& value, uint64_t i) {
  if (value.type == ValueType::f32) return as_written(value.element<float>(i));
  if (value.type == ValueType::f64) return value.element<double>(i);
  const auto number = as_int(value, i);
  return number ? std::optional(static_cast<double>(*number)) : std::nullopt;
}

}  // namespace

struct Gguf::Impl {
  MappedFile file;
  Values values;
  Tensors tensors;
  std::vector<std::unique_ptr<Impl>>
      further;  ///< of a model split over several files: those behind the first

  explicit Impl(const std::string& path) : file(path) {
    with_context(path, [&] { parse(); });
  }

  void parse() {
    ByteCursor cursor(file.bytes());
    const Counts counts = read_head(cursor);
    for (uint64_t i = 0; i < counts.keys; ++i) {
      const std::string key =
          with_context(fmt::format("key {}", i), [&] { return std::string(read_text(cursor)); });
      Value value = with_context(fmt::format("key '{}'", printable(key)), [&] { return read_value(cursor); });
      if (!values.emplace(key, std::move(value)).second)
        throw bad_input("key '{}' is given twice", printable(key));
    }
    std::vector<TensorBytes> places;
    for (uint64_t i = 0; i < counts.tensors; ++i) {
      const std::string key =
          with_context(fmt::format("tensor {}", i), [&] { return std::string(read_text(cursor)); });
      Tensor tensor = with_context(fmt::format("tensor '{}'", printable(key)),
                                   [&] { return read_tensor(cursor, key, places); });
      tensor.view.origin = fmt::format("{}: tensor '{}'", file.name(), printable(key));
      if (!tensors.emplace(key, std::move(tensor)).second)
        throw bad_input("tensor '{}' is given twice", printable(key));
    }
    place_tensors(cursor.position(), places);
  }

  /// Opens the other files of a split model, if it is one, and takes their tensors.
  void add_parts() {
    const int64_t count = number_or("split.count", 1);
    if (count <= 1) return;
    const std::string& name = file.name();
    if (const int64_t part = number_or("split.no", 0); part != 0)
      throw bad_input("{}: is part {} of {} of a split model; name the first", name, part + 1, count);
    const std::string ending = part_ending(1, count);
    if (!name.ends_with(ending))
      throw bad_input("{}: is the first of {} parts of a split model; its name must end in '{}'", name, count,
                      ending);
    const std::string stem = name.substr(0, name.size() - ending.size());
    for (int64_t part = 1; part < count; ++part) {
      further.push_back(std::make_unique<Impl>(stem + part_ending(part + 1, count)));
      with_context(further.back()->file.name(), [&] { take_tensors(*further.back(), part, count); });
    }
    const auto all = static_cast<int64_t>(tensors.size());
    if (const int64_t said = number_or("split.tensors.count", all); said != all)
      throw bad_input("{}: split.tensors.count is {}; the {} parts have {}", name, said, count, all);
  }

  static std::string part_ending(int64_t part, int64_t count) {
    return fmt::format("-{:05}-of-{:05}.gguf", part, count);
  }

  void take_tensors(Impl& part, int64_t number, int64_t count) {
    if (part.number_or("split.no", -1) != number || part.number_or("split.count", 1) != count)
      throw bad_input("split.no is {} and split.count {}; they must be {} and {}",
                      part.number_or("split.no", -1), part.number_or("split.count", 1), number, count);
    for (auto& [name, tensor] : part.tensors)
      if (!tensors.emplace(name, std::move(tensor)).second)
        throw bad_input("tensor '{}' is in an earlier part too", printable(name));
    part.tensors.clear();
  }

  int64_t number_or(std::string_view key, int64_t otherwise) const {
    return scalar(key, "an integer", as_int).value_or(otherwise);
  }

  uint64_t alignment() const {
    const Value* value = find("general.alignment");
    if (!value) return kDefaultAlignment;
    const auto number = value->is_array ? std::nullopt : as_int(*value, 0);
    if (!number || *number < 1 || !std::has_single_bit(static_cast<uint64_t>(*number)))
      throw bad_input("general.alignment is {}; it must be a power of two",
                      number ? std::to_string(*number) : value->type_name());
    return static_cast<uint64_t>(*number);
  }

  void place_tensors(uint64_t end_of_list, std::vector<TensorBytes>& places) {
    const uint64_t step = alignment();
    const uint64_t start = checked_add(end_of_list, step - 1) / step * step;
    const std::span<const std::byte> bytes = file.bytes();
    const uint64_t data = start < bytes.size() ? bytes.size() - start : 0;
    for (const TensorBytes& place : places) {
      if (place.begin % step != 0)
        throw bad_input("tensor '{}': begins at byte {} of the data, which is not a multiple of {}",
                        printable(place.name), place.begin, step);
      if (place.begin > data || place.bytes > data - place.begin)
        throw bad_input(
            "tensor '{}': its {} bytes begin at byte {} of the data, but the file has {} bytes of data; is it "
            "truncated?",
            printable(place.name), place.bytes, place.begin, data);
      if (place.bytes > 0)
        tensors.find(place.name)->second.view.bytes = bytes.subspan(start + place.begin, place.bytes);
    }
    check_overlaps(places);
  }

  const Value* find(std::string_view key) const {
    const auto place = values.find(key);
    return place == values.end() ? nullptr : &place->second;
  }

  [[noreturn]] static void refuse(std::string_view key, const Value& value, const char* wanted) {
    throw bad_input("key '{}': is of type {}; it must be {}", printable(key), value.type_name(), wanted);
  }

  /// convert(value, 0) of a key that is no array; none: there is none.
  template <class Convert>
  auto scalar(std::string_view key, const char* wanted, Convert&& convert) const
      -> decltype(convert(Value(), 0)) {
    const Value* value = find(key);
    if (!value) return std::nullopt;
    auto converted = value->is_array ? std::nullopt : convert(*value, 0);
    if (!converted) refuse(key, *value, wanted);
    return converted;
  }

  template <class T, class Convert>
  std::optional<std::vector<T>> list(std::string_view key, const char* wanted, Convert&& convert) const {
    const Value* value = find(key);
    if (!value) return std::nullopt;
    if (!value->is_array) refuse(key, *value, wanted);
    std::vector<T> numbers;
    numbers.reserve(value->count);
    for (uint64_t i = 0; i < value->count; ++i) {
      const auto converted = convert(*value, i);
      if (!converted) refuse(key, *value, wanted);
      numbers.push_back(static_cast<T>(*converted));
    }
    return numbers;
  }

  template <class T>
  static T need(std::string_view key, const std::optional<T>& value) {
    if (!value) throw bad_input("key '{}' is missing", printable(key));
    return *value;
  }
};

Gguf::Gguf(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Gguf::~Gguf() = default;
Gguf::Gguf(Gguf&&) noexcept = default;
Gguf& Gguf::operator=(Gguf&&) noexcept = default;

Gguf Gguf::open(const std::string& file) {
  auto impl = std::make_unique<Impl>(file);
  impl->add_parts();
  return Gguf(std::move(impl));
}

const std::string& Gguf::name() const { return impl_->file.name(); }
const Gguf::Tensors& Gguf::tensors() const { return impl_->tensors; }

uint64_t Gguf::file_bytes() const {
  uint64_t bytes = impl_->file.bytes().size();
  for (const auto& part : impl_->further) bytes += part->file.bytes().size();
  return bytes;
}

std::string Gguf::digest() const {
  Digest digest;
  const auto add = [&](const MappedFile& file) {
    digest.add(uint64_t{file.bytes().size()});
    digest.add(file.bytes());
  };
  add(impl_->file);
  for (const auto& part : impl_->further) add(part->file);
  return digest.hex();
}

std::string Gguf::readable_types() {
  std::string names;
  for (const TensorTypeName& known : kTensorTypes)
    if (known.usable) names += (names.empty() ? "" : ", ") + std::string(known.name);
  return names;
}

bool Gguf::has(std::string_view key) const { return impl_->find(key) != nullptr; }

std::optional<bool> Gguf::get_bool(std::string_view key) const { return impl_->scalar(key, "bool", as_bool); }

std::optional<int64_t> Gguf::get_int(std::string_view key) const {
  return impl_->scalar(key, "an integer", as_int);
}

std::optional<double> Gguf::get_number(std::string_view key) const {
  return impl_->scalar(key, "a number", as_number);
}

std::optional<std::string> Gguf::get_string(std::string_view key) const {
  return impl_->scalar(key, "string", [](const Value& value, uint64_t i) {
    return value.type == ValueType::string ? std::optional(std::string(value.strings[i])) : std::nullopt;
  });
}

int64_t Gguf::need_int(std::string_view key) const { return impl_->need(key, get_int(key)); }
double Gguf::need_number(std::string_view key) const { return impl_->need(key, get_number(key)); }
std::string Gguf::need_string(std::string_view key) const { return impl_->need(key, get_string(key)); }

bool Gguf::is_array(std::string_view key) const {
  const Value* value = impl_->find(key);
  return value && value->is_array;
}

const std::vector<std::string_view>* Gguf::get_strings(std::string_view key) const {
  const Value* value = impl_->find(key);
  if (!value) return nullptr;
  if (!value->is_array || value->type != ValueType::string) impl_->refuse(key, *value, "array of string");
  return &value->strings;
}

const std::vector<std::string_view>& Gguf::need_strings(std::string_view key) const {
  const auto* strings = get_strings(key);
  if (!strings) throw bad_input("key '{}' is missing", printable(key));
  return *strings;
}

std::optional<std::vector<int64_t>> Gguf::get_ints(std::string_view key) const {
  return impl_->list<int64_t>(key, "array of integers", as_int);
}

std::optional<std::vector<bool>> Gguf::get_flags(std::string_view key) const {
  return impl_->list<bool>(key, "array of bool", as_bool);
}

std::optional<std::vector<float>> Gguf::get_floats(std::string_view key) const {
  return impl_->list<float>(key, "array of numbers", as_number);
}

}  // namespace kvcodec
