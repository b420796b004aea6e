// Reads the binary fixtures of golden tests: values one after the other, little-endian.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "lib/core/view.hpp"
#include "test/test.hpp"

namespace kvcodec::test {

class Fixtures {
 public:
  /// file: its name in test/golden.
  explicit Fixtures(const std::string& file) {
    std::ifstream in(source_dir() + "/test/golden/" + file, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
  }
  template <class T>
  void read(T* out, size_t count) {
    REQUIRE_LE(position_ + count * sizeof(T), bytes_.size());
    std::memcpy(out, bytes_.data() + position_, count * sizeof(T));
    position_ += count * sizeof(T);
  }
  template <class T>
  T next() {
    T value{};
    read(&value, 1);
    return value;
  }
  Matrix<float> matrix(size_t rows, size_t cols) {
    Matrix<float> out(rows, cols);
    read(out.data(), out.size());
    return out;
  }
  bool at_end() const { return position_ == bytes_.size(); }

 private:
  std::vector<char> bytes_;
  size_t position_ = 0;
};

/// Names of the models in test/golden/model that have documents to run over, sorted.
inline std::vector<std::string> golden_models() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/test/golden/model"))
    if (std::filesystem::exists(entry.path() / "documents.json")) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace kvcodec::test
