// rANS decoding of segments; rans.hpp says what a segment is. Takes any bytes: it reads nothing outside the
// payload and refuses segments that no encoder writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/entropy/escaped.hpp"
#include "lib/entropy/rans.hpp"

namespace kvcodec {

namespace rans_kernels {
template <class Symbol>
struct Segment;
}

/// Symbol: uint8_t (models of at most 256 symbols, the escape included) or uint16_t.
template <class Symbol>
class RansDecoder {
 public:
  /// Segments of one call that are decoded side by side.
  static constexpr size_t kTogether = 4;

  /// Throws Error(failed) if the model's symbols do not fit the type.
  explicit RansDecoder(const RansModel& model) : RansDecoder(std::span(&model, 1)) {}
  /// For segments whose runs have models of their own. Throws Error(failed) also unless there is one, and all have
  /// the same alphabet and escape_bits.
  explicit RansDecoder(std::span<const RansModel> models);

  /// Decodes consecutive segments of out.cols() symbols, the first one at payload[0], segment i of
  /// segment_bytes[i] bytes, into row i of out: (segment_bytes.size(), n). Escapes stand in out as the
  /// escape's number; their values are appended to `escaped` in order. Four segments of one call at a
  /// time are decoded side by side, three times as fast as one by itself. Throws Error(bad_input) naming the
  /// segment if the payload ends before the segments do, or for a segment that is damaged; out and escaped
  /// are then unspecified.
  void decode_segments(std::span<const uint8_t> payload, std::span<const uint32_t> segment_bytes,
                       MatrixView<Symbol> out, std::vector<EscapedValue>& escaped) const;

  /// The same of segments of these runs, which together have out.cols() symbols; Error(failed) if they have not.
  void decode_segments(std::span<const uint8_t> payload, std::span<const uint32_t> segment_bytes,
                       std::span<const RansRun> runs, MatrixView<Symbol> out,
                       std::vector<EscapedValue>& escaped) const;

 private:
  /// A model as the kernels look it up (rans_kernels.hpp): either the first or the other two.
  struct Tables {
    explicit Tables(const RansModel& model);
    std::vector<uint32_t> narrow;
    std::vector<uint16_t> symbols;
    std::vector<uint32_t> ranges;
  };
  struct Work;
  void decode_group(Work& work, size_t segment, size_t count) const;
  void finish_run(const Work& work, const RansRun& run, size_t begin, size_t segment,
                  rans_kernels::Segment<Symbol>& at) const;
  void finish(Work& work, size_t segment, const rans_kernels::Segment<Symbol>& at) const;

  std::vector<RansModel> models_;
  std::vector<Tables> tables_;
};

}  // namespace kvcodec
