#include "formats/models/safetensors.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>

#include "formats/io/descriptor.hpp"
#include "formats/io/json_file.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/digest.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are used as they lie in the file");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit
constexpr uint64_t kMaxIndex = 100'000'000;
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

struct DTypeName {
  const char* name;
  uint64_t bytes;
  std::optional<TensorType> usable;
};
constexpr DTypeName kDTypes[] = {
    {"F32", 4, TensorType::f32},  {"F16", 2, TensorType::f16},  {"BF16", 2, TensorType::bf16},
    {"F64", 8, std::nullopt},     {"I64", 8, std::nullopt},     {"U64", 8, std::nullopt},
    {"I32", 4, std::nullopt},     {"U32", 4, std::nullopt},     {"I16", 2, std::nullopt},
    {"U16", 2, std::nullopt},     {"I8", 1, std::nullopt},      {"U8", 1, std::nullopt},
    {"BOOL", 1, std::nullopt},    {"F8_E4M3", 1, std::nullopt}, {"F8_E5M2", 1, std::nullopt},
    {"F8_E8M0", 1, std::nullopt}, {"C64", 8, std::nullopt}};

std::vector<uint64_t> numbers_of(const nlohmann::json& tensor, const char* name) {
  const auto list = tensor.find(name);
  if (list == tensor.end() || !list->is_array())
    throw bad_input("{} is missing; it must be a list of whole numbers", name);
  for (const auto& value : *list)
    if (!value.is_number_unsigned())
      throw bad_input("{} holds {}; it must hold whole numbers", name, printable(value.dump(-1, ' ', true)));
  return list->get<std::vector<uint64_t>>();
}

/// A tensor and its location within the data.
struct Place {
  std::string name;
  uint64_t begin, end;
};

std::pair<uint64_t, uint64_t> offsets_of(const nlohmann::json& tensor, uint64_t data_bytes) {
  const std::vector<uint64_t> offsets = numbers_of(tensor, "data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1])
    throw bad_input("data_offsets are [{}]; they must be a begin and an end, in this order",
                    fmt::join(offsets, ", "));
  if (offsets[1] > data_bytes)
    throw bad_input("data_offsets end at {}, but the file has {} bytes of data; is it truncated?", offsets[1],
                    data_bytes);
  return {offsets[0], offsets[1]};
}

/// Throws unless the tensors cover the data: no byte twice, none left over.
void check_cover(const std::string& file, std::vector<Place> places, uint64_t data_bytes) {
  std::ranges::sort(places, {}, [](const Place& place) { return std::pair(place.begin, place.end); });
  uint64_t covered = 0;
  for (const auto& [name, begin, end] : places) {
    if (begin != covered)
      throw bad_input(
          "{}: tensor '{}': begins at byte {} of the data, {} the tensor before it{} ends at {}{}", file,
          printable(name), begin, begin < covered ? "inside" : "but", begin < covered ? ", which" : "",
          covered, begin < covered ? "" : "; gaps are not allowed");
    covered = end;
  }
  if (covered != data_bytes)
    throw bad_input("{}: has {} bytes of data; its tensors end at byte {}", file, data_bytes, covered);
}

/// weight_map of an index: tensor name to file name. Files must lie in the same directory.
std::map<std::string, std::string> parse_index(const std::string& index) {
  const nlohmann::json object = read_json_object(index, kMaxIndex);
  const auto map = object.find("weight_map");
  if (map == object.end() || !map->is_object())
    throw bad_input("{}: weight_map is missing; it must say which file holds which tensor", index);
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string())
      throw bad_input("{}: tensor '{}': its file must be a string", index, printable(tensor));
    const std::string name = file.get<std::string>();
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos)
      throw bad_input("{}: tensor '{}': file '{}' is not the name of a file in that directory", index,
                      printable(tensor), printable(name));
    files.emplace(tensor, name);
  }
  return files;
}

std::string why_no_weights(const std::string& directory) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error))
    if (entry.path().extension() == ".bin" || entry.path().extension() == ".pth")
      return fmt::format(" (there is {}; only safetensors are read)", entry.path().filename().string());
    else if (entry.path().extension() == ".gguf")
      return fmt::format(" (there is {}; name that file itself)", entry.path().filename().string());
  return error ? fmt::format(" ({})", error.message()) : "";
}

}  // namespace

/// The tensors of one file, which stays mapped.
Safetensors::Entries Safetensors::map_file(const std::string& path) {
  const std::span<const std::byte> bytes =
      files_.emplace(path, std::make_unique<MappedFile>(path)).first->second->bytes();
  if (bytes.size() < kLengthBytes)
    throw bad_input("{}: has {} bytes; a safetensors file begins with {} bytes of header length", path,
                    bytes.size(), kLengthBytes);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length > bytes.size() - kLengthBytes)
    throw bad_input(
        "{}: header length is {}, but only {} bytes follow; it is truncated or no safetensors file", path,
        length, bytes.size() - kLengthBytes);
  if (length > kMaxHeader)
    throw bad_input("{}: header length is {}; the format allows {}", path, length, kMaxHeader);
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  const nlohmann::json object = parse_json_object(header, path + ": header");
  const std::span<const std::byte> data = bytes.subspan(kLengthBytes + length);
  Entries entries;
  std::vector<Place> places;
  for (const auto& [name, tensor] : object.items()) {
    if (name == "__metadata__") {
      for (const auto& [key, value] : tensor.items())
        if (tensor.is_object() && value.is_string()) metadata_.emplace(key, value.get<std::string>());
      continue;
    }
    Stored entry;
    entry.origin = fmt::format("{}: tensor '{}'", path, printable(name));
    with_context(entry.origin, [&, &name = name, &tensor = tensor] {
      if (!tensor.is_object()) throw bad_input("is a JSON {}; it must be an object", tensor.type_name());
      const auto dtype = tensor.find("dtype");
      if (dtype == tensor.end() || !dtype->is_string())
        throw bad_input("dtype is missing; it must be a string such as \"BF16\"");
      entry.dtype = dtype->get<std::string>();
      entry.shape = numbers_of(tensor, "shape");
      const auto [begin, end] = offsets_of(tensor, data.size());
      const uint64_t elements = checked_product(entry.shape);
      for (const DTypeName& known : kDTypes) {
        if (entry.dtype != known.name) continue;
        if (const uint64_t wanted = checked_mul(elements, known.bytes); wanted != end - begin)
          throw bad_input("shape [{}] of {} takes {} bytes; data_offsets give it {}",
                          fmt::join(entry.shape, ", "), entry.dtype, wanted, end - begin);
        entry.is_usable = known.usable.has_value();
        entry.type = known.usable.value_or(TensorType::f32);
      }
      entry.bytes = data.subspan(begin, end - begin);
      places.push_back({name, begin, end});
    });
    entries.emplace(name, std::move(entry));
  }
  check_cover(path, std::move(places), data.size());
  return entries;
}

Safetensors Safetensors::open_model(const std::string& directory) {
  const std::string single = directory + "/" + kSingle, index = directory + "/" + kIndex;
  if (state_of(single)) return open_file(single);
  if (!state_of(index))
    throw bad_input("{}: has neither {} nor {}{}", directory, kSingle, kIndex, why_no_weights(directory));
  Safetensors model(index);
  std::map<std::string, Entries> shards;
  for (const auto& [tensor, file] : parse_index(index)) {
    const std::string path = fmt::format("{}/{}", directory, file);
    if (!shards.contains(path)) {
      if (!state_of(path))
        throw bad_input("{}: is missing; {} says that it holds tensor '{}'", path, kIndex, printable(tensor));
      shards.emplace(path, model.map_file(path));
    }
    Entries& shard = shards.at(path);
    const auto place = shard.find(tensor);
    if (place == shard.end())
      throw bad_input("{}: tensor '{}' is missing; {} says that it is there", path, printable(tensor),
                      kIndex);
    model.entries_.insert(shard.extract(place));
  }
  return model;
}

const TensorView* Safetensors::find(std::string_view name) const {
  const Stored* entry = stored(name);
  const auto beside = [&](const char* ending, std::string_view dtype) {
    const Stored* const other = stored(std::string(name) + ending);
    return other && (dtype.empty() ? other->is_usable : other->dtype == dtype) ? other : nullptr;
  };
  if (const Stored* scales = beside("_scale_inv", ""); scales && entry && entry->dtype == "F8_E4M3")
    return &packed_->e4m3(*entry, *scales);
  if (const Stored* codes = beside("_blocks", "U8"), *scales = beside("_scales", "U8");
      !entry && codes && scales)
    return &packed_->mxfp4(*codes, *scales);
  if (entry && !entry->is_usable)
    throw bad_input("{}: dtype is {}; supported are F32, F16 and BF16", entry->origin,
                    printable(entry->dtype));
  return entry;
}

std::vector<std::string> Safetensors::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

std::string Safetensors::digest() const {
  Digest digest;
  for (const auto& [path, file] : files_) {
    digest.add(uint64_t{file->bytes().size()});
    digest.add(file->bytes());
  }
  return digest.hex();
}

}  // namespace kvcodec
