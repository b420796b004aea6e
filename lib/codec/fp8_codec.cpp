// The codec `fp8`: every value as an 8-bit float E4M3 of the value over a scale, one scale per key/value head
// of a layer's side: serving engines call that an FP8 cache. A baseline.
//
// The scale is made from all tokens that a file starts with: the head's largest magnitude times `headroom`
// becomes 448, E4M3's largest. It stays for whatever is appended; what is larger than that is cut, as engines
// do. Being floats, the codes lose nothing to headroom but range at the lower end.
//
// Streams, H heads of d dimensions
//   scales  f32 shared [1][H]   positive
//   codes   u8  [T][H][d]
#include <algorithm>
#include <atomic>
#include <bit>
#include <cfloat>
#include <cmath>

#include "lib/codec/codec.hpp"
#include "lib/codec/exact_rows.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/lazy.hpp"
#include "lib/core/parallel.hpp"
#include "lib/quant/fp8.hpp"

namespace kvcodec {
namespace {

struct Fp8Options final : Options {
  double headroom = 2;  ///< room for appended tokens twice as loud costs one of 18 binades below
  int64_t sink = kBestSink;
  Centered center = Centered::automatic;

  static bool gains_by_center() { return true; }

  std::vector<OptionField> fields() override {
    return {{"headroom", "how many times larger than the largest value so far an appended value may be",
             &headroom, 1, 256},
            sink_field(sink),
            center_field(center)};
  }
};

constexpr std::string_view kFp8Scales = "scales", kFp8Codes = "codes";

/// Values per piece of parallel work.
constexpr size_t kFp8PieceValues = 1 << 16;

class Fp8Survey final : public Survey {
 public:
  Fp8Survey(const GroupShape& shape, DType storage, double headroom)
      : head_dim_(shape.dims()),
        storage_(storage),
        headroom_(headroom),
        largest_(shape.width() / head_dim_) {}

  void observe(MatrixView<const float> rows) override {
    for (size_t i = 0; i < rows.rows(); ++i)
      for (size_t head = 0; head < largest_.size(); ++head) {
        // Magnitudes of floats rise with their bits, whose maximum is found in vectors.
        int32_t largest = 0;
        for (const float value : rows.row(i).subspan(head * head_dim_, head_dim_))
          largest = std::max(largest, std::bit_cast<int32_t>(value) & 0x7fffffff);
        largest_[head] = std::max(largest_[head], std::bit_cast<float>(largest));
      }
  }

  void finish(StreamStore& document) override {
    std::vector<float> scales;
    for (const float largest : largest_) {
      // Rounding keeps the order of values, so that it needs be done only now.
      const double scale =
          headroom_ * static_cast<double>(round_to(storage_, largest)) / static_cast<double>(kLargestE4m3);
      // Heads of zeros, and those so faint that the scale would lose digits.
      scales.push_back(
          scale == 0 ? 1.0f : static_cast<float>(std::clamp<double>(scale, FLT_MIN, FLT_MAX / kLargestE4m3)));
    }
    document.append_values<float>(kFp8Scales, scales);
  }

 private:
  size_t head_dim_;
  DType storage_;
  double headroom_;
  std::vector<float> largest_;  // per head
};

std::vector<float> read_scales(const GroupShape& shape, const StreamReader& document) {
  auto scales = document.read<float>(kFp8Scales, 0, 1, shape.width() / shape.dims());
  for (const float scale : scales)
    // Times 448 it is to stay a number.
    if (!(scale > 0 && scale <= FLT_MAX / kLargestE4m3))
      throw bad_input("stream '{}': {} is not a scale", kFp8Scales, scale);
  return scales;
}

class Fp8View final : public DocumentView {
 public:
  Fp8View(const GroupShape& shape, const StreamReader& document) : DocumentView(shape, document) {}

 protected:
  uint64_t take_in() override { return document().rows(kFp8Codes); }

  void decode_rows(uint64_t first, MatrixView<float> out) const override {
    const std::vector<float>& scales = scales_.get([&] { return read_scales(shape(), document()); });
    const auto codes = document().read<uint8_t>(kFp8Codes, first, out.rows(), out.cols());
    const auto dims = shape().dims();
    parallel_each(out.rows(), std::max<size_t>(1, kFp8PieceValues / out.cols()), [&](size_t i) {
      with_context([&] { return fmt::format("stream '{}', row {}", kFp8Codes, first + i); },
                   [&] {
                     for (size_t head = 0; head < scales.size(); ++head)
                       dequantize_e4m3(std::span(codes).subspan(i * out.cols() + head * dims, dims),
                                       scales[head], out.row(i).subspan(head * dims, dims));
                   });
    });
  }

 private:
  Lazy<std::vector<float>> scales_;
};

class Fp8Codec final : public Codec {
 public:
  Fp8Codec(const Fp8Options& options, const CodecContext& context)
      : options_(options), storage_(context.storage) {}

  Record parameters() const override { return record_of(options_); }

  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    const std::vector<uint64_t> row = row_shape_of(shape);
    return {{std::string(kFp8Scales), DType::f32, {row.begin(), row.end() - 1}, Category::scales, 0, true},
            {std::string(kFp8Codes), DType::u8, row, Category::payload}};
  }

  /// 16-bit rows and codes.
  size_t scratch_bytes_per_row(const GroupShape& shape) const override { return shape.width() * 3; }

  SurveyScope survey_scope(const GroupShape&) const override { return SurveyScope::file; }
  std::unique_ptr<Survey> survey(const GroupShape& shape) const override {
    return std::make_unique<Fp8Survey>(shape, storage_, options_.headroom);
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    check_width(shape, rows.cols());
    const std::vector<float> scales = read_scales(shape, document);
    const auto halves = to_storage(storage_, rows);
    const auto dims = shape.dims();
    std::vector<uint8_t> codes(halves.size()), largest;
    for (const float scale : scales) largest.push_back(largest_code(scale));
    parallel_for(halves.size() / dims, std::max<size_t>(1, kFp8PieceValues / dims),
                 [&](size_t begin, size_t end, int) {
                   std::vector<float> head(dims);
                   uint64_t cut = 0;
                   for (size_t i = begin; i < end; ++i) {
                     widen(storage_, std::span(halves).subspan(i * dims, dims), head);
                     const auto own = std::span(codes).subspan(i * dims, dims);
                     quantize_e4m3(head, scales[i % scales.size()], own);
                     keep_finite(own, largest[i % scales.size()]);
                     cut += static_cast<uint64_t>(std::ranges::count_if(
                         head, [most = kLargestRoundedE4m3 * scales[i % scales.size()]](float value) {
                           return std::abs(value) > most;
                         }));
                   }
                   clipped_ += cut;
                 });
    document.append_values<uint8_t>(kFp8Codes, codes);
  }
  uint64_t clipped() const override { return clipped_; }

 protected:
  ViewPtr view_of(const GroupShape& shape, const StreamReader& document) const override {
    return std::make_unique<Fp8View>(shape, document);
  }

 private:
  /// The largest code whose value is still finite in the 16-bit type.
  uint8_t largest_code(float scale) const {
    uint8_t code = kLargestE4m3Code;
    while (std::isinf(round_to(storage_, e4m3_to_float(code) * scale))) --code;
    return code;
  }
  /// Rounding up may lead beyond it.
  static void keep_finite(std::span<uint8_t> codes, uint8_t largest) {
    if (largest == kLargestE4m3Code) return;
    for (uint8_t& code : codes)
      code = static_cast<uint8_t>((code & 0x80) | std::min<uint8_t>(code & 0x7f, largest));
  }

  Fp8Options options_;
  DType storage_;
  mutable std::atomic<uint64_t> clipped_ = 0;
};

}  // namespace

CodecEntry fp8_codec() {
  return {.name = "fp8",
          .summary = "baseline: 8-bit floats (E4M3) with one scale per head",
          .make_options = [] { return std::make_unique<Fp8Options>(); },
          .make = make_centered<Fp8Options, make_behind_sink<Fp8Options, Fp8Codec>>,
          .before_rope = true,
          .dial = {.why_not = "it stores 8 bits"},
          .promise = 8,
          .place = 8};
}

}  // namespace kvcodec
