#include "cuda/transform/transform.hpp"

#include <algorithm>
#include <vector>

#include "cuda/runtime/device_work.hpp"
#include "lib/core/aligned.hpp"

namespace kvcodec::cuda {
namespace {

static_assert(kTransformSymbols == kLevelSymbols + 1);
static_assert(kTransformClasses == kLevelClasses);
static_assert(kTransformEscapeBytes * 8 == kEscapedBits);

/// A row of a grid has 64 columns of a tile.
constexpr size_t kMaxWidth = kMaxGridRows * 64;
/// States of a block: what is there before its first word.
constexpr uint32_t kStateBytes = 32;

/// Whole bytes of so many bits of each token.
uint64_t bytes_of_bits(uint64_t bits, size_t tokens) { return (checked_mul(bits, tokens) + 7) / 8; }

/// Appends the guide of a class that components have, if its model has frequencies.
TransformClass class_on_device(const LevelClass& level_class, size_t number, bool used,
                               std::vector<uint8_t>& guides) {
  const RansModel& model = level_class.model;
  TransformClass result{};
  result.first_guide = static_cast<uint32_t>(guides.size());
  result.scale = model.scale();
  result.shift = shift_of_class(number);
  std::ranges::copy(level_class.shrink, result.shrink);
  const uint32_t part = 1u << (std::max(model.scale(), kTransformGuideBits) - kTransformGuideBits);
  for (size_t symbol = 0; symbol < kTransformSymbols; ++symbol) {
    const uint32_t start = model.start(symbol), end = start + model.frequency(symbol);
    result.ranges[symbol] = (start & 0xffff) | model.frequency(symbol) << 16;
    if (!used) continue;
    for (uint32_t slot = (start + part - 1) / part * part; slot < end; slot += part)
      guides.push_back(static_cast<uint8_t>(symbol + (slot + part > end ? kTransformSeveral : 0)));
  }
  return result;
}

}  // namespace

VectorSynthesizer::VectorSynthesizer(const SynthesisTask& task) : width_(task.mean.size()) {
  const size_t components = task.classes.size(), width = round_up(width_, 4);
  if (task.gains.size() != components)
    throw failed("{} gains of {} components", task.gains.size(), components);
  check_shape("rows", task.rows, components, components > 0 ? width_ : task.rows.cols());
  if (width_ > kMaxWidth)
    throw usage_error("vectors of {} values; a device takes at most {}", width_, kMaxWidth);
  std::vector<TransformClass> classes;
  std::vector<uint8_t> guides;
  for (size_t c = 0; c < kLevelClasses; ++c) {
    const bool used = std::ranges::find(task.classes, c) != task.classes.end();
    classes.push_back(class_on_device(task.tables[c], c, used, guides));
  }
  std::vector<float> units;
  std::vector<uint32_t> low_before;
  for (size_t i = 0; i < components; ++i) {
    units.push_back(task.step * task.gains[i]);
    low_before.push_back(static_cast<uint32_t>(low_bits_));
    low_bits_ += shift_of_class(task.classes[i]);
    const RansModel& model = task.tables[task.classes[i]].model;
    uint64_t frequencies = 0;
    for (size_t symbol = 0; symbol < kTransformSymbols; ++symbol) frequencies += model.frequency(symbol);
    decodable_ &= frequencies > 0;
  }
  const auto on_device = [&]<class T>(DeviceBuffer<T>& buffer, std::span<const T> host) {
    buffer = DeviceBuffer<T>(std::max<size_t>(host.size(), 1));
    buffer.upload(host, stream_);
  };
  on_device(classes_, std::span<const TransformClass>(classes));
  on_device(guides_, std::span<const uint8_t>(guides));
  on_device(component_class_, task.classes);
  on_device(units_, std::span<const float>(units));
  on_device(low_before_, std::span<const uint32_t>(low_before));
  const PackedRows rows(task.rows, width);
  std::vector<float> mean(task.mean.begin(), task.mean.end());
  mean.resize(width);
  on_device(rows_, rows.values());
  on_device(mean_, std::span<const float>(mean));
  stream_.synchronize();  // these vectors go away
  tables_ = {.classes = classes_.data(),
             .guides = guides_.data(),
             .component_class = component_class_.data(),
             .units = units_.data(),
             .low_before = low_before_.data(),
             .rows = rows_.data(),
             .mean = mean_.data(),
             .components = static_cast<uint32_t>(components),
             .width = static_cast<uint32_t>(width),
             .guide_bytes = static_cast<uint32_t>(guides.size())};
}

void VectorSynthesizer::decode(std::span<const uint8_t> payload, std::span<const uint32_t> block_bytes,
                               size_t tokens, MatrixView<float> out) const {
  const size_t blocks = block_bytes.size(), components = tables_.components, width = tables_.width;
  check_shape("vectors", out, blocks * tokens, width_);
  if (out.rows() == 0) return;
  if (!decodable_) throw bad_input("components of classes without frequencies");
  const uint64_t low = bytes_of_bits(low_bits_, tokens);
  const unsigned unused = static_cast<unsigned>(low * 8 - low_bits_ * tokens);
  std::vector<uint64_t> begins{0};
  for (const uint32_t bytes : block_bytes) {
    begins.push_back(begins.back() + bytes);
    if (bytes < kStateBytes + low || begins.back() > payload.size())
      throw bad_input("a block of {} bytes, of which {} are states and low bits", bytes, kStateBytes + low);
    if (low > 0 && (payload[begins.back() - 1] & ((1u << unused) - 1)) != 0)
      throw bad_input("bits behind the last low bits are not 0");
  }
  // Bytes of a token, beside its share of the payload.
  const uint64_t bytes = components * (sizeof(float) + 1 + 16) + width * sizeof(float) + 4;
  const size_t at_once = std::max<size_t>(1, DeviceWork::rows_at_once(bytes) / tokens);
  for (size_t first = 0; first < blocks; first += at_once) {
    const size_t count = std::min(at_once, blocks - first);
    const auto own = std::span(begins).subspan(first, count + 1);
    std::vector<uint64_t> from_zero(own.begin(), own.end());
    for (uint64_t& begin : from_zero) begin -= own.front();
    DeviceBuffer<uint8_t> coded(payload.subspan(own.front(), from_zero.back()), stream_),
        symbols(checked_mul(count * components, tokens));
    const uint64_t stride = round_up(count * tokens, size_t{4});
    DeviceBuffer<uint64_t> device_begins(std::span<const uint64_t>(from_zero), stream_);
    DeviceBuffer<uint32_t> escapes(count * components), raw_begins(count), damaged(1);
    DeviceBuffer<float> values(checked_mul(components, stride)), vectors(checked_mul(count * tokens, width));
    damaged.fill(0, stream_);
    const TransformBlocks piece{.payload = coded.data(),
                                .begins = device_begins.data(),
                                .count = static_cast<uint32_t>(count),
                                .tokens = static_cast<uint32_t>(tokens),
                                .low_bytes = static_cast<uint32_t>(low),
                                .symbols = symbols.data(),
                                .escapes_before = escapes.data(),
                                .raw_begins = raw_begins.data(),
                                .values = values.data(),
                                .value_stride = stride,
                                .damaged = damaged.data()};
    const auto refuse_damaged = [&] {
      if (downloaded(damaged, stream_)[0] != 0) throw bad_input("blocks that no encoder writes");
    };
    stream_.run("decoding levels", run_transform_symbols, tables_, piece);
    refuse_damaged();  // where escapes lie is known only of whole blocks
    stream_.run("reconstructing levels", run_transform_values, tables_, piece);
    stream_.run("adding components", run_transform_vectors, tables_,
                TokenValues{values.data(), count * tokens, stride}, vectors.data());
    refuse_damaged();
    download_rows(vectors, out.rows(first * tokens, count * tokens), stream_);
  }
}

// Parts that an engine provides ----------------------------------------------------------------------

/// Copies blocks there and vectors back.
static SynthesisFunction synthesis(const DeviceWork& device, const SynthesisTask& task) {
  return [&device, synthesizer = device.share(VectorSynthesizer(task))](
             std::span<const uint8_t> payload, std::span<const uint32_t> block_bytes, size_t tokens,
             MatrixView<float> out) {
    const auto run = [&] { synthesizer->decode(payload, block_bytes, tokens, out); };
    return device.try_run(run, DeviceWork::Bits::same, "transform: ");
  };
}

void add_synthesis(const DeviceWork& device) { device.offer<SynthesisOnDevice>("transform", synthesis); }

}  // namespace kvcodec::cuda
