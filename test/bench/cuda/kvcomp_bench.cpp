// The device twin of kvcomp: decoding, and products with keys and values straight from blocks, beside the
// library's products with 16-bit keys and values. Rates count the 16-bit values that are decoded or taken
// part of: 2 bytes each.
#include <cmath>
#include <cstring>

#include "cuda/kvcomp/kvcomp.cuh"
#include "cuda/kvcomp/kvcomp.hpp"
#include "cuda/kvcomp/kvcomp_encode.cuh"
#include "cuda/kvcomp/kvcomp_encode.hpp"
#include "test/bench/cuda/device_bench.hpp"
#include "test/cuda/kvcomp_data.hpp"

namespace kvcodec::bench {
namespace {

constexpr uint32_t kNoneDamaged = ~uint32_t{0};
constexpr unsigned kPerHead = 4;  ///< queries that share a head, as in Llama 3

/// The same blocks several times in device memory.
struct Sets {
  Sets(const test::KvcompDocument& document, const DeviceBench& bench) : tokens(document.tokens()) {
    const auto& encoded = *document.encoded;
    for (const std::string_view stream : {kvcomp::kPayload, kvcomp::kCounts, kvcomp::kSteps})
      bytes += static_cast<double>(encoded.bytes(stream).size());
    if (document.layout.has_origins) bytes += static_cast<double>(encoded.bytes(kvcomp::kOrigins).size());
    for (size_t i = 0; i < bench.sets_of(bytes); ++i) {
      blocks.emplace_back(document.layout, DType::bf16, document.blocks(0, document.block_rows));
      stores.push_back(blocks.back().store());
    }
  }
  cuda::KvcompRange all() const { return {0, tokens}; }

  size_t tokens;
  double bytes = 0;  ///< of all that a launch reads
  std::vector<cuda::DeviceBlocks> blocks;
  std::vector<cuda::KvcompStore> stores;
};

Matrix<float> random_matrix(size_t rows, size_t cols, Rng& rng) {
  Matrix<float> out(rows, cols);
  for (size_t i = 0; i < out.size(); ++i) out.data()[i] = static_cast<float>(rng.normal());
  return out;
}

/// Some of the results against sums in double: at(i, j) of (rows, cols) is the sum of terms(i, j, k), k < n,
/// each a sum and the magnitude of what is added up for it.
template <class At, class Term>
void check_sums(size_t rows, size_t cols, size_t n, const std::string& what, At&& at, Term&& term) {
  // Only some of the results, at an odd step that reaches all rows and columns: 2^25 terms take a moment.
  const size_t some = std::clamp<size_t>((size_t{1} << 25) / std::max<size_t>(n, 1), 64, 4096);
  const size_t step = std::max<size_t>(1, rows * cols / some) | 1;
  for (size_t place = 0; place < rows * cols; place += step) {
    const size_t i = place / cols, j = place % cols;
    double sum = 0, magnitude = 0;
    for (size_t k = 0; k < n; ++k) {
      const auto [one, of_one] = term(i, j, k);
      sum += one, magnitude += of_one;
    }
    verify(std::abs(at(i, j) - sum) <= 4 * (static_cast<double>(n) + 16) * 0x1p-24 * magnitude + 1e-30, what);
  }
}

/// Products of vectors, kPerHead of each head, with keys or values (tokens, heads * dims) of a document.
void check_products(const test::KvcompDocument& document, const Matrix<float>& vectors,
                    const Matrix<float>& values, const std::vector<float>& found, const std::string& what) {
  const size_t n = values.rows(), dims = document.layout.block.dims, block = document.layout.block.tokens;
  if (document.layout.block.by_channel)
    return check_sums(
        vectors.rows(), dims, n, what, [&](size_t q, size_t c) { return double{found[q * dims + c]}; },
        [&](size_t q, size_t c, size_t t) {
          const double term = double{vectors(q, t)} * double{values(t, q / kPerHead * dims + c)};
          return std::pair(term, std::abs(term));
        });
  const auto units = document.units();
  check_sums(
      vectors.rows(), n, dims, what, [&](size_t q, size_t t) { return double{found[q * n + t]}; },
      [&](size_t q, size_t t, size_t c) {
        const size_t column = q / kPerHead * dims + c;
        const double query = vectors(q, c), key = values(t, column),
                     origin = units.origins(t / block, column);
        return std::pair(query * key, std::abs(query) * (std::abs(key - origin) + std::abs(origin)));
      });
}

void run(DeviceBench& bench, Side side, size_t tokens) {
  const bool keys = side == Side::key;
  const size_t heads = bench.small() ? 2 : 8, dims = bench.small() ? 32 : 128;
  const std::string decode_name = fmt::format("kvcomp/decode-{}s", name_of(side));
  const std::string product_name = fmt::format("kvcomp/multiply-{}s", name_of(side));
  if (!bench.wanted(decode_name) && !bench.wanted(product_name)) return;
  const test::KvcompDocument document(
      {.side = side, .block = 64, .heads = heads, .dims = dims, .tokens = tokens, .outliers = 0}, 1);
  const Sets sets(document, bench);
  const size_t n = document.tokens(), width = heads * dims, rows = heads * kPerHead;
  const double equivalent = 2.0 * static_cast<double>(n) * static_cast<double>(width);
  const std::string shape = fmt::format("{} tokens, {:.2f} bit/value", n, sets.bytes * 16 / equivalent);
  const Matrix<float> values = document.decoded(0, n);
  cuda::DeviceBuffer<uint32_t> damaged(1);
  damaged.fill(0xff, bench.stream());
  const auto launched = [](cuda::Status status) { cuda::check(status, "launch"); };
  const auto work = [&](size_t set) -> cuda::KvcompWork {
    return {sets.stores[set], sets.all(), damaged.data(), bench.stream().handle()};
  };

  if (bench.wanted(decode_name)) {
    cuda::DeviceBuffer<float> decoded(n * width);
    const auto decode = [&](size_t set) {
      launched(cuda::run_kvcomp_decode(work(set), decoded.data(), width));
    };
    for (size_t set = 0; set < sets.stores.size(); ++set) {
      decoded.fill(0xff, bench.stream());
      decode(set);
      verify(std::ranges::equal(read(decoded, bench.stream()), std::span(values.data(), values.size())),
             decode_name);
    }
    bench.measure(decode_name, shape, {sets.bytes + 2 * equivalent, 0, equivalent}, sets.stores.size(),
                  decode);
  }
  if (bench.wanted(product_name)) {
    Rng rng(2);
    const Matrix<float> vectors = random_matrix(rows, keys ? dims : n, rng);
    const cuda::DeviceBuffer<float> device_vectors({vectors.data(), vectors.size()}, bench.stream());
    cuda::DeviceBuffer<float> sums(rows * (keys ? n : dims));
    cuda::DeviceBuffer<float> partial(keys ? 0 : cuda::kvcomp_partial_sums(work(0), kPerHead));
    const auto multiply = [&](size_t set) {
      launched(keys ? cuda::run_kvcomp_keys(work(set), device_vectors.data(), kPerHead, sums.data(), n)
                    : cuda::run_kvcomp_values(work(set), device_vectors.data(), n, kPerHead, partial.data(),
                                              sums.data()));
    };
    sums.fill(0xff, bench.stream());
    multiply(0);
    check_products(document, vectors, values, read(sums, bench.stream()), product_name);
    const double moved = sets.bytes + 4.0 * static_cast<double>(vectors.size() + sums.size());
    bench.measure(product_name, shape, {moved, 0, equivalent}, sets.stores.size(), multiply);

    // The baseline: the same values in 16 bits.
    std::vector<uint16_t> halves(values.size());
    narrow(DType::bf16, {values.data(), values.size()}, halves);
    std::vector<uint16_t> half_vectors(vectors.size());
    narrow(DType::bf16, {vectors.data(), vectors.size()}, half_vectors);
    std::vector<cuda::DeviceBuffer<uint16_t>> plain;
    for (size_t i = 0; i < bench.sets_of(equivalent); ++i) plain.emplace_back(halves, bench.stream());
    const cuda::DeviceBuffer<uint16_t> plain_vectors(half_vectors, bench.stream());
    const LibraryProducts library(bench.stream());
    const HeadProducts shapes{n, heads, dims, kPerHead};
    bench.stream().synchronize();
    if (library.available()) {
      const double bytes =
          equivalent + 2.0 * static_cast<double>(vectors.size()) + 4.0 * static_cast<double>(sums.size());
      bench.measure(product_name + "-library", fmt::format("{} tokens, bf16", n), {bytes, 0, equivalent},
                    plain.size(), [&](size_t set) {
                      if (keys)
                        library.multiply_keys(shapes, plain[set].data(), plain_vectors.data(), sums.data());
                      else
                        library.multiply_values(shapes, plain[set].data(), plain_vectors.data(), sums.data());
                    });
    }
  }
  uint32_t found = 0;
  damaged.download({&found, 1}, bench.stream());
  bench.stream().synchronize();
  verify(found == kNoneDamaged, decode_name + ": a block was found damaged");
}

/// Quantization, the histogram, and coding with the book that a survey made.
void run_encode(DeviceBench& bench, Side side, size_t tokens) {
  const std::string quantize_name = fmt::format("kvcomp/quantize-{}s", name_of(side));
  const std::string count_name = fmt::format("kvcomp/histogram-{}s", name_of(side));
  const std::string encode_name = fmt::format("kvcomp/encode-{}s", name_of(side));
  if (!bench.wanted(quantize_name) && !bench.wanted(count_name) && !bench.wanted(encode_name)) return;
  const size_t heads = bench.small() ? 2 : 8, dims = bench.small() ? 32 : 128;
  const test::KvcompDocument document(
      {.side = side, .block = 64, .heads = heads, .dims = dims, .tokens = tokens, .outliers = 0}, 1);
  Matrix<uint16_t> rows(tokens, heads * dims);
  narrow(DType::bf16, {document.rows.data(), document.rows.size()}, {rows.data(), rows.size()});
  const ErrorBound bound{.range = side == Side::key ? 0.125 : 0.075};  // the codec's defaults
  std::vector<cuda::QuantizedBlocks> sets;
  const double values = 2.0 * static_cast<double>(rows.size());
  for (size_t i = 0; i < bench.sets_of(values); ++i)
    sets.emplace_back(document.layout, DType::bf16, bound, rows);
  const auto& reader = document.document();
  const BlockCoder coder =
      BlockCoder::read(reader.read<uint8_t>(kvcomp::kBook, 0, reader.rows(kvcomp::kBook), 1));
  const cuda::EncodedBlocks found = sets[0].encode(coder);
  const auto stored = document.encoded->bytes(kvcomp::kPayload);
  verify(found.payload.size() == stored.size() &&
             std::equal(stored.begin(), stored.end(), std::as_bytes(std::span(found.payload)).begin()),
         encode_name);
  const std::string shape = fmt::format("{} tokens", tokens);
  const auto& stream = bench.stream();
  const auto launched = [](cuda::Status status) { cuda::check(status, "launch"); };
  if (bench.wanted(quantize_name))
    bench.measure(quantize_name, shape, {1.5 * values, 0, values}, sets.size(), [&](size_t set) {
      launched(cuda::run_kvcomp_quantize(sets[set].values(), {bound.range, bound.absolute, bound.magnitude},
                                         stream.handle()));
    });
  cuda::DeviceBuffer<unsigned long long> counts(256), totals(4);
  if (bench.wanted(count_name)) {
    std::vector<unsigned long long> expected(256);
    for (const uint8_t symbol : sets[0].symbols()) ++expected[symbol];
    counts.fill(0, stream);
    launched(
        cuda::run_kvcomp_histogram(sets[0].values().symbols, rows.size(), counts.data(), stream.handle()));
    verify(read(counts, stream) == expected, count_name);
    bench.measure(count_name, shape, {values / 2, 0, values}, sets.size(), [&](size_t set) {
      launched(cuda::run_kvcomp_histogram(sets[set].values().symbols, rows.size(), counts.data(),
                                          stream.handle()));
    });
  }
  if (!bench.wanted(encode_name)) return;
  const size_t blocks = document.block_rows * heads;
  const std::vector<uint32_t> of_book = cuda::kvcomp_codes(coder.book());
  const cuda::DeviceBuffer<uint32_t> codes(of_book, stream);
  cuda::DeviceBuffer<uint32_t> run_bits(blocks * document.layout.block.runs());
  cuda::DeviceBuffer<cuda::KvcompSizes> sizes(blocks);
  cuda::DeviceBuffer<cuda::KvcompPlace> places(blocks);
  cuda::DeviceBuffer<uint32_t> payload(found.payload.size() / 4 + 1), run_counts(found.counts.size() / 4 + 1),
      origins(found.origins.size() / 4 + 1);
  cuda::DeviceBuffer<uint16_t> steps(found.steps.size());
  stream.synchronize();
  const auto encode = [&](size_t set) {
    const cuda::KvcompValues all = sets[set].values();
    payload.fill(0, stream);
    run_counts.fill(0, stream);
    origins.fill(0, stream);
    const cuda::KvcompCoding coding{codes.data(), run_bits.data(), sizes.data(), places.data(),
                                    totals.data()};
    stream.run("launch", cuda::run_kvcomp_sizes, all, coding);
    stream.run("launch", cuda::run_kvcomp_write, all, coding,
               cuda::KvcompOut{payload.data(), run_counts.data(), origins.data(), steps.data()});
  };
  for (size_t set = 0; set < sets.size(); ++set) {
    encode(set);
    const std::vector<uint32_t> words = read(payload, stream);
    verify(std::memcmp(words.data(), stored.data(), stored.size()) == 0, encode_name);
  }
  bench.measure(encode_name, shape, {values / 2 + static_cast<double>(stored.size()), 0, values}, sets.size(),
                encode);
}

}  // namespace

void kvcomp_cases(DeviceBench& bench) {
  for (const size_t tokens :
       bench.small() ? std::vector<size_t>{256} : std::vector<size_t>{8192, 32768, 131072})
    for (const Side side : kSides)
      bench.attempt(fmt::format("kvcomp, {}s, {} tokens", name_of(side), tokens),
                    [&] { run(bench, side, tokens); });
  for (const Side side : kSides)
    bench.attempt(fmt::format("kvcomp, encoding {}s", name_of(side)),
                  [&] { run_encode(bench, side, bench.small() ? 256 : 32768); });
}

}  // namespace kvcodec::bench
