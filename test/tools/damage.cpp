// Damages HDF5 files for tests of bad input.
//
//   damage FILE set DATASET INDEX VALUE    one element (flat index) to a number, nan, inf; its digests are taken away
//   damage FILE remove PATH                a dataset or group
//   damage FILE attribute PATH NAME VALUE  a number or a string, in place of what is there
//   damage FILE resize DATASET ROWS        the first dimension
//   damage FILE flip DATASET               a bit of the dataset's first stored byte, behind HDF5's back
//                                          (checksums notice)
//   damage FILE lose DATASET               the dataset's first chunk, which then reads as zeros (checksums do not
//                                          notice)
//   damage FILE undigest /                 all digests, as in files from before there were any
//   damage FILE flip-part ROW COLUMN       a bit of the first byte of a part of a codes file
//   damage FILE flip-digest ROW COLUMN     a bit of its last byte, which is of a digest
//   damage FILE layout COLUMN FROM TO      the layout of one side of a codes file, with the text TO for FROM
//   damage FILE truncate BYTES             cuts the file off
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#define H5_USE_110_API  // H5Ovisit, of any newer HDF5 too
#include <hdf5.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

template <class T>
T must(T result, const char* what) {
  if (result < 0) throw std::runtime_error(std::string(what) + " failed");
  return result;
}

double number_from(const std::string& text) {
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  return std::stod(text);
}

/// Removes a dataset's digests, so that the effect of a change beyond them is tested.
void forget_digests(hid_t dataset) {
  if (H5Aexists(dataset, "digests") > 0) must(H5Adelete(dataset, "digests"), "delete attribute");
}

void set_element(hid_t file, const std::string& path, uint64_t index, double value) {
  const hid_t dataset = must(H5Dopen2(file, path.c_str(), H5P_DEFAULT), "open dataset");
  const hid_t space = must(H5Dget_space(dataset), "dataspace");
  const int rank = must(H5Sget_simple_extent_ndims(space), "rank");
  std::vector<hsize_t> shape(static_cast<size_t>(rank)), place(shape.size());
  must(H5Sget_simple_extent_dims(space, shape.data(), nullptr), "shape");
  for (size_t d = shape.size(); d-- > 0; index /= shape[d]) place[d] = index % shape[d];
  must(H5Sselect_elements(space, H5S_SELECT_SET, 1, place.data()), "select");
  const hsize_t one = 1;
  const hid_t memory = must(H5Screate_simple(1, &one, nullptr), "memory space");
  must(H5Dwrite(dataset, H5T_NATIVE_DOUBLE, memory, space, H5P_DEFAULT, &value), "write");
  forget_digests(dataset);
  H5Sclose(memory), H5Sclose(space), H5Dclose(dataset);
}

void set_attribute(hid_t file, const std::string& path, const std::string& name, const std::string& value) {
  const hid_t object = must(H5Oopen(file, path.c_str(), H5P_DEFAULT), "open object");
  if (H5Aexists(object, name.c_str()) > 0) must(H5Adelete(object, name.c_str()), "delete attribute");
  const hid_t space = must(H5Screate(H5S_SCALAR), "space");
  char* end = nullptr;
  const long long number = std::strtoll(value.c_str(), &end, 10);
  if (!value.empty() && *end == '\0') {
    const hid_t attribute = must(
        H5Acreate2(object, name.c_str(), H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT), "create attribute");
    must(H5Awrite(attribute, H5T_NATIVE_LLONG, &number), "write attribute");
    H5Aclose(attribute);
  } else {
    const hid_t type = must(H5Tcopy(H5T_C_S1), "type");
    must(H5Tset_size(type, H5T_VARIABLE), "type size");
    must(H5Tset_cset(type, H5T_CSET_UTF8), "character set");
    const hid_t attribute =
        must(H5Acreate2(object, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), "create attribute");
    const char* text = value.c_str();
    must(H5Awrite(attribute, type, &text), "write attribute");
    H5Aclose(attribute), H5Tclose(type);
  }
  H5Sclose(space), H5Oclose(object);
}

/// The strings of an attribute of the root group.
std::vector<std::string> texts_of(hid_t file, const char* name) {
  const hid_t attribute = must(H5Aopen(file, name, H5P_DEFAULT), "open attribute");
  const hid_t type = must(H5Aget_type(attribute), "type"), space = must(H5Aget_space(attribute), "space");
  const size_t size = H5Tget_size(type);
  std::string bytes(size * static_cast<size_t>(H5Sget_simple_extent_npoints(space)), '\0');
  must(H5Aread(attribute, type, bytes.data()), "read attribute");
  H5Sclose(space), H5Tclose(type), H5Aclose(attribute);
  std::vector<std::string> texts;
  for (size_t at = 0; at < bytes.size(); at += size) texts.emplace_back(bytes.substr(at, size).c_str());
  return texts;
}

/// Replaces an attribute of the root group.
void put_attribute(hid_t file, const char* name, hid_t type, hsize_t count, const void* data) {
  must(H5Adelete(file, name), "delete attribute");
  const hid_t space = must(H5Screate_simple(1, &count, nullptr), "space");
  const hid_t attribute =
      must(H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT), "create attribute");
  must(H5Awrite(attribute, type, data), "write attribute");
  H5Aclose(attribute), H5Sclose(space);
}

/// Gives a column of a codes file a separate layout.
void change_layout(hid_t file, size_t column, const std::string& from, const std::string& to) {
  std::vector<std::string> layouts = texts_of(file, "layouts");
  const hid_t numbers_there = must(H5Aopen(file, "side_layout", H5P_DEFAULT), "open attribute");
  const hid_t space = must(H5Aget_space(numbers_there), "space");
  std::vector<uint64_t> numbers(static_cast<size_t>(H5Sget_simple_extent_npoints(space)));
  must(H5Aread(numbers_there, H5T_NATIVE_UINT64, numbers.data()), "read attribute");
  H5Sclose(space), H5Aclose(numbers_there);

  std::string layout = layouts.at(numbers.at(column));
  const size_t at = layout.find(from);
  if (at == std::string::npos) throw std::runtime_error("no '" + from + "' in " + layout);
  layouts.push_back(layout.replace(at, from.size(), to));
  numbers[column] = layouts.size() - 1;
  size_t size = 0;
  for (const std::string& text : layouts) size = std::max(size, text.size());
  std::string bytes;
  for (const std::string& text : layouts) bytes += text + std::string(size - text.size(), '\0');
  const hid_t type = must(H5Tcopy(H5T_C_S1), "type");
  must(H5Tset_size(type, size), "type size");
  put_attribute(file, "layouts", type, layouts.size(), bytes.data());
  put_attribute(file, "side_layout", H5T_NATIVE_UINT64, numbers.size(), numbers.data());
  H5Tclose(type);
}

void resize(hid_t file, const std::string& path, uint64_t rows) {
  const hid_t dataset = must(H5Dopen2(file, path.c_str(), H5P_DEFAULT), "open dataset");
  const hid_t space = must(H5Dget_space(dataset), "dataspace");
  std::vector<hsize_t> shape(static_cast<size_t>(must(H5Sget_simple_extent_ndims(space), "rank")));
  must(H5Sget_simple_extent_dims(space, shape.data(), nullptr), "shape");
  shape[0] = rows;
  must(H5Dset_extent(dataset, shape.data()), "resize");
  forget_digests(dataset);
  H5Sclose(space), H5Dclose(dataset);
}

/// The location in the file of the dataset's first chunk (or its contiguous data); size: of a chunk.
uint64_t first_byte(hid_t file, const std::string& path, hsize_t* chunk_size = nullptr) {
  const hid_t dataset = must(H5Dopen2(file, path.c_str(), H5P_DEFAULT), "open dataset");
  haddr_t address = H5Dget_offset(dataset);
  if (address == HADDR_UNDEF) {
    const hid_t space = must(H5Dget_space(dataset), "dataspace");
    std::vector<hsize_t> offset(static_cast<size_t>(must(H5Sget_simple_extent_ndims(space), "rank")));
    unsigned filters = 0;
    hsize_t size = 0;
    must(H5Dget_chunk_info(dataset, space, 0, offset.data(), &filters, &address, &size), "chunk");
    if (chunk_size) *chunk_size = size;
    H5Sclose(space);
  }
  H5Dclose(dataset);
  return address;
}

/// The location of the first byte of a part of a codes file, or of its last one, from its entry in /parts.
uint64_t byte_of_part(hid_t file, uint64_t row, uint64_t column, bool last) {
  const hid_t parts = must(H5Dopen2(file, "/parts", H5P_DEFAULT), "open /parts");
  const hid_t space = must(H5Dget_space(parts), "dataspace");
  const hsize_t places[] = {row, column, 0, row, column, 1}, two = 2;
  must(H5Sselect_elements(space, H5S_SELECT_SET, 2, places), "select");
  const hid_t memory = must(H5Screate_simple(1, &two, nullptr), "memory space");
  uint64_t part[2] = {};  // begin, size
  must(H5Dread(parts, H5T_NATIVE_UINT64, memory, space, H5P_DEFAULT, part), "read");
  const uint64_t begin = last ? part[0] + part[1] - 1 : part[0];
  H5Sclose(memory), H5Sclose(space), H5Dclose(parts);

  const hid_t data = must(H5Dopen2(file, "/data", H5P_DEFAULT), "open /data");
  const hid_t creation = must(H5Dget_create_plist(data), "layout");
  hsize_t chunk = 0;
  must(H5Pget_chunk(creation, 1, &chunk), "chunks");
  const hsize_t offset = begin / chunk * chunk;
  unsigned filters = 0;
  haddr_t address = HADDR_UNDEF;
  hsize_t size = 0;
  must(H5Dget_chunk_info_by_coord(data, &offset, &filters, &address, &size), "chunk");
  H5Pclose(creation), H5Dclose(data);
  return address + (begin - offset);
}

void flip_bit(const std::string& name, uint64_t at) {
  std::fstream stream(name, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(at));
  const char byte = static_cast<char>(stream.get() ^ 0x10);
  stream.seekp(static_cast<std::streamoff>(at));
  stream.put(byte);
  if (!stream.flush()) throw std::runtime_error("flip failed");
}

void write_zeros(const std::string& name, uint64_t at, uint64_t size) {
  std::fstream stream(name, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(static_cast<std::streamoff>(at));
  const std::string zeros(size, '\0');
  if (!stream.write(zeros.data(), static_cast<std::streamsize>(size)).flush())
    throw std::runtime_error("zeros failed");
}

herr_t forget_digests_of(hid_t file, const char* name, const H5O_info_t* info, void*) {
  if (info->type != H5O_TYPE_DATASET) return 0;
  const hid_t dataset = must(H5Dopen2(file, name, H5P_DEFAULT), "open dataset");
  forget_digests(dataset);
  H5Dclose(dataset);
  return 0;
}

void run(const std::vector<std::string>& words) {
  if (words.size() < 3) throw std::runtime_error("usage: damage FILE WHAT …");
  const std::string &name = words[0], &what = words[1];
  if (what == "truncate") {
    std::filesystem::resize_file(name, std::stoull(words[2]));
    return;
  }
  const hid_t file = must(H5Fopen(name.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), "open");
  uint64_t flip = 0, lose = 0;
  hsize_t lost = 0;
  if (what == "set")
    set_element(file, words.at(2), std::stoull(words.at(3)), number_from(words.at(4)));
  else if (what == "remove")
    must(H5Ldelete(file, words.at(2).c_str(), H5P_DEFAULT), "remove");
  else if (what == "attribute")
    set_attribute(file, words.at(2), words.at(3), words.at(4));
  else if (what == "layout")
    change_layout(file, std::stoull(words.at(2)), words.at(3), words.at(4));
  else if (what == "resize")
    resize(file, words.at(2), std::stoull(words.at(3)));
  else if (what == "flip")
    flip = first_byte(file, words.at(2));
  else if (what == "lose")
    lose = first_byte(file, words.at(2), &lost);
  else if (what == "undigest") {
    must(H5Ovisit(file, H5_INDEX_NAME, H5_ITER_NATIVE, forget_digests_of, nullptr), "visit");
    must(H5Ldelete(file, "/digests", H5P_DEFAULT), "remove");
  } else if (what == "flip-part" || what == "flip-digest")
    flip = byte_of_part(file, std::stoull(words.at(2)), std::stoull(words.at(3)), what == "flip-digest");
  else
    throw std::runtime_error("unknown damage '" + what + "'");
  must(H5Fclose(file), "close");
  if (flip > 0) flip_bit(name, flip);
  if (lose > 0) write_zeros(name, lose, lost);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "damage: %s\n", error.what());
    return 1;
  }
}
