#include "lib/codec/places.hpp"

#include "lib/core/error.hpp"

namespace kvcodec {

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
