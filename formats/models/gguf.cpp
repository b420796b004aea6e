#include "formats/models/gguf.hpp"

#include <algorithm>
#include <bit>
#include <charconv>

#include "formats/io/byte_cursor.hpp"
#include "formats/io/json_file.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/digest.hpp"

namespace kvcodec {

/// A tensor and where it lies within the data.
struct TensorBytes {
  std::string name;
  uint64_t begin, bytes;
};

namespace {

static_assert(std::endian::native == std::endian::little, "tensors are used as they lie in the file");

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint32_t kMaxDimensions = 4;  // the format's own limit
// The smallest size of an entry: an empty name, a type, and a byte of value, or a dimension and an offset.
constexpr uint64_t kMinKeyBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;

/// Types of values, numbered as in the file, and their bytes; 0: the size varies.
struct ValueType {
  std::string_view name;
  uint64_t bytes;
};
constexpr ValueType kValueTypes[] = {{"u8", 1},  {"i8", 1},  {"u16", 2},  {"i16", 2},    {"u32", 4},
                                     {"i32", 4}, {"f32", 4}, {"bool", 1}, {"string", 0}, {"array", 0},
                                     {"u64", 8}, {"i64", 8}, {"f64", 8}};
constexpr uint8_t kFloat = 6, kBool = 7, kString = 8, kArray = 9, kDouble = 12;

/// The types of tensors, numbered as in the file. Unreadable types have their sizes too: the places of all tensors are checked.
struct TensorTypeName {
  uint32_t number;
  const char* name;
  BlockLayout block;
  std::optional<TensorType> usable;
};
constexpr TensorTypeName readable(uint32_t number, const char* name, TensorType type) {
  return {number, name, block_of(type), type};
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

using Value = Gguf::Value;

std::string type_name(const Value& value) {
  return fmt::format("{}{}", value.is_array ? "array of " : "", kValueTypes[value.type].name);
}

/// Reads a text, which follows its length.
std::string_view read_text(ByteCursor& cursor) { return cursor.text(cursor.number<uint64_t>()); }

/// Throws unless there is room left for `count` entries of min_bytes each.
void expect(const ByteCursor& cursor, uint64_t count, uint64_t min_bytes, const char* what) {
  if (count > cursor.left() / min_bytes)
    throw bad_input("{} {} are announced at byte {}, but {} bytes follow; it is truncated or damaged", count,
                    what, cursor.position(), cursor.left());
}

uint8_t read_value_type(ByteCursor& cursor) {
  const auto number = cursor.number<uint32_t>();
  if (number >= std::size(kValueTypes))
    throw bad_input("its type is {}; known are 0 to {}", number, std::size(kValueTypes) - 1);
  return static_cast<uint8_t>(number);
}

Value read_value(ByteCursor& cursor) {
  Value value{.type = read_value_type(cursor), .count = 1};
  value.is_array = value.type == kArray;
  if (value.is_array) {
    value.type = read_value_type(cursor);
    value.count = cursor.number<uint64_t>();
  }
  if (value.type == kArray) throw bad_input("is an array of arrays, which are not supported");
  if (value.type == kString) {
    expect(cursor, value.count, sizeof(uint64_t), "strings");
    value.strings.reserve(value.count);
    for (uint64_t i = 0; i < value.count; ++i) value.strings.push_back(read_text(cursor));
  } else {
    value.bytes = cursor.take(checked_mul(value.count, kValueTypes[value.type].bytes)).data();
  }
  return value;
}

/// Returns the numbers of tensors and keys.
std::pair<uint64_t, uint64_t> read_head(ByteCursor& cursor) {
  if (cursor.left() < kMagic.size() || cursor.text(kMagic.size()) != kMagic)
    throw bad_input("does not begin with GGUF; a model is a GGUF file or a directory with config.json");
  const auto version = cursor.number<uint32_t>();
  if ((version & 0xffff) == 0 && version != 0)
    throw bad_input("is a big-endian GGUF file; only little-endian ones are supported");
  if (version != 2 && version != 3) throw bad_input("is of GGUF version {}; supported are 2 and 3", version);
  const auto tensors = cursor.number<uint64_t>(), keys = cursor.number<uint64_t>();
  expect(cursor, keys, kMinKeyBytes, "keys");
  expect(cursor, tensors, kMinTensorBytes, "tensors");
  return {tensors, keys};
}

/// Reads a tensor without its bytes, and adds their place to `places` if the type, and so their number, is known.
Gguf::Tensor read_tensor(ByteCursor& cursor, const std::string& name, std::vector<TensorBytes>& places) {
  const auto dimensions = cursor.number<uint32_t>();
  if (dimensions < 1 || dimensions > kMaxDimensions)
    throw bad_input("has {} dimensions; it must have 1 to {}", dimensions, kMaxDimensions);
  Gguf::Tensor tensor;
  for (uint32_t i = 0; i < dimensions; ++i)
    tensor.view.shape.insert(tensor.view.shape.begin(), cursor.number<uint64_t>());
  const uint64_t values = checked_product(tensor.view.shape);
  const auto type = cursor.number<uint32_t>();
  const auto offset = cursor.number<uint64_t>();
  const auto known = std::ranges::find(kTensorTypes, type, &TensorTypeName::number);
  if (known == std::end(kTensorTypes)) {
    tensor.type = fmt::format("number {}", type);
    return tensor;
  }
  tensor.type = known->name;
  tensor.usable = known->usable;
  tensor.view.type = known->usable.value_or(TensorType::f32);
  const auto [block_values, block_bytes] = known->block;
  if (const uint64_t row = tensor.view.shape.back(); row % block_values != 0)
    throw bad_input("rows have {} values; {} stores them by {}", row, tensor.type, block_values);
  places.push_back({name, offset, checked_mul(values / block_values, block_bytes)});
  return tensor;
}

void check_overlaps(std::vector<TensorBytes>& places) {
  std::ranges::sort(places, {}, [](const TensorBytes& place) { return std::pair(place.begin, place.bytes); });
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
T element(const Value& value, uint64_t i) {
  T number;
  std::memcpy(&number, value.bytes + i * sizeof(T), sizeof(T));
  return number;
}

// Elements of a value; std::nullopt: it has another type, or they do not fit.

std::optional<int64_t> as_int(const Value& value, uint64_t i) {
  const auto& [name, size] = kValueTypes[value.type];
  if (name[0] != 'u' && name[0] != 'i') return std::nullopt;
  uint64_t bits = 0;
  std::memcpy(&bits, value.bytes + i * size, size);
  const unsigned unused = 64 - 8 * static_cast<unsigned>(size);
  if (name[0] == 'i') return static_cast<int64_t>(bits << unused) >> unused;
  return std::in_range<int64_t>(bits) ? std::optional(static_cast<int64_t>(bits)) : std::nullopt;
}

std::optional<bool> as_bool(const Value& value, uint64_t i) {
  return value.type == kBool ? std::optional(element<uint8_t>(value, i) != 0) : std::nullopt;
}

std::optional<double> as_number(const Value& value, uint64_t i) {
  if (value.type == kFloat) return as_written(element<float>(value, i));
  if (value.type == kDouble) return element<double>(value, i);
  const auto number = as_int(value, i);
  return number ? std::optional(static_cast<double>(*number)) : std::nullopt;
}

std::optional<std::string> as_string(const Value& value, uint64_t i) {
  return value.type == kString ? std::optional(std::string(value.strings[i])) : std::nullopt;
}

[[noreturn]] void refuse(std::string_view key, const Value& value, const char* wanted) {
  throw bad_input("key '{}': is of type {}; it must be {}", printable(key), type_name(value), wanted);
}

/// The only element of a value that is not an array.
template <class T>
std::optional<T> scalar(std::string_view key, const Value* value, const char* wanted,
                        std::optional<T> (*convert)(const Value&, uint64_t)) {
  if (!value) return std::nullopt;
  auto converted = value->is_array ? std::nullopt : convert(*value, 0);
  if (!converted) refuse(key, *value, wanted);
  return converted;
}

template <class T, class From>
std::optional<std::vector<T>> list(std::string_view key, const Value* value, const char* wanted,
                                   std::optional<From> (*convert)(const Value&, uint64_t)) {
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

std::string part_ending(int64_t part, int64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", part, count);
}

}  // namespace

Gguf::Gguf(const std::string& path) {
  files_.push_back(std::make_unique<MappedFile>(path));
  with_context(path, [&] { parse(); });
}

void Gguf::parse() {
  ByteCursor cursor(files_.front()->bytes());
  const auto [tensors, keys] = read_head(cursor);
  const auto read_name = [&](const char* kind, uint64_t i) {
    return with_context(fmt::format("{} {}", kind, i), [&] { return std::string(read_text(cursor)); });
  };
  for (uint64_t i = 0; i < keys; ++i) {
    const std::string key = read_name("key", i);
    Value value = with_context(fmt::format("key '{}'", printable(key)), [&] { return read_value(cursor); });
    if (!values_.emplace(key, std::move(value)).second)
      throw bad_input("key '{}' is given twice", printable(key));
  }
  std::vector<TensorBytes> places;
  for (uint64_t i = 0; i < tensors; ++i) {
    const std::string key = read_name("tensor", i), origin = fmt::format("tensor '{}'", printable(key));
    Tensor tensor = with_context(origin, [&] { return read_tensor(cursor, key, places); });
    tensor.view.origin = fmt::format("{}: {}", name(), origin);
    if (!tensors_.emplace(key, std::move(tensor)).second) throw bad_input("{} is given twice", origin);
  }
  place_tensors(cursor.position(), places);
}

Gguf Gguf::open(const std::string& path) {
  Gguf file(path);
  file.add_parts();
  return file;
}

/// Opens the other files of a split model, if it is one, and takes their tensors.
void Gguf::add_parts() {
  const int64_t count = get_int("split.count").value_or(1);
  if (count <= 1) return;
  if (const int64_t part = get_int("split.no").value_or(0); part != 0)
    throw bad_input("{}: is part {} of {} of a split model; name the first", name(), part + 1, count);
  const std::string ending = part_ending(1, count);
  if (!name().ends_with(ending))
    throw bad_input("{}: is the first of {} parts of a split model; its name must end in '{}'", name(), count,
                    ending);
  const std::string stem = name().substr(0, name().size() - ending.size());
  for (int64_t number = 1; number < count; ++number) {
    Gguf part(stem + part_ending(number + 1, count));
    with_context(part.name(), [&] {
      const int64_t own = part.get_int("split.no").value_or(-1),
                    own_count = part.get_int("split.count").value_or(1);
      if (own != number || own_count != count)
        throw bad_input("split.no is {} and split.count {}; they must be {} and {}", own, own_count, number,
                        count);
      tensors_.merge(part.tensors_);
      if (!part.tensors_.empty())
        throw bad_input("tensor '{}' is in an earlier part too", printable(part.tensors_.begin()->first));
      files_.push_back(std::move(part.files_.front()));
    });
  }
  const auto all = static_cast<int64_t>(tensors_.size());
  if (const int64_t announced = get_int("split.tensors.count").value_or(all); announced != all)
    throw bad_input("{}: split.tensors.count is {}; the {} parts have {}", name(), announced, count, all);
}

void Gguf::place_tensors(uint64_t end_of_list, std::vector<TensorBytes>& places) {
  uint64_t step = kDefaultAlignment;
  if (const Value* value = find("general.alignment")) {
    const auto number = value->is_array ? std::nullopt : as_int(*value, 0);
    if (!number || *number < 1 || !std::has_single_bit(static_cast<uint64_t>(*number)))
      throw bad_input("general.alignment is {}; it must be a power of two",
                      number ? std::to_string(*number) : type_name(*value));
    step = static_cast<uint64_t>(*number);
  }
  const uint64_t start = checked_add(end_of_list, step - 1) / step * step;
  const std::span<const std::byte> bytes = files_.front()->bytes();
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
      tensors_.find(place.name)->second.view.bytes = bytes.subspan(start + place.begin, place.bytes);
  }
  check_overlaps(places);
}

void Gguf::refuse_missing(std::string_view key) { throw bad_input("key '{}' is missing", printable(key)); }

std::string Gguf::digest() const {
  Digest digest;
  for (const auto& file : files_) {
    digest.add(uint64_t{file->bytes().size()});
    digest.add(file->bytes());
  }
  return digest.hex();
}

std::string Gguf::readable_types() {
  std::vector<std::string_view> names;
  for (const TensorTypeName& known : kTensorTypes)
    if (known.usable) names.emplace_back(known.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::optional<bool> Gguf::get_bool(std::string_view key) const {
  return scalar(key, find(key), "bool", as_bool);
}
std::optional<int64_t> Gguf::get_int(std::string_view key) const {
  return scalar(key, find(key), "an integer", as_int);
}
std::optional<double> Gguf::get_number(std::string_view key) const {
  return scalar(key, find(key), "a number", as_number);
}
std::optional<std::string> Gguf::get_string(std::string_view key) const {
  return scalar(key, find(key), "string", as_string);
}

const std::vector<std::string_view>& Gguf::need_strings(std::string_view key) const {
  const Value* value = find(key);
  if (!value) refuse_missing(key);
  if (!value->is_array || value->type != kString) refuse(key, *value, "array of string");
  return value->strings;
}

std::optional<std::vector<int64_t>> Gguf::get_ints(std::string_view key) const {
  return list<int64_t>(key, find(key), "array of integers", as_int);
}
std::optional<std::vector<bool>> Gguf::get_flags(std::string_view key) const {
  return list<bool>(key, find(key), "array of bool", as_bool);
}
std::optional<std::vector<float>> Gguf::get_floats(std::string_view key) const {
  return list<float>(key, find(key), "array of numbers", as_number);
}

}  // namespace kvcodec
