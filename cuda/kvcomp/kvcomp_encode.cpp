#include "cuda/kvcomp/kvcomp_encode.hpp"

namespace kvcodec::cuda {

/// Has no branch for each value: a piece of work has half a million values, and the device waits for this.
static bool all_finite(std::span<const uint16_t> halves, bool brain) {
  const unsigned exponent = brain ? 0x7f80 : 0x7c00;
  unsigned found = 0;
  for (const uint16_t half : halves) found |= (half & exponent) == exponent;
  return found == 0;
}

/// Zeros, for a stream of bytes that a kernel writes bit by bit.
static DeviceBuffer<uint32_t> zero_words(uint64_t bytes, const Stream& stream) {
  DeviceBuffer<uint32_t> words(bytes / 4 + 1);
  words.fill(0, stream);
  return words;
}

static std::vector<uint8_t> bytes_of(const DeviceBuffer<uint32_t>& words, uint64_t bytes,
                                     const Stream& stream) {
  const std::vector<uint32_t> host = downloaded(words, stream);
  const auto* begin = reinterpret_cast<const uint8_t*>(host.data());
  return {begin, begin + bytes};
}

std::vector<uint32_t> kvcomp_codes(const HuffmanBook& book) {
  const auto entry = [&](size_t symbol) { return uint32_t{book.code(symbol)} << 16 | book.length(symbol); };
  std::vector<uint32_t> codes(256, entry(book.escape()) | kKvcompExact);
  for (size_t symbol = 0; symbol < book.alphabet(); ++symbol)
    if (book.length(symbol) > 0) codes[symbol] = entry(symbol);
  return codes;
}

QuantizedBlocks::QuantizedBlocks(const kvcomp::Layout& layout, DType storage, const ErrorBound& bound,
                                 MatrixView<const uint16_t> values) {
  const size_t tokens = layout.block.tokens, dims = layout.block.dims;
  if (storage != DType::f16 && storage != DType::bf16)
    throw failed("values of {} cannot be quantized with a bound; f16 and bf16 can", name_of(storage));
  if (!(bound.range > 0 || bound.absolute > 0 || bound.magnitude > 0))
    throw usage_error("no error bound is above 0");
  if (layout.shared_steps) throw usage_error("steps that heads share are fitted on the CPU only");
  if (layout.block.by_channel != (layout.unit == UnitShape::row) ||
      (layout.block.by_channel && layout.has_origins))
    throw failed("runs of values have a step for each token, runs of keys have none");
  if (tokens == 0 || values.cols() != layout.width() || values.rows() % tokens != 0)
    throw failed("values ({}, {}) are not whole blocks of {} tokens and {} columns", values.rows(),
                 values.cols(), tokens, layout.width());
  if (layout.block.run_length() > kMaxBlockRun)
    throw failed("runs of {} symbols; at most {} are possible", layout.block.run_length(), kMaxBlockRun);
  const size_t rows = values.rows() / tokens, blocks = checked_mul(rows, layout.heads);
  if (blocks >= (uint64_t{1} << 31)) throw failed("{} blocks at once; a device takes less than 2^31", blocks);
  const bool brain = storage == DType::bf16;
  for (size_t i = 0; i < values.rows(); ++i)
    if (!all_finite(values.row(i), brain)) throw bad_input("token {} holds a value that is not finite", i);
  const size_t count = checked_mul(values.rows(), values.cols());
  const PackedRows packed(values);
  values_ = DeviceBuffer<uint16_t>(packed.values(), stream_);
  symbols_.resize(count);
  steps_.resize(blocks * layout.steps());
  origins_.resize(blocks * layout.origins());
  all_ = {.values = values_.data(),
          .symbols = symbols_.data(),
          .steps = steps_.data(),
          .origins = origins_.data(),
          .rows = static_cast<uint32_t>(rows),
          .heads = static_cast<uint32_t>(layout.heads),
          .tokens = static_cast<uint32_t>(tokens),
          .dims = static_cast<uint32_t>(dims),
          .steps_per_block = static_cast<uint32_t>(layout.steps()),
          .by_channel = layout.block.by_channel,
          .channel_steps = layout.unit == UnitShape::column,
          .has_origins = layout.has_origins,
          .brain = brain};
  stream_.run("quantizing blocks", run_kvcomp_quantize, all_,
              KvcompBound{bound.range, bound.absolute, bound.magnitude});
  stream_.synchronize();
}

EncodedBlocks QuantizedBlocks::encode(const BlockCoder& coder) const {
  if (coder.coder() != Coder::huffman)
    throw usage_error("blocks coded with rANS; a device encodes with Huffman codes only");
  const Stream& stream = stream_;
  const KvcompValues& v = all_;
  const size_t blocks = v.blocks();
  EncodedBlocks out;
  if (blocks == 0) return out;
  const std::vector<uint32_t> code_list = kvcomp_codes(coder.book());
  const DeviceBuffer<uint32_t> codes(code_list, stream);
  DeviceBuffer<uint32_t> run_bits(checked_mul(blocks, v.runs()));
  DeviceBuffer<KvcompSizes> sizes(blocks);
  DeviceBuffer<KvcompPlace> places(blocks);
  DeviceBuffer<unsigned long long> totals(4);
  const KvcompCoding coding{codes.data(), run_bits.data(), sizes.data(), places.data(), totals.data()};
  stream.run("counting bits", run_kvcomp_sizes, v, coding);
  const auto total = downloaded(totals, stream);
  DeviceBuffer<uint32_t> payload = zero_words(total[0], stream), counts = zero_words(total[1], stream),
                         origins = zero_words(total[2], stream);
  DeviceBuffer<uint16_t> steps(total[3]);
  stream.run("writing codes", run_kvcomp_write, v, coding,
             KvcompOut{payload.data(), counts.data(), origins.data(), steps.data()});
  for (const KvcompPlace& place : downloaded(places, stream)) {
    out.modes.push_back(place.mode);
    if (place.mode == kRawBlock) continue;
    out.sizes.push_back(place.payload_bytes);
    if (v.has_origins) out.origin_bits.push_back(place.origin_bits);
  }
  out.payload = bytes_of(payload, total[0], stream);
  out.counts = bytes_of(counts, total[1], stream);
  out.origins = bytes_of(origins, total[2], stream);
  out.steps = downloaded(steps, stream);
  return out;
}

}  // namespace kvcodec::cuda
