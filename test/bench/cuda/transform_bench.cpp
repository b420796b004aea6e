// The device twin of decoding in the codec transform: symbols of blocks, the values that their levels stand for,
// and vectors from values.
#include <cmath>
#include <cstring>

#include "cuda/transform/transform.cuh"
#include "cuda/transform/transform.hpp"
#include "lib/core/rng.hpp"
#include "lib/transform/basis.hpp"
#include "lib/transform/levels.hpp"
#include "test/bench/cuda/device_bench.hpp"

namespace kvcodec::bench {
namespace {

/// Classes of components that are coded at low rates, and typical levels of a class.
constexpr size_t kSmallClasses = 12;
double size_of_class(size_t level_class) { return std::exp2((static_cast<double>(level_class) - 4) / 2); }

LevelTables level_tables() {
  std::vector<LevelClass> classes;
  for (size_t c = 0; c < kLevelClasses; ++c) {
    std::vector<uint64_t> counts(kLevelSymbols);
    for (size_t s = 0; s < counts.size(); ++s)
      counts[s] =
          1 + static_cast<uint64_t>(1e5 * std::exp(-std::abs(static_cast<double>(s) - kLargestSymbol) /
                                                   (size_of_class(c) + 0.2)));
    LevelClass level_class{.model = RansModel::from_counts(counts, {.escape_bits = kEscapedBits})};
    for (float& shrink : level_class.shrink) shrink = 0.1f;
    classes.push_back(std::move(level_class));
  }
  return {std::move(classes), 0.12};
}

/// Blocks of one task, and the output of lib for them.
struct Blocks {
  Blocks(size_t block_count, size_t block_tokens, size_t components, size_t width)
      : tables(level_tables()),
        gains(random_floats(2, components)),
        mean(random_floats(3, width)),
        rows(components, width),
        count(block_count),
        tokens(block_tokens) {
    Rng rng(1);
    for (size_t i = 0; i < components; ++i) classes.push_back(static_cast<uint8_t>(rng.below(kSmallClasses)));
    const std::vector<float> of_rows = random_floats(4, rows.size());
    std::copy(of_rows.begin(), of_rows.end(), rows.data());
    const LevelCoder coder(tables, classes);
    Matrix<int32_t> levels(components, count * tokens);
    for (size_t i = 0; i < components; ++i)
      for (int32_t& level : levels.row(i))
        level = static_cast<int32_t>(size_of_class(classes[i]) * rng.normal());  // toward 0
    for (size_t block = 0; block < count; ++block) {
      begins.push_back(payload.size());
      bytes.push_back(coder.encode(levels.view().columns(block * tokens, tokens), payload));
    }
    begins.push_back(payload.size());
    uint64_t low_bits = 0;
    for (const uint8_t level_class : classes) low_bits += shift_of_class(level_class);
    low_bytes = (low_bits * tokens + 7) / 8;
    RowCoefficients coefficients(components, levels.cols());
    std::vector<float> values(levels.cols());
    for (size_t i = 0; i < components; ++i) {
      tables.reconstruct(classes[i], kStep, gains[i], levels.row(i), values);
      coefficients.append_row(values);
    }
    vectors = Matrix<float>(levels.cols(), width);
    RowSums(rows).add(coefficients, mean, vectors);
  }

  SynthesisTask task() const {
    return {.tables = tables, .classes = classes, .gains = gains, .step = kStep, .rows = rows, .mean = mean};
  }

  static constexpr float kStep = 0.4f;
  LevelTables tables;
  std::vector<uint8_t> classes, payload;
  std::vector<float> gains, mean;
  Matrix<float> rows, vectors;
  std::vector<uint64_t> begins;
  std::vector<uint32_t> bytes;
  size_t count, tokens;
  uint64_t low_bytes = 0;
};

/// The bytes of device memory that a launch reads and writes.
struct BlockSet {
  BlockSet(const Blocks& of, const cuda::Stream& stream)
      : payload(of.payload, stream),
        begins(of.begins, stream),
        symbols(of.classes.size() * of.count * of.tokens),
        escapes(of.classes.size() * of.count),
        raw_begins(of.count),
        damaged(1),
        values(symbols.size()),
        blocks{.payload = payload.data(),
               .begins = begins.data(),
               .count = static_cast<uint32_t>(of.count),
               .tokens = static_cast<uint32_t>(of.tokens),
               .low_bytes = static_cast<uint32_t>(of.low_bytes),
               .symbols = symbols.data(),
               .escapes_before = escapes.data(),
               .raw_begins = raw_begins.data(),
               .values = values.data(),
               .value_stride = of.count * of.tokens,
               .damaged = damaged.data()} {
    damaged.fill(0, stream);
    stream.synchronize();
  }

  cuda::DeviceBuffer<uint8_t> payload;
  cuda::DeviceBuffer<uint64_t> begins;
  cuda::DeviceBuffer<uint8_t> symbols;
  cuda::DeviceBuffer<uint32_t> escapes, raw_begins, damaged;
  cuda::DeviceBuffer<float> values;
  cuda::TransformBlocks blocks;
};

}  // namespace

void transform_cases(DeviceBench& bench) {
  const std::string symbols_name = "transform/symbols", values_name = "transform/values",
                    vectors_name = "transform/vectors";
  const size_t count = bench.small() ? 5 : 128, tokens = bench.small() ? 40 : 256;
  const size_t components = bench.small() ? 20 : 384, width = bench.small() ? 72 : 1024;
  const cuda::Stream& stream = bench.stream();
  const Blocks of(count, tokens, components, width);
  const cuda::VectorSynthesizer synthesizer(of.task());
  const cuda::TransformTables tables = synthesizer.tables();
  const double levels = static_cast<double>(components * count * tokens);
  const double payload = static_cast<double>(of.payload.size());
  std::vector<BlockSet> sets;
  for (size_t i = 0; i < bench.sets_of(payload + levels); ++i) sets.emplace_back(of, stream);
  cuda::DeviceBuffer<float> vectors(of.vectors.size());
  const auto read_symbols = [&](size_t set) {
    stream.run("launch", cuda::run_transform_symbols, tables, sets[set].blocks);
  };
  const auto make_values = [&](size_t set) {
    stream.run("launch", cuda::run_transform_values, tables, sets[set].blocks);
  };
  const auto make_vectors = [&](size_t set) {
    stream.run("launch", cuda::run_transform_vectors, tables,
               cuda::TokenValues{sets[set].values.data(), count * tokens, count * tokens}, vectors.data());
  };
  for (size_t set = 0; set < sets.size(); ++set) {
    vectors.fill(0xff, stream);
    read_symbols(set);
    make_values(set);
    make_vectors(set);
    const std::vector<float> found = read(vectors, stream);
    verify(read(sets[set].damaged, stream)[0] == 0, symbols_name);
    verify(std::memcmp(found.data(), of.vectors.data(), found.size() * sizeof(float)) == 0, vectors_name);
  }
  const std::string shape = fmt::format("{} blocks of {} tokens, {} components, {:.2f} bits each", count,
                                        tokens, components, 8 * payload / levels);
  if (bench.wanted(symbols_name))
    bench.measure(symbols_name, shape, {.bytes = payload + levels, .reported = levels, .unit = "G levels/s"},
                  sets.size(), read_symbols);
  if (bench.wanted(values_name))
    bench.measure(values_name, shape, {.bytes = 5 * levels, .reported = levels, .unit = "G levels/s"},
                  sets.size(), make_values);
  // The sums are fused one by one, in order, which matrix units do not do; the work counts each level's share.
  if (bench.wanted(vectors_name))
    bench.measure(vectors_name, fmt::format("{} x {} components x {}", count * tokens, components, width),
                  {.bytes = 4 * levels + 4 * static_cast<double>(of.vectors.size()),
                   .operations = 2 * levels * static_cast<double>(width),
                   .reported = 2 * levels * static_cast<double>(width),
                   .unit = "TFLOP/s"},
                  sets.size(), make_vectors);
}

}  // namespace kvcodec::bench
