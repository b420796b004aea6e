// Differences over many values: counted, and the first one kept with its place, so that a failed check names its place.
//
//   Mismatch wrong;
//   for (…) wrong.compare(found(i, j), expected(i, j), i, j);
//   CHECK_EQ(wrong.report(), "");
#pragma once

#include <sstream>
#include <string>

namespace kvcodec::test {

class Mismatch {
 public:
  /// Counts a difference unless found == expected. place: indices of the value.
  template <class Found, class Expected, class... Place>
  void compare(const Found& found, const Expected& expected, const Place&... place) {
    if (found == expected) {
      ++compared_;
      return;
    }
    count([&](std::ostream& out) { out << +found << ", not " << +expected << ","; }, place...);
  }

  /// Counts a difference unless the condition is true.
  template <class... Place>
  void require(bool holds, const Place&... place) {
    if (holds)
      ++compared_;
    else
      count([](std::ostream& out) { out << "what should hold does not"; }, place...);
  }

  /// Empty if nothing differs; else how many values do, and the first of them.
  std::string report() const {
    if (wrong_ == 0) return "";
    return std::to_string(wrong_) + " of " + std::to_string(compared_) + " are wrong; the first: " + first_;
  }

 private:
  template <class Describe, class... Place>
  void count(Describe describe, const Place&... place) {
    ++compared_;
    if (wrong_++ > 0) return;
    std::ostringstream out;
    out.precision(17);
    describe(out);
    out << " at (";
    size_t index = 0;
    ((out << (index++ > 0 ? ", " : "") << place), ...);
    out << ")";
    first_ = out.str();
  }

  size_t compared_ = 0, wrong_ = 0;
  std::string first_;
};

}  // namespace kvcodec::test
