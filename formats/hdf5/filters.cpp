#include "formats/hdf5/filters.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <utility>

#include <zlib.h>

#include "lib/core/error.hpp"
#include "lib/core/fletcher32.hpp"

namespace kvcodec::h5 {
namespace {

/// An inflating stream of zlib, closed with its scope.
class Inflater {
 public:
  Inflater() {
    if (::inflateInit(&stream_) != Z_OK) throw failed("zlib: {}", stream_.msg ? stream_.msg : "no memory");
  }
  ~Inflater() { ::inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  /// Throws Error(bad_input) unless the bytes inflate to exactly as many as out has.
  void inflate(std::span<const std::byte> bytes, std::span<std::byte> out) {
    constexpr size_t kMost = std::numeric_limits<uInt>::max();
    if (bytes.size() > kMost || out.size() > kMost) throw bad_input("is larger than a chunk can be");
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data()));
    stream_.avail_in = static_cast<uInt>(bytes.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    const int status = ::inflate(&stream_, Z_FINISH);
    if (status == Z_STREAM_END && stream_.avail_out == 0) return;
    if (status == Z_STREAM_END)
      throw bad_input("inflates to {} bytes; {} are wanted", out.size() - stream_.avail_out, out.size());
    if (status == Z_BUF_ERROR && stream_.avail_out == 0 && stream_.avail_in > 0)
      throw bad_input("inflates to more than {} bytes", out.size());
    throw bad_input("does not inflate: {}", stream_.msg ? stream_.msg : "it ends too early");
  }

 private:
  z_stream stream_ = {};
};

std::span<const std::byte> without_checksum(std::span<const std::byte> bytes) {
  if (bytes.size() < kChecksumBytes) throw bad_input("is too short for its checksum");
  const auto content = bytes.first(bytes.size() - kChecksumBytes);
  const uint32_t stored = stored_checksum(content.data() + content.size()), found = fletcher32(content);
  if (found != stored)
    throw bad_input("does not bear out its checksum ({:08x} stored, {:08x} found)", stored, found);
  return content;
}

/// Shuffled elements lie byte by byte: first the first byte of each. What makes no whole element is behind them as it was. out: as many
/// bytes.
void unshuffle(std::span<const std::byte> bytes, size_t element_bytes, std::span<std::byte> out) {
  // HDF5 does not know the size of every type; then it stores chunks without this filter, and says so.
  if (element_bytes == 0) throw bad_input("is shuffled by elements of no bytes");
  const size_t elements = bytes.size() / element_bytes, shuffled = elements * element_bytes;
  for (size_t b = 0; b < element_bytes && elements > 0; ++b)
    for (size_t i = 0; i < elements; ++i) out[i * element_bytes + b] = bytes[b * elements + i];
  std::ranges::copy(bytes.subspan(shuffled), out.begin() + static_cast<std::ptrdiff_t>(shuffled));
}

/// Throws Error(bad_input) unless there are so many.
void expect_bytes(std::span<const std::byte> bytes, size_t wanted) {
  if (bytes.size() != wanted) throw bad_input("has {} bytes; {} are wanted", bytes.size(), wanted);
}

}  // namespace

Filters::Filters(hid_t creation) {
  const int count = H5Pget_nfilters(creation);
  steps_.reserve(static_cast<size_t>(std::max(count, 0)));
  for (int i = 0; i < count; ++i) {
    unsigned flags = 0, values[8] = {};
    size_t num_values = std::size(values);
    const H5Z_filter_t filter =
        H5Pget_filter2(creation, static_cast<unsigned>(i), &flags, &num_values, values, 0, nullptr, nullptr);
    switch (filter) {
      case H5Z_FILTER_DEFLATE:
        if (compressed()) throw bad_input("is compressed several times over; once is possible");
        break;
      case H5Z_FILTER_SHUFFLE:
      case H5Z_FILTER_FLETCHER32:
        break;
      default:
        throw bad_input(
            "is stored with filter {} of HDF5; 1 (deflate), 2 (shuffle) and 3 (Fletcher-32) are possible",
            filter);
    }
    steps_.push_back({filter, values[0]});
  }
}

bool Filters::has_checksum() const {
  return std::ranges::find(steps_, H5Z_FILTER_FLETCHER32, &Step::filter) != steps_.end();
}

bool Filters::compressed() const {
  return std::ranges::find(steps_, H5Z_FILTER_DEFLATE, &Step::filter) != steps_.end();
}

void Filters::undo(std::span<const std::byte> stored, uint32_t skipped, std::span<std::byte> out) const {
  const auto applies = [&](size_t step) { return (skipped >> step & 1) == 0; };
  // Bytes of a chunk before a filter: checksums of filters before are in them.
  const auto bytes_before = [&](size_t step) {
    size_t bytes = out.size();
    for (size_t i = 0; i < step; ++i)
      if (applies(i) && !steps_[i].makes_anew()) bytes += kChecksumBytes;
    return bytes;
  };
  size_t first =
      0;  // what makes the bytes anew last: it writes to `out`, unless a checksum is still behind them
  while (first < steps_.size() && !(applies(first) && steps_[first].makes_anew())) ++first;

  std::span<const std::byte> bytes = stored;
  std::unique_ptr<std::byte[]> made[2];  // what `bytes` are, and what the next filter makes of them
  for (size_t i = steps_.size(); i-- > 0;) {
    if (!applies(i)) continue;
    const Step& step = steps_[i];
    if (!step.makes_anew()) {
      bytes = without_checksum(bytes);
      continue;
    }
    std::span<std::byte> next = out;
    if (const size_t wanted = bytes_before(i); i > first || wanted != out.size()) {
      made[1] = std::make_unique_for_overwrite<std::byte[]>(wanted);
      next = {made[1].get(), wanted};
    }
    if (step.filter == H5Z_FILTER_DEFLATE) {
      Inflater().inflate(bytes, next);
    } else {
      expect_bytes(bytes, next.size());
      unshuffle(bytes, step.element_bytes, next);
    }
    made[0] = std::move(made[1]);
    bytes = next;
  }
  expect_bytes(bytes, out.size());
  if (bytes.data() != out.data()) std::ranges::copy(bytes, out.begin());
}

}  // namespace kvcodec::h5
