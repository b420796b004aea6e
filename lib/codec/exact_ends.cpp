#include "lib/codec/exact_ends.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "lib/codec/exact_rows.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

constexpr std::string_view kSink = "sink", kTail = "tail";

}  // namespace

StreamSpec ExactEnds::sink_stream(const GroupShape& shape) const {
  return exact_stream(std::string(kSink), shape, storage_, Category::exempt);
}

StreamSpec ExactEnds::tail_stream(const GroupShape& shape) const {
  return exact_stream(std::string(kTail), shape, storage_, Category::exempt);
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
                       const std::function<void(std::span<const uint16_t> halves)>& quantize) const {
  const size_t width = rows.cols();
  const uint64_t total = before + rows.rows();
  const std::vector<uint16_t> added = to_storage(storage_, rows);
  const auto new_sinks = static_cast<size_t>(sinks_of(total) - sinks_of(before));
  document.append_values(kSink, std::span<const uint16_t>(added).first(new_sinks * width));
  const auto rest = std::span<const uint16_t>(added).subspan(new_sinks * width);
  const auto overflow = static_cast<size_t>(quantized_of(total) - quantized_of(before));
  if (overflow == 0) return document.append_values(kTail, rest);

  std::vector<uint16_t> queue = document.read<uint16_t>(kTail, 0, document.rows(kTail), width);
  queue.insert(queue.end(), rest.begin(), rest.end());
  quantize(std::span<const uint16_t>(queue).first(overflow * width));
  document.truncate(kTail, 0);
  document.append_values(kTail, std::span<const uint16_t>(queue).subspan(overflow * width));
}

void ExactEnds::decode(const StreamReader& document, uint64_t quantized, uint64_t first,
                       MatrixView<float> out,
                       const std::function<void(uint64_t at, MatrixView<float> rows)>& decode) const {
  const uint64_t sinks = document.rows(kSink), end = first + out.rows();
  // The three kinds of tokens lie one after the other.
  const auto part_of = [&](uint64_t from, uint64_t to, auto&& decode_part) {
    const uint64_t begin = std::max(first, from), stop = std::min(end, to);
    if (begin < stop) decode_part(begin - from, out.rows(begin - first, stop - begin));
  };
  const auto exact = [&](std::string_view stream) {
    return [&, stream](uint64_t at, MatrixView<float> rows) {
      read_exact(stream, storage_, document, at, rows);
    };
  };
  part_of(0, sinks, exact(kSink));
  part_of(sinks, sinks + quantized, decode);
  part_of(sinks + quantized, end, exact(kTail));
}

}  // namespace kvcodec
