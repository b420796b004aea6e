#include <algorithm>
#include <cstring>

#include "formats/hdf5/state.hpp"

namespace kvcodec::h5 {
namespace {

/// An attribute opened for reading, with its type and how many elements it has.
struct Attribute {
  Handle object, attribute, type;
  size_t count = 0;
};

constexpr size_t kMaxAttributeBytes = size_t{1} << 28;  // far beyond any real one; guards the allocation

}  // namespace

static Attribute open_attribute(const File::State& file, const std::string& object, const std::string& name) {
  Attribute opened;
  opened.object = file.open_object(object);
  if (!file.has_attribute(opened.object.get(), object, name))
    throw file.error(object, "attribute '" + name + "' is missing");
  opened.attribute = Handle(H5Aopen(opened.object.get(), name.c_str(), H5P_DEFAULT), H5Aclose);
  if (!opened.attribute) throw file.refused(object, "attribute '" + name + "' cannot be opened");
  opened.type = Handle(H5Aget_type(opened.attribute.get()), H5Tclose);
  const Handle space(H5Aget_space(opened.attribute.get()), H5Sclose);
  const hssize_t count = space ? H5Sget_simple_extent_npoints(space.get()) : -1;
  if (!opened.type || count < 0) throw file.refused(object, "attribute '" + name + "' cannot be read");
  opened.count = static_cast<size_t>(count);
  if (opened.count > kMaxAttributeBytes / std::max<size_t>(1, H5Tget_size(opened.type.get())))
    throw file.error(object, "attribute '" + name + "' claims more than 256 MiB");
  return opened;
}

static std::vector<std::string> attribute_texts(const File::State& file, const std::string& object,
                                                const std::string& name) {
  const Attribute opened = open_attribute(file, object, name);
  const hid_t type = opened.type.get();
  if (H5Tget_class(type) != H5T_STRING) throw file.error(object, "attribute '" + name + "' is not a string");
  if (H5Tis_variable_str(type) <= 0) {
    std::string bytes(opened.count * H5Tget_size(type), '\0');
    if (!bytes.empty() && H5Aread(opened.attribute.get(), type, bytes.data()) < 0)
      throw file.refused(object, "attribute '" + name + "' cannot be read");
    TextList texts;
    append_texts(std::as_bytes(std::span(bytes)), fixed_text(type), texts);
    std::vector<std::string> all;
    all.reserve(texts.size());
    for (size_t i = 0; i < texts.size(); ++i) all.emplace_back(texts[i]);
    return all;
  }
  std::vector<char*> pointers(opened.count, nullptr);
  if (H5Aread(opened.attribute.get(), type, pointers.data()) < 0)
    throw file.refused(object, "attribute '" + name + "' cannot be read");
  std::vector<std::string> texts;
  texts.reserve(pointers.size());
  for (const char* text : pointers) texts.emplace_back(text ? text : "");
  const Handle space(H5Aget_space(opened.attribute.get()), H5Sclose);
  H5Dvlen_reclaim(type, space.get(), H5P_DEFAULT, pointers.data());
  return texts;
}

bool File::has_attribute(const std::string& object, const std::string& name) const {
  const Turn turn;
  return state_->has_attribute(state_->open_object(object).get(), object, name);
}

std::vector<std::string> File::texts(const std::string& object, const std::string& name) const {
  const Turn turn;
  return attribute_texts(*state_, object, name);
}

std::string File::text(const std::string& object, const std::string& name) const {
  auto values = texts(object, name);
  if (values.size() != 1)
    throw error(object, "attribute '{}' has {} strings; one is wanted", name, values.size());
  return std::move(values.front());
}

int64_t File::integer(const std::string& object, const std::string& name, int64_t min, int64_t max) const {
  const Turn turn;
  const Attribute opened = open_attribute(*state_, object, name);
  if (H5Tget_class(opened.type.get()) != H5T_INTEGER || opened.count != 1)
    throw error(object, "attribute '{}' is not an integer", name);
  int64_t value = 0;
  if (H5Aread(opened.attribute.get(), H5T_NATIVE_INT64, &value) < 0)
    throw state_->refused(object, "attribute '" + name + "' cannot be read");
  if (value < min || value > max)
    throw error(object, "attribute '{}' is {}; {} to {} is possible", name, value, min, max);
  return value;
}

double File::number(const std::string& object, const std::string& name) const {
  const Turn turn;
  const Attribute opened = open_attribute(*state_, object, name);
  const H5T_class_t kind = H5Tget_class(opened.type.get());
  if ((kind != H5T_INTEGER && kind != H5T_FLOAT) || opened.count != 1)
    throw error(object, "attribute '{}' is not a number", name);
  double value = 0;
  if (H5Aread(opened.attribute.get(), H5T_NATIVE_DOUBLE, &value) < 0)
    throw state_->refused(object, "attribute '" + name + "' cannot be read");
  return value;
}

std::vector<uint64_t> attribute_extents(const File::State& file, const std::string& object,
                                        const std::string& name) {
  const Attribute opened = open_attribute(file, object, name);
  if (H5Tget_class(opened.type.get()) != H5T_INTEGER)
    throw file.error(object, "attribute '" + name + "' has no integers");
  std::vector<uint64_t> values(opened.count);
  if (!values.empty() && H5Aread(opened.attribute.get(), H5T_NATIVE_UINT64, values.data()) < 0)
    throw file.refused(object, "attribute '" + name + "' cannot be read");
  return values;
}

std::vector<uint64_t> File::extents(const std::string& object, const std::string& name) const {
  const Turn turn;
  return attribute_extents(*state_, object, name);
}

/// Whether the object has that attribute, with that type and these values.
static bool has_equal_attribute(hid_t object, const std::string& name, hid_t stored, hid_t space,
                                const void* data, size_t bytes) {
  const Handle attribute(H5Aopen(object, name.c_str(), H5P_DEFAULT), H5Aclose);
  const Handle type(attribute ? H5Aget_type(attribute.get()) : -1, H5Tclose);
  const Handle extent(attribute ? H5Aget_space(attribute.get()) : -1, H5Sclose);
  if (!type || !extent || H5Tequal(type.get(), stored) <= 0 || H5Sextent_equal(extent.get(), space) <= 0)
    return false;
  std::vector<char> values(bytes);
  return bytes == 0 || (H5Aread(attribute.get(), type.get(), values.data()) >= 0 &&
                        std::memcmp(values.data(), data, bytes) == 0);
}

/// Of a file that is changed in place, replaces an attribute that is there and another one. Numbers lie in memory as they are stored.
static void write_attribute(const File::State& file, const std::string& object, const std::string& name,
                            hid_t stored, hid_t memory, std::optional<uint64_t> count, const void* data) {
  const Handle target = file.open_object(object);
  const hsize_t extent = count.value_or(1);
  if (file.in_place && file.has_attribute(target.get(), object, name)) {
    const Handle space(count ? H5Screate_simple(1, &extent, nullptr) : H5Screate(H5S_SCALAR), H5Sclose);
    if (has_equal_attribute(target.get(), name, stored, space.get(), data, extent * H5Tget_size(stored)))
      return;
    if (H5Adelete(target.get(), name.c_str()) < 0)
      throw file.refused(object, "attribute '" + name + "' cannot be replaced");
  }
  const Handle space(count ? H5Screate_simple(1, &extent, nullptr) : H5Screate(H5S_SCALAR), H5Sclose);
  const Handle attribute(
      H5Acreate2(target.get(), name.c_str(), stored, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  if (!attribute || (extent > 0 && H5Awrite(attribute.get(), memory, data) < 0))
    throw file.refused(object, "attribute '" + name + "' cannot be written");
  file.check_writes();
}

void File::set_text(const std::string& object, const std::string& name, const std::string& value) {
  const Turn turn;
  const Handle type = text_type(value.size());
  write_attribute(*state_, object, name, type.get(), type.get(), std::nullopt, value.c_str());
}

void File::set_texts(const std::string& object, const std::string& name,
                     const std::vector<std::string>& values) {
  const Turn turn;
  size_t size = 1;
  for (const auto& value : values) size = std::max(size, value.size());
  std::vector<char> bytes(values.size() * size, '\0');
  for (size_t i = 0; i < values.size(); ++i)
    std::memcpy(bytes.data() + i * size, values[i].data(), values[i].size());
  const Handle type = text_type(size);
  write_attribute(*state_, object, name, type.get(), type.get(), values.size(), bytes.data());
}

void File::set_integer(const std::string& object, const std::string& name, int64_t value) {
  const Turn turn;
  write_attribute(*state_, object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, std::nullopt, &value);
}

void File::set_number(const std::string& object, const std::string& name, double value) {
  const Turn turn;
  write_attribute(*state_, object, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, std::nullopt, &value);
}

void write_extents(const File::State& file, const std::string& object, const std::string& name,
                   std::span<const uint64_t> values) {
  write_attribute(file, object, name, H5T_STD_U64LE, H5T_NATIVE_UINT64, values.size(), values.data());
}

void File::set_extents(const std::string& object, const std::string& name, std::span<const uint64_t> values) {
  const Turn turn;
  write_extents(*state_, object, name, values);
}

}  // namespace kvcodec::h5
