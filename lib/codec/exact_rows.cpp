#include "lib/codec/exact_rows.hpp"

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec {

/// Values per piece of parallel work: large against the cost of handing one out, small against a chunk.
constexpr size_t kPieceValues = 1 << 16;

static size_t piece_rows(size_t width) {
  return std::max<size_t>(1, kPieceValues / std::max<size_t>(width, 1));
}

/// The first infinity or NaN (an exponent of all ones: also what values beyond the type's range were rounded
/// to), or row.size() if there is none.
static size_t first_infinite(DType type, std::span<const uint16_t> row) {
  const auto exponent = static_cast<int16_t>(type == DType::f16 ? 0x7c00 : 0x7f80);
  int16_t largest = 0;  // signed: every instruction set has a maximum of those
  for (const uint16_t bits : row) largest = std::max(largest, static_cast<int16_t>(bits & exponent));
  if (largest < exponent) return row.size();
  const auto bad =
      std::find_if(row.begin(), row.end(), [&](uint16_t bits) { return (bits & exponent) == exponent; });
  return static_cast<size_t>(bad - row.begin());
}

std::vector<uint64_t> row_shape_of(const GroupShape& shape) {
  const bool has_both = shape.width() > shape.side_width(sides_in(shape.side).front());
  if (has_both && shape.layer.key_dim != shape.layer.value_dim) return {shape.width()};
  std::vector<uint64_t> extents;
  if (has_both) extents.push_back(std::size(kSides));
  if (shape.layers.size() > 1) extents.push_back(shape.layers.size());
  extents.push_back(static_cast<uint64_t>(shape.heads()));
  extents.push_back(shape.dims());
  return extents;
}

void check_context(const CodecContext& context) {
  if (context.heads < 1 || context.head_dim < 1)
    throw usage_error("{} heads of {} dimensions: both must be at least 1", context.heads, context.head_dim);
  if (context.storage != DType::f16 && context.storage != DType::bf16)
    throw usage_error("the 16-bit type of the cache is {}; it must be f16 or bf16", name_of(context.storage));
}

void store_row(DType storage, std::span<const float> row, size_t index, std::span<uint16_t> out) {
  narrow(storage, row, out);
  if (const size_t bad = first_infinite(storage, out); bad < out.size())
    throw bad_input("row {}, channel {}: {} is beyond the range of {}", index, bad, row[bad],
                    name_of(storage));
}

void store_rows(DType storage, MatrixView<const float> rows, std::span<uint16_t> out) {
  parallel_each(rows.rows(), piece_rows(rows.cols()), [&](size_t i) {
    store_row(storage, rows.row(i), i, out.subspan(i * rows.cols(), rows.cols()));
  });
}

UnsetVector<uint16_t> to_storage(DType storage, MatrixView<const float> rows) {
  UnsetVector<uint16_t> halves(rows.rows() * rows.cols());
  store_rows(storage, rows, halves);
  return halves;
}

void read_exact(std::string_view stream, DType storage, const StreamReader& document, uint64_t first,
                MatrixView<float> out) {
  const auto halves = document.read<uint16_t>(stream, first, out.rows(), out.cols());
  parallel_each(out.rows(), piece_rows(out.cols()), [&](size_t i) {
    const std::span<const uint16_t> row = std::span(halves).subspan(i * out.cols(), out.cols());
    if (const size_t bad = first_infinite(storage, row); bad < row.size())
      throw bad_input("stream '{}', row {}: value {} is not finite", stream, first + i, bad);
    widen(storage, row, out.row(i));
  });
}

void append_to_tail(std::span<const uint16_t> added, size_t width, size_t leaving, StreamStore& document,
                    const CodeHalves& code) {
  if (leaving == 0) return document.append_values(kTail, added);
  const uint64_t waiting = document.rows(kTail);
  if (waiting == 0) {
    code(added.first(leaving * width));
    return document.append_values(kTail, added.subspan(leaving * width));
  }
  std::vector<uint16_t> queue = document.read<uint16_t>(kTail, 0, waiting, width);
  queue.insert(queue.end(), added.begin(), added.end());
  const std::span<const uint16_t> all(queue);
  code(all.first(leaving * width));
  document.truncate(kTail, 0);
  document.append_values(kTail, all.subspan(leaving * width));
}

void decode_with_tail(DType storage, const StreamReader& document, uint64_t coded, uint64_t first,
                      MatrixView<float> out, const DecodeCoded& decode) {
  decode_with_tail(coded, first, out, decode, [&](uint64_t at, MatrixView<float> rows) {
    read_exact(kTail, storage, document, at, rows);
  });
}

uint64_t ExactEnds::tokens(const StreamReader& document, uint64_t quantized) const {
  const uint64_t sinks = document.rows(kSink), waiting = document.rows(kTail);
  const uint64_t total = checked_add(checked_add(sinks, quantized), waiting);
  if (sinks != sinks_of(total) || quantized != quantized_of(total))
    throw bad_input("{} first, {} quantized and {} newest tokens; of {} tokens {} are first and {} quantized",
                    sinks, quantized, waiting, total, sinks_of(total), quantized_of(total));
  return total;
}

void ExactEnds::append(MatrixView<const float> rows, uint64_t before, StreamStore& document,
                       const CodeHalves& quantize) const {
  const uint64_t total = before + rows.rows();
  const auto halves = to_storage(storage_, rows);
  const std::span<const uint16_t> added(halves);
  const size_t sinks = static_cast<size_t>(sinks_of(total) - sinks_of(before)) * rows.cols();
  document.append_values(kSink, added.first(sinks));
  append_to_tail(added.subspan(sinks), rows.cols(),
                 static_cast<size_t>(quantized_of(total) - quantized_of(before)), document, quantize);
}

void ExactEnds::decode(const StreamReader& document, uint64_t quantized, uint64_t first,
                       MatrixView<float> out, const DecodeCoded& decode) const {
  const uint64_t sinks = document.rows(kSink);
  const size_t exact = count_before(sinks, first, out.rows());
  if (exact > 0) read_exact(kSink, storage_, document, first, out.rows(0, exact));
  if (exact < out.rows())
    decode_with_tail(storage_, document, quantized, first + exact - sinks,
                     out.rows(exact, out.rows() - exact), decode);
}

}  // namespace kvcodec
