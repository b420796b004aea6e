// Damages good files for tests, through HDF5 itself and past it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <hdf5.h>

namespace kvcodec::test {

/// The chunks of a dataset.
struct Chunking {
  std::vector<hsize_t> shape = {};         ///< empty: it has none, its rows lie one behind the other
  std::vector<H5Z_filter_t> filters = {};  ///< in the order in which they are applied
  bool grows = false;                      ///< its first dimension has no bound
};

/// A file open for changes; objects are named by absolute paths. Anything HDF5 refuses is a fault of the test
/// and throws.
class Edit {
 public:
  explicit Edit(const std::string& path) : file_(check(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT))) {}
  ~Edit() { H5Fclose(file_); }
  Edit(const Edit&) = delete;
  Edit& operator=(const Edit&) = delete;

  void remove(const std::string& path) { check(H5Ldelete(file_, path.c_str(), H5P_DEFAULT)); }
  void remove_attribute(const std::string& object, const std::string& name) {
    check(H5Adelete_by_name(file_, object.c_str(), name.c_str(), H5P_DEFAULT));
  }
  void make_group(const std::string& path) {
    H5Gclose(check(H5Gcreate2(file_, path.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)));
  }
  void rename(const std::string& from, const std::string& to) {
    check(H5Lmove(file_, from.c_str(), file_, to.c_str(), H5P_DEFAULT, H5P_DEFAULT));
  }

  void set(const std::string& object, const std::string& name, int64_t value) {
    attribute(object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, {}, &value);
  }
  void set(const std::string& object, const std::string& name, double value) {
    attribute(object, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, {}, &value);
  }
  void set(const std::string& object, const std::string& name, const std::string& value) {
    const hid_t type = check(H5Tcopy(H5T_C_S1));
    check(H5Tset_size(type, value.size() + 1));
    attribute(object, name, type, type, {}, value.c_str());
    H5Tclose(type);
  }

  void set(const std::string& object, const std::string& name, const std::vector<uint64_t>& values) {
    attribute(object, name, H5T_STD_U64LE, H5T_NATIVE_UINT64, {values.size()}, values.data());
  }
  void set(const std::string& object, const std::string& name, const std::vector<std::string>& values) {
    size_t size = 1;
    for (const auto& value : values) size = std::max(size, value.size());
    std::string bytes;
    for (const auto& value : values) bytes += value + std::string(size - value.size(), '\0');
    const hid_t type = check(H5Tcopy(H5T_C_S1));
    check(H5Tset_size(type, size));
    check(H5Tset_strpad(type, H5T_STR_NULLPAD));
    attribute(object, name, type, type, {values.size()}, bytes.data());
    H5Tclose(type);
  }

  /// A list for H5Dcreate2, which the caller closes.
  static hid_t creation_of(const Chunking& chunks) {
    const hid_t creation = check(H5Pcreate(H5P_DATASET_CREATE));
    if (!chunks.shape.empty())
      check(H5Pset_chunk(creation, static_cast<int>(chunks.shape.size()), chunks.shape.data()));
    for (const H5Z_filter_t filter : chunks.filters) {
      if (filter == H5Z_FILTER_DEFLATE) check(H5Pset_deflate(creation, 6));
      if (filter == H5Z_FILTER_SHUFFLE) check(H5Pset_shuffle(creation));
      if (filter == H5Z_FILTER_FLETCHER32) check(H5Pset_fletcher32(creation));
      if (filter == H5Z_FILTER_NBIT) check(H5Pset_nbit(creation));
    }
    return creation;
  }

  /// Puts a dataset of these values in place of what is there; without values nothing is stored.
  template <class T>
  void put(const std::string& path, hid_t stored, hid_t memory, const std::vector<hsize_t>& shape,
           const std::vector<T>& values, const Chunking& chunks = {}) {
    if (H5Lexists(file_, path.c_str(), H5P_DEFAULT) > 0) remove(path);
    std::vector<hsize_t> limit = shape;
    if (chunks.grows) limit[0] = H5S_UNLIMITED;
    const hid_t space = check(H5Screate_simple(static_cast<int>(shape.size()), shape.data(),
                                               chunks.grows ? limit.data() : nullptr));
    const hid_t creation = creation_of(chunks);
    const hid_t dataset =
        check(H5Dcreate2(file_, path.c_str(), stored, space, H5P_DEFAULT, creation, H5P_DEFAULT));
    if (!values.empty()) check(H5Dwrite(dataset, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
    H5Dclose(dataset);
    H5Pclose(creation);
    H5Sclose(space);
  }
  void put(const std::string& path, const std::vector<uint64_t>& values) {
    put(path, H5T_STD_U64LE, H5T_NATIVE_UINT64, {values.size()}, values);
  }
  void put_floats(const std::string& path, const std::vector<hsize_t>& shape,
                  const std::vector<float>& values) {
    put(path, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, shape, values);
  }

  /// A dataset that claims a shape and stores nothing.
  void put_hollow(const std::string& path, hid_t type, const std::vector<hsize_t>& shape,
                  const std::vector<hsize_t>& chunk) {
    put(path, type, type, shape, std::vector<char>(), {.shape = chunk});
  }

  hid_t file() const { return file_; }

  static hid_t check(hid_t result) {
    if (result < 0) throw std::runtime_error("HDF5 refused what the test wanted");
    return result;
  }
  static void check(herr_t result) { check(static_cast<hid_t>(result)); }

 private:
  void attribute(const std::string& object, const std::string& name, hid_t stored, hid_t memory,
                 std::vector<hsize_t> shape, const void* value) {
    const hid_t target = check(H5Oopen(file_, object.c_str(), H5P_DEFAULT));
    if (H5Aexists(target, name.c_str()) > 0) check(H5Adelete(target, name.c_str()));
    const hid_t space =
        check(shape.empty() ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, shape.data(), nullptr));
    const hid_t made = check(H5Acreate2(target, name.c_str(), stored, space, H5P_DEFAULT, H5P_DEFAULT));
    const uint64_t nothing = 0;  // HDF5 wants an address even for no values
    check(H5Awrite(made, memory, value ? value : &nothing));
    H5Aclose(made);
    H5Sclose(space);
    H5Oclose(target);
  }

  hid_t file_;
};

/// The location in the file of the chunk that holds `row`.
inline uint64_t chunk_address(const std::string& path, const std::string& dataset, uint64_t row) {
  const hid_t file = Edit::check(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT));
  const hid_t object = Edit::check(H5Dopen2(file, dataset.c_str(), H5P_DEFAULT));
  const hid_t space = H5Dget_space(object);
  std::vector<hsize_t> offset(static_cast<size_t>(H5Sget_simple_extent_ndims(space)), 0);
  const hid_t creation = H5Dget_create_plist(object);
  std::vector<hsize_t> chunk(offset.size());
  H5Pget_chunk(creation, static_cast<int>(chunk.size()), chunk.data());
  offset[0] = row / chunk[0] * chunk[0];
  haddr_t address = HADDR_UNDEF;
  unsigned filters = 0;
  hsize_t size = 0;
  Edit::check(H5Dget_chunk_info_by_coord(object, offset.data(), &filters, &address, &size));
  H5Pclose(creation);
  H5Sclose(space);
  H5Dclose(object);
  H5Fclose(file);
  return address;
}

inline void flip_byte(const std::string& path, uint64_t position) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(position));
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(static_cast<std::streamoff>(position));
  file.put(byte);
}

}  // namespace kvcodec::test
