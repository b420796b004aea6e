// A program that codes rows in place of a codec's own code: for the codec `exec`. formats/io/row_program.hpp starts one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/codec/group_shape.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

/// A program that runs. Members throw Error(bad_input) if it says that it cannot do what is asked, ends, or gives what does not fit, and
/// Error(failed) if it gives nothing in time. Threads take turns.
class RowProgram {
 public:
  virtual ~RowProgram() = default;

  /// True if it wants to see all rows of a side of a layer first: observe() for each piece, then learn() for its table.
  virtual bool surveys() const = 0;
  virtual void observe(const GroupShape& shape, MatrixView<const float> rows) = 0;
  virtual std::vector<uint8_t> learn(const GroupShape& shape) = 0;

  /// The bytes of consecutive tokens, rows (n, shape.width()) from token `first` of a document on. table: from learn(), or empty.
  virtual std::vector<uint8_t> encode(const GroupShape& shape, std::span<const uint8_t> table, uint64_t first,
                                      MatrixView<const float> rows) = 0;
  /// The rows of these bytes, as many tokens as were encoded: out (n, shape.width()), finite.
  virtual void decode(const GroupShape& shape, std::span<const uint8_t> table, uint64_t first,
                      std::span<const uint8_t> bytes, MatrixView<float> out) = 0;
};

/// Starts a program, which gets this text for options of its own, and may take so many seconds until it gives or takes the next bytes.
using StartRowProgram =
    std::function<std::unique_ptr<RowProgram>(const std::string& arguments, int64_t seconds)>;

}  // namespace kvcodec
