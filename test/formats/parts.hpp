// The parts of a codes file, extracted and replaced according to FORMAT.md: to inspect them, and to forge files.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include <xxhash.h>

#include "test/formats/edit.hpp"

namespace kvcodec::test {

using Bytes = std::vector<unsigned char>;

inline void put_digest(Bytes& out, const unsigned char* data, size_t size) {
  XXH128_canonical_t digest;
  XXH128_canonicalFromHash(&digest, XXH3_128bits(data, size));
  out.insert(out.end(), digest.digest, digest.digest + sizeof digest.digest);
}

/// A part with its parsed footer.
struct RawPart {
  uint64_t row = 0, column = 0;
  std::vector<uint64_t> rows;
  Bytes body;
  Bytes digests;  ///< 16 bytes per piece

  /// Digests that fit the body.
  void make_digests() {
    digests.clear();
    for (size_t first = 0; first < body.size(); first += 65536)
      put_digest(digests, body.data() + first, std::min<size_t>(65536, body.size() - first));
  }

  /// Body and footer, whose own digest is valid for any content.
  Bytes bytes() const {
    Bytes footer;
    const auto put = [&](uint64_t number) {
      for (; number >= 128; number >>= 7) footer.push_back(static_cast<unsigned char>(number | 128));
      footer.push_back(static_cast<unsigned char>(number));
    };
    put(row), put(column), put(rows.size());
    for (const uint64_t n : rows) put(n);
    footer.insert(footer.end(), digests.begin(), digests.end());
    const size_t size = footer.size() + 24;
    for (int i = 0; i < 4; ++i) footer.push_back(static_cast<unsigned char>(size >> (8 * i)));
    for (const char c : {'p', 'a', 'r', 't'}) footer.push_back(static_cast<unsigned char>(c));
    put_digest(footer, footer.data(), footer.size());
    Bytes all = body;
    all.insert(all.end(), footer.begin(), footer.end());
    return all;
  }
};

/// All parts of a codes file.
class PartsFile {
 public:
  explicit PartsFile(std::string path) : path_(std::move(path)) {
    const Edit file(path_);
    data_ = read<unsigned char>(file, "/data", H5T_NATIVE_UCHAR, nullptr);
    std::vector<hsize_t> shape;
    table_ = read<uint64_t>(file, "/parts", H5T_NATIVE_UINT64, &shape);
    rows_ = shape.at(0), columns_ = shape.at(1);
  }

  uint64_t rows() const { return rows_; }
  uint64_t columns() const { return columns_; }
  /// (begin, size) of a part, to read and to change.
  std::pair<uint64_t&, uint64_t&> place(uint64_t row, uint64_t column) {
    const size_t at = 2 * (row * columns_ + column);
    return {table_[at], table_[at + 1]};
  }
  Bytes& data() { return data_; }

  RawPart get(uint64_t row, uint64_t column) {
    const auto [begin, size] = place(row, column);
    const auto* end = std::as_const(data_).data() + begin + size;
    uint32_t footer_size = 0;
    std::memcpy(&footer_size, end - 24, sizeof footer_size);
    const unsigned char* at = end - footer_size;
    RawPart part;
    part.body.assign(std::as_const(data_).data() + begin, at);
    const auto take = [&] {
      uint64_t number = 0;
      for (int shift = 0;; shift += 7) {
        number |= static_cast<uint64_t>(*at & 127) << shift;
        if (*at++ < 128) return number;
      }
    };
    part.row = take(), part.column = take();
    part.rows.resize(take());
    for (uint64_t& n : part.rows) n = take();
    part.digests.assign(at, end - 24);
    return part;
  }

  /// Puts a part at the place that the table gives for (row, column); the old bytes stay, unused.
  void put(uint64_t row, uint64_t column, const RawPart& part) {
    const Bytes bytes = part.bytes();
    const auto [begin, size] = place(row, column);
    begin = data_.size(), size = bytes.size();
    data_.insert(data_.end(), bytes.begin(), bytes.end());
  }

  void save() const {
    Edit file(path_);
    file.put("/data", H5T_STD_U8LE, H5T_NATIVE_UCHAR, {data_.size()}, data_);
    file.put("/parts", H5T_STD_U64LE, H5T_NATIVE_UINT64, {rows_, columns_, 2}, table_);
    file.set("/", "shared_parts",
             std::vector(table_.begin(), table_.begin() + static_cast<ptrdiff_t>(2 * columns_)));
  }

 private:
  template <class T>
  static std::vector<T> read(const Edit& file, const char* path, hid_t memory, std::vector<hsize_t>* shape) {
    const hid_t dataset = Edit::check(H5Dopen2(file.file(), path, H5P_DEFAULT));
    const hid_t space = H5Dget_space(dataset);
    std::vector<T> values(static_cast<size_t>(H5Sget_simple_extent_npoints(space)));
    if (shape) {
      shape->resize(static_cast<size_t>(H5Sget_simple_extent_ndims(space)));
      H5Sget_simple_extent_dims(space, shape->data(), nullptr);
    }
    if (!values.empty()) Edit::check(H5Dread(dataset, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
    H5Sclose(space);
    H5Dclose(dataset);
    return values;
  }

  std::string path_;
  Bytes data_;
  std::vector<uint64_t> table_;
  uint64_t rows_ = 0, columns_ = 0;
};

}  // namespace kvcodec::test
