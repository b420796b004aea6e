// Strings that lie in one piece of memory.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <ranges>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcodec {

/// A list of strings that is read, copied and compared about as fast as its bytes: a hundred thousand names of documents would
/// otherwise be as many allocations. Its views are valid until the list changes.
class TextList {
 public:
  TextList() = default;
  TextList(std::initializer_list<std::string_view> texts) : TextList(std::vector(texts)) {}
  template <std::ranges::input_range Texts>
  requires std::convertible_to<std::ranges::range_reference_t<Texts>, std::string_view>
  explicit TextList(const Texts& texts) {
    for (const std::string_view text : texts) push_back(text);
  }

  /// All strings, one behind the other, and where each ends, which never falls; the last one ends with them.
  TextList(std::string bytes, std::vector<uint64_t> ends)
      : bytes_(std::move(bytes)), ends_(std::move(ends)) {}

  size_t size() const { return ends_.size(); }
  bool empty() const { return ends_.empty(); }
  std::string_view operator[](size_t i) const {
    const size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(bytes_).substr(begin, ends_[i] - begin);
  }
  std::string_view back() const { return (*this)[size() - 1]; }

  /// Memory for so many strings of so many bytes in all.
  void reserve(size_t count, size_t bytes) {
    ends_.reserve(count);
    bytes_.reserve(bytes);
  }
  /// Appends strings from cells of `width` bytes, each up to the first zero, or without the spaces at its end. cells: not this list's own.
  void append_cells(std::string_view cells, size_t width, bool spaces) {
    size_t end = bytes_.size(), string = size();
    bytes_.resize(end + cells.size());
    ends_.resize(string + cells.size() / width);
    for (size_t begin = 0; begin + width <= cells.size(); begin += width) {
      const std::string_view cell = cells.substr(begin, width);
      const size_t length = spaces ? cell.find_last_not_of(' ') + 1 : std::min(cell.find('\0'), width);
      std::copy_n(cell.data(), length, bytes_.data() + end);
      ends_[string++] = end += length;
    }
    bytes_.resize(end);
  }
  void push_back(std::string_view text) {
    bytes_.append(text);
    ends_.push_back(bytes_.size());
  }
  /// Appends empty strings, or removes the last ones.
  void resize(size_t count) {
    ends_.resize(count, bytes_.size());
    bytes_.resize(empty() ? 0 : ends_.back());
  }

  /// All strings, one behind the other, and where each ends.
  const std::string& bytes() const { return bytes_; }
  const std::vector<uint64_t>& ends() const { return ends_; }

  bool operator==(const TextList&) const = default;

 private:
  std::string bytes_;
  std::vector<uint64_t> ends_;  // of each string in bytes_
};

}  // namespace kvcodec
