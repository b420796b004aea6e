// Tests of the helper with which other tests find differences.
#include "test/mismatch.hpp"

#include <cmath>
#include <cstdint>

#include "test/test.hpp"

namespace mismatch_test {

using kvcodec::test::Mismatch;

TEST_CASE("differences are counted, and the first one is named") {
  Mismatch wrong;
  CHECK_EQ(wrong.report(), "");
  wrong.compare(1, 1, 0, 0);
  wrong.require(true, 0, 1);
  CHECK_EQ(wrong.report(), "");
  wrong.compare(uint8_t{65}, uint8_t{66}, 3, 4);
  wrong.compare(7.0f, 8.0f, 5, 6);
  wrong.require(false, 9);
  CHECK_EQ(wrong.report(), "3 of 5 are wrong; the first: 65, not 66, at (3, 4)");
  Mismatch nan;
  nan.compare(std::nanf(""), std::nanf(""), 2);
  CHECK_EQ(nan.report(), "1 of 1 are wrong; the first: nan, not nan, at (2)");
  Mismatch claim;
  claim.require(false, 8, 1);
  CHECK_EQ(claim.report(), "1 of 1 are wrong; the first: what should hold does not at (8, 1)");
}

}  // namespace mismatch_test
