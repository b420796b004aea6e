#include "lib/selfindex/codec/reader.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/error.hpp"
#include "lib/core/half.hpp"

namespace kvcodec::selfindex {

void Reader::refresh() {
  const uint64_t exact = document_.rows(kExact);
  const auto same = [](std::string_view stream, uint64_t rows, uint64_t wanted) {
    if (rows != wanted) throw bad_input("stream '{}' has {} rows, not {}", stream, rows, wanted);
  };
  const uint64_t flags = form_.has_choice(side_) ? document_.rows(kCoded) : 0;
  if (flags > 1) throw bad_input("stream '{}' has {} rows; it has at most one", kCoded, flags);
  coded_ = flags == 1;
  if (coded_)
    if (const uint8_t value = document_.read<uint8_t>(kCoded, 0, 1, 1).front(); value != 1)
      throw bad_input("stream '{}' says {}; 1 is possible", kCoded, value);
  if (form_.has_levels() && coded_) read_places();
  uint64_t count = exact / form_.heads;
  if (coded_ && form_.has_levels()) {
    count = document_.rows(kLevels);
    same(kScales, document_.rows(kScales), count);
    same(kZeros, document_.rows(kZeros), count);
    same(kExact, exact, exact_before(count));
  } else {
    same(kExact, exact, count * form_.heads);
    if (form_.has_levels())
      for (const std::string_view stream : {kLevels, kScales, kZeros, kExactIds})
        same(stream, document_.rows(stream), 0);
  }
  if (side_ == Side::key) {
    same(kSigns, document_.rows(kSigns), coded_ ? count : 0);
    for (const std::string_view stream : {kCenter, kAlpha, kCodebooks})
      same(stream, document_.rows(stream), coded_ ? 1 : 0);
  }
  tokens_ = count;
}

void Reader::read_places() {
  const uint64_t rows = document_.rows(kExactIds), heads = std::max<size_t>(form_.heads, 1);
  if (rows == id_rows_) return;  // a document has them from its start on
  const auto ids = document_.read<uint32_t>(kExactIds, 0, rows, heads);
  places_.clear();
  places_.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i >= heads && ids[i] <= ids[i - heads])
      throw bad_input("stream '{}', row {}: token {} does not come after {}", kExactIds, i / heads, ids[i],
                      ids[i - heads]);
    places_.push_back({ids[i], static_cast<uint32_t>(i % heads)});
  }
  std::ranges::sort(places_);
  id_rows_ = rows;
}

uint64_t Reader::exact_before(uint64_t token) const {
  const auto found =
      std::ranges::partition_point(places_, [&](const HeadToken& place) { return place.token < token; });
  return static_cast<uint64_t>(found - places_.begin());
}

std::span<const HeadToken> Reader::exact_places(uint64_t first, uint64_t last) const {
  const uint64_t begin = exact_before(first);
  return std::span(places_).subspan(begin, exact_before(last) - begin);
}

std::vector<float> Reader::read_finite(std::string_view stream) const {
  std::vector<float> values = document_.read<float>(stream, 0, 1, form_.width());
  for (const float value : values)
    if (!std::isfinite(value)) throw bad_input("stream '{}' holds {}, which is not finite", stream, value);
  return values;
}

const HeadTables& Reader::tables() const {
  return tables_.get([&] {
    HeadTables tables{read_finite(kCenter), read_finite(kAlpha)};
    for (const float alpha : tables.alpha)
      if (!(alpha > 0)) throw bad_input("stream '{}' holds {}; it must be positive", kAlpha, alpha);
    return tables;
  });
}

const std::vector<SignCodebook>& Reader::codebooks() const {
  return codebooks_.get([&] { return read_codebooks(); });
}

std::vector<SignCodebook> Reader::read_codebooks() const {
  const HeadTables& tables = this->tables();
  const auto halves = document_.read<uint16_t>(kCodebooks, 0, 1, form_.width() * kSignCodes);
  std::vector<SignCodebook> codebooks;
  size_t next = 0;
  for (size_t head = 0; head < form_.heads; ++head) {
    SignCodebook codebook{Matrix<float>(form_.dims, kSignCodes)};
    for (size_t group = 0; group < codebook.groups(); ++group)
      for (size_t code = 0; code < kSignCodes; ++code)
        for (size_t i = 0; i < kSignGroup; ++i) {
          const size_t channel = group * kSignGroup + i;
          const float relative = f16_to_float(halves[next++]);
          if (!std::isfinite(relative))
            throw bad_input("stream '{}' holds a value that is not finite", kCodebooks);
          codebook.centroids(channel, code) = relative * tables.alpha[head * form_.dims + channel];
        }
    codebooks.push_back(std::move(codebook));
  }
  return codebooks;
}

}  // namespace kvcodec::selfindex
