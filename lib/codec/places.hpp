// An index of streams (seek table): the begins of units of varying size in them, so that any unit is found without
// reading the sizes of all units before it.
//
// Some codecs store a document in units (a block of tokens, a token) that take any number of rows in some
// streams; other streams tell how many, unit by unit. Such a codec also has the stream
//   places  u64 [floor(n / interval)][streams]  of n units that are complete: row i says where unit
//                                               (i + 1) * interval begins in each of those streams
// with about kPlaceTokens tokens from one row to the next: 64 bits for each of them and stream.
//
// Codec::append stores it (PlaceWriter). To read, Places adds up the sizes of an interval of units from its row on, once,
// and compares the sums with the next row, or behind the last unit with the ends of the streams.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "lib/codec/stream.hpp"

namespace kvcodec {

inline constexpr std::string_view kPlaces = "places";
inline constexpr uint64_t kPlaceTokens = 4096;

/// The number of units of `tokens_of_unit` tokens between two rows of `places`.
constexpr uint64_t place_interval(uint64_t tokens_of_unit) {
  return tokens_of_unit < kPlaceTokens ? kPlaceTokens / tokens_of_unit : 1;
}

/// The stream `places` for units that take rows of so many other streams.
inline StreamSpec places_stream(size_t streams) {
  return {std::string(kPlaces), DType::u64, {streams}, Category::offsets};
}

/// Makes the rows of `places` for units that are appended.
class PlaceWriter {
 public:
  /// document: before the append; it has `units` units, which take all rows of `streams`.
  PlaceWriter(std::span<const std::string_view> streams, uint64_t interval, const StreamReader& document,
              uint64_t units)
      : interval_(interval), units_(units) {
    for (const std::string_view stream : streams) at_.push_back(document.rows(stream));
  }
  /// The next unit takes so many rows of each stream.
  void add(std::span<const uint64_t> rows) {
    for (size_t i = 0; i < at_.size(); ++i) at_[i] += rows[i];
    if (++units_ % interval_ == 0) places_.insert(places_.end(), at_.begin(), at_.end());
  }
  void store(StreamStore& document) const { document.append_values<uint64_t>(kPlaces, places_); }

 private:
  uint64_t interval_, units_;
  std::vector<uint64_t> at_, places_;
};

/// Some units of a document, one behind the other from a row of `places` on: at which row of each stream each of them begins, and
/// what else the codec needs to know of it (Unit). Units have the document's numbers, streams those in the constructor's list.
template <class Unit>
class Interval {
 public:
  /// begin: the rows at which unit `first` begins. There are no units at first.
  Interval(uint64_t first, std::vector<uint64_t> begin)
      : first_(first), streams_(begin.size()), begins_(std::move(begin)) {}

  uint64_t end() const { return first_ + units_.size(); }  ///< the unit behind the last one
  const Unit& operator[](uint64_t unit) const { return units_[unit - first_]; }
  /// unit: one of these, or end().
  uint64_t begin(uint64_t unit, size_t stream) const { return begins_[(unit - first_) * streams_ + stream]; }
  std::span<const uint64_t> ends() const { return std::span(begins_).last(streams_); }  ///< of all streams

  /// Adds unit end(), which takes so many rows of each stream.
  void add(const Unit& unit, std::span<const uint64_t> rows) {
    units_.push_back(unit);
    for (const uint64_t count : rows)  // one stream after the other: its last begin is always `streams_` back
      begins_.push_back(checked_add(begins_[begins_.size() - streams_], count));
  }
  /// Drops the units from number `end` on.
  void cut(uint64_t end) {
    units_.resize(end - first_);
    begins_.resize((end - first_ + 1) * streams_);
  }

 private:
  uint64_t first_;
  size_t streams_;
  std::vector<Unit> units_;
  std::vector<uint64_t> begins_;  // (units + 1, streams): the last row is where the next unit will begin
};

/// The places of a document's units, of any type.
class PlaceStream {
 protected:
  PlaceStream(std::vector<std::string_view> streams, uint64_t interval)
      : streams_(std::move(streams)), interval_(interval) {}

  /// Throws Error(bad_input) unless `places` has the rows of a document with so many complete units.
  void check_rows(const StreamReader& document, uint64_t complete) {
    rows_ = document.rows(kPlaces);
    if (rows_ != complete / interval_)
      throw bad_input("stream '{}' has {} rows; {} units have one for every {}", kPlaces, rows_, complete,
                      interval_);
  }
  /// The row of each stream at which an interval begins.
  std::vector<uint64_t> begin(const StreamReader& document, uint64_t interval) const {
    if (interval == 0) return std::vector<uint64_t>(streams_.size());
    return document.read<uint64_t>(kPlaces, interval - 1, 1, streams_.size());
  }

  std::vector<std::string_view> streams_;
  uint64_t interval_, rows_ = 0, units_ = 0, complete_ = 0;

 public:
  /// ends: the rows at which units [0, units) end. Throws Error(bad_input) unless the row of `places` for the next
  /// interval, if one begins there, has the same numbers, and, if these units are the last, the streams end there too.
  void check(const StreamReader& document, uint64_t units, std::span<const uint64_t> ends) const;
};

/// Each interval is read on first use. Several threads may call at() at once.
template <class Unit>
class Places : public PlaceStream {
 public:
  Places(std::vector<std::string_view> streams, uint64_t interval)
      : PlaceStream(std::move(streams), interval) {}

  /// Call it when the document has grown: it now has `units` units. The first `complete` of these never
  /// change again; the next append() may store the others anew. Throws Error(bad_input) unless `places` has
  /// the rows of so many complete units. Not while other threads call at().
  void grow(const StreamReader& document, uint64_t units, uint64_t complete) {
    check_rows(document, complete);
    if (!intervals_.empty())
      if (auto& last = intervals_.rbegin()->second; last.end() > complete_) last.cut(complete_);
    units_ = units, complete_ = complete;
  }

  /// The interval that a unit lies in. read(interval, last) adds units [interval.end(), last) to it.
  template <class Read>
  const Interval<Unit>& at(uint64_t unit, const StreamReader& document, const Read& read) const {
    const uint64_t index = unit / interval_, last = std::min((index + 1) * interval_, units_);
    const std::lock_guard lock(mutex_);
    auto found = intervals_.find(index);
    if (found == intervals_.end())
      found = intervals_.emplace(index, Interval<Unit>(index * interval_, begin(document, index))).first;
    if (Interval<Unit>& interval = found->second; interval.end() < last) {
      Interval<Unit> longer = interval;
      read(longer, last);
      check(document, last, longer.ends());
      interval = std::move(longer);
    }
    return found->second;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::map<uint64_t, Interval<Unit>> intervals_;  // a map: at() returns references into it
};

}  // namespace kvcodec
