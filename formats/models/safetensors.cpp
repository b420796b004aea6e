#include "formats/models/safetensors.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include "formats/io/json_file.hpp"
#include "formats/io/mapped_file.hpp"
#include "formats/io/output.hpp"
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

/// A tensor of any element type, as the header describes it.
struct Entry {
  TensorView view;                   // type is set if usable
  std::string dtype;                 // as the header calls it
  std::optional<TensorType> usable;  // f32, f16, bf16
  uint64_t begin = 0, end = 0;       // within the data
};

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

uint64_t unsigned_of(const nlohmann::json& value, const char* what) {
  if (!value.is_number_unsigned())
    throw bad_input("{} holds {}; it must hold whole numbers", what, printable(value.dump(-1, ' ', true)));
  return value.get<uint64_t>();
}

std::vector<uint64_t> numbers_of(const nlohmann::json& tensor, const char* name) {
  const auto list = tensor.find(name);
  if (list == tensor.end() || !list->is_array())
    throw bad_input("{} is missing; it must be a list of whole numbers", name);
  std::vector<uint64_t> numbers;
  for (const auto& value : *list) numbers.push_back(unsigned_of(value, name));
  return numbers;
}

Entry parse_tensor(const nlohmann::json& tensor, std::span<const std::byte> data) {
  if (!tensor.is_object()) throw bad_input("is a JSON {}; it must be an object", tensor.type_name());
  Entry entry;
  const auto dtype = tensor.find("dtype");
  if (dtype == tensor.end() || !dtype->is_string())
    throw bad_input("dtype is missing; it must be a string such as \"BF16\"");
  entry.dtype = dtype->get<std::string>();
  entry.view.shape = numbers_of(tensor, "shape");
  const std::vector<uint64_t> offsets = numbers_of(tensor, "data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1])
    throw bad_input("data_offsets are [{}]; they must be a begin and an end, in this order",
                    fmt::join(offsets, ", "));
  entry.begin = offsets[0], entry.end = offsets[1];
  if (entry.end > data.size())
    throw bad_input("data_offsets end at {}, but the file has {} bytes of data; is it truncated?", entry.end,
                    data.size());
  const uint64_t elements = checked_product(entry.view.shape);
  for (const DTypeName& known : kDTypes)
    if (entry.dtype == known.name) {
      const uint64_t bytes = checked_mul(elements, known.bytes);
      if (bytes != entry.end - entry.begin)
        throw bad_input("shape [{}] of {} takes {} bytes; data_offsets give it {}",
                        fmt::join(entry.view.shape, ", "), entry.dtype, bytes, entry.end - entry.begin);
      entry.usable = known.usable;
    }
  entry.view.type = entry.usable.value_or(TensorType::f32);
  entry.view.bytes = data.subspan(entry.begin, entry.end - entry.begin);
  return entry;
}

using Entries = std::map<std::string, Entry, std::less<>>;
using Metadata = std::map<std::string, std::string>;

void add_metadata(const nlohmann::json& object, Metadata& metadata) {
  if (!object.is_object()) return;
  for (const auto& [name, value] : object.items())
    if (value.is_string()) metadata.emplace(name, value.get<std::string>());
}

/// The tensors must cover the data: no byte twice, none left over.
void check_cover(const std::string& file, const Entries& entries, uint64_t data_bytes) {
  std::vector<const Entries::value_type*> order;
  for (const auto& item : entries) order.push_back(&item);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  uint64_t covered = 0;
  for (const auto* item : order) {
    const auto& [name, entry] = *item;
    if (entry.begin < covered)
      throw bad_input(
          "{}: tensor '{}': begins at byte {} of the data, inside the tensor before it, which ends at {}",
          file, printable(name), entry.begin, covered);
    if (entry.begin > covered)
      throw bad_input(
          "{}: tensor '{}': begins at byte {} of the data, but the tensor before it ends at {}; gaps are not "
          "allowed",
          file, printable(name), entry.begin, covered);
    covered = entry.end;
  }
  if (covered != data_bytes)
    throw bad_input("{}: has {} bytes of data; its tensors end at byte {}", file, data_bytes, covered);
}

Entries parse_file(const MappedFile& file, Metadata& metadata) {
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() < kLengthBytes)
    throw bad_input("{}: has {} bytes; a safetensors file begins with {} bytes of header length", file.name(),
                    bytes.size(), kLengthBytes);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length > bytes.size() - kLengthBytes)
    throw bad_input(
        "{}: header length is {}, but only {} bytes follow; it is truncated or no safetensors file",
        file.name(), length, bytes.size() - kLengthBytes);
  if (length > kMaxHeader)
    throw bad_input("{}: header length is {}; the format allows {}", file.name(), length, kMaxHeader);
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  const nlohmann::json object = parse_json_object(header, file.name() + ": header");
  const std::span<const std::byte> data = bytes.subspan(kLengthBytes + length);
  Entries entries;
  for (const auto& item : object.items()) {
    const std::string& name = item.key();
    if (name == "__metadata__") {
      add_metadata(item.value(), metadata);
      continue;
    }
    const std::string origin = fmt::format("{}: tensor '{}'", file.name(), printable(name));
    Entry entry = with_context(origin, [&] { return parse_tensor(item.value(), data); });
    entry.view.origin = origin;
    entries.emplace(name, std::move(entry));
  }
  check_cover(file.name(), entries, data.size());
  return entries;
}

/// weight_map of an index: tensor name to file name. Files must lie in the directory itself.
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

struct Safetensors::Impl {
  std::string name;
  std::map<std::string, std::unique_ptr<MappedFile>> files;
  Entries entries;
  Metadata metadata;

  Entries map_file(const std::string& path) {
    auto file = std::make_unique<MappedFile>(path);
    Entries found = parse_file(*file, metadata);
    files.emplace(path, std::move(file));
    return found;
  }
};

Safetensors::Safetensors(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Safetensors::~Safetensors() = default;
Safetensors::Safetensors(Safetensors&&) noexcept = default;
Safetensors& Safetensors::operator=(Safetensors&&) noexcept = default;

Safetensors Safetensors::open_file(const std::string& file) {
  auto impl = std::make_unique<Impl>();
  impl->name = file;
  impl->entries = impl->map_file(file);
  return Safetensors(std::move(impl));
}

Safetensors Safetensors::open_model(const std::string& directory) {
  const std::string single = directory + "/" + kSingle, index = directory + "/" + kIndex;
  if (state_of(single)) return open_file(single);
  if (!state_of(index))
    throw bad_input("{}: has neither {} nor {}{}", directory, kSingle, kIndex, why_no_weights(directory));
  auto impl = std::make_unique<Impl>();
  impl->name = index;
  std::map<std::string, Entries> shards;
  for (const auto& [tensor, file] : parse_index(index)) {
    const std::string path = fmt::format("{}/{}", directory, file);
    if (!shards.contains(path)) {
      if (!state_of(path))
        throw bad_input("{}: is missing; {} says that it holds tensor '{}'", path, kIndex, printable(tensor));
      shards.emplace(path, impl->map_file(path));
    }
    Entries& shard = shards.at(path);
    const auto place = shard.find(tensor);
    if (place == shard.end())
      throw bad_input("{}: tensor '{}' is missing; {} says that it is there", path, printable(tensor),
                      kIndex);
    impl->entries.insert(shard.extract(place));
  }
  return Safetensors(std::move(impl));
}

const TensorView* Safetensors::find(std::string_view name) const {
  const auto place = impl_->entries.find(name);
  if (place == impl_->entries.end()) return nullptr;
  const Entry& entry = place->second;
  if (!entry.usable)
    throw bad_input("{}: dtype is {}; supported are F32, F16 and BF16", entry.view.origin,
                    printable(entry.dtype));
  return &entry.view;
}

std::optional<Safetensors::Stored> Safetensors::stored(std::string_view name) const {
  const auto place = impl_->entries.find(name);
  if (place == impl_->entries.end()) return std::nullopt;
  const Entry& entry = place->second;
  return Stored{entry.dtype, entry.view.shape, entry.view.bytes, entry.view.origin};
}

const std::map<std::string, std::string>& Safetensors::metadata() const { return impl_->metadata; }

std::string Safetensors::name() const { return impl_->name; }

std::vector<std::string> Safetensors::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : impl_->entries) names.push_back(name);
  return names;
}

uint64_t Safetensors::file_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [path, file] : impl_->files) bytes += file->bytes().size();
  return bytes;
}

std::string Safetensors::digest() const {
  Digest digest;
  for (const auto& [path, file] : impl_->files) {
    digest.add(uint64_t{file->bytes().size()});
    digest.add(file->bytes());
  }
  return digest.hex();
}

}  // namespace kvcodec
