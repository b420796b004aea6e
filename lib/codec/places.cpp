#include "lib/codec/places.hpp"

#include "lib/core/error.hpp"

namespace kvcodec {

StreamSpec places_stream(size_t streams) {
  return {std::string(kPlaces), DType::u64, {streams}, Category::offsets};
}

PlaceWriter::PlaceWriter(std::span<const std::string_view> streams, uint64_t interval,
                         const StreamReader& document, uint64_t units)
    : interval_(interval), units_(units) {
  for (const std::string_view stream : streams) at_.push_back(document.rows(stream));
}

void PlaceWriter::add(std::span<const uint64_t> rows) {
  for (size_t i = 0; i < at_.size(); ++i) at_[i] += rows[i];
  if (++units_ % interval_ == 0) places_.insert(places_.end(), at_.begin(), at_.end());
}

void PlaceStream::check_rows(const StreamReader& document, uint64_t complete) {
  rows_ = document.rows(kPlaces);
  if (rows_ != complete / interval_)
    throw bad_input("stream '{}' has {} rows; {} units have one for every {}", kPlaces, rows_, complete,
                    interval_);
}

std::vector<uint64_t> PlaceStream::begin(const StreamReader& document, uint64_t interval) const {
  if (interval == 0) return std::vector<uint64_t>(streams_.size());
  return document.read<uint64_t>(kPlaces, interval - 1, 1, streams_.size());
}

void PlaceStream::check(const StreamReader& document, uint64_t units, std::span<const uint64_t> ends) const {
  if (const uint64_t next = units / interval_; units % interval_ == 0 && next > 0 && next <= rows_) {
    const std::vector<uint64_t> stored = begin(document, next);
    for (size_t i = 0; i < ends.size(); ++i)
      if (stored[i] != ends[i])
        throw bad_input("stream '{}', row {}: goes on at row {} of '{}'; the parts before end at {}", kPlaces,
                        next - 1, stored[i], streams_[i], ends[i]);
  }
  for (size_t i = 0; units == units_ && i < ends.size(); ++i)
    if (const uint64_t there = document.rows(streams_[i]); there != ends[i])
      throw bad_input("stream '{}' has {} rows; its parts end at {}", streams_[i], there, ends[i]);
}

}  // namespace kvcodec
