// Codebooks of sign codes, scores from codes, and the same scores by plain products in f16.
#include <algorithm>

#include "cuda/selfindex/signvq.cuh"
#include "cuda/selfindex/signvq.hpp"
#include "lib/core/half.hpp"
#include "lib/selfindex/sign_index.hpp"
#include "test/bench/cuda/device_bench.hpp"

namespace kvcodec::bench {
namespace {

void codebook_case(DeviceBench& bench) {
  if (!bench.wanted("signvq/codebooks")) return;
  const size_t tokens = bench.small() ? 700 : 32768, heads = bench.small() ? 2 : 16, dims = 128;
  const std::vector<float> values = random_floats(1, tokens * heads * dims);
  const MatrixView<const float> rows(values.data(), tokens, heads * dims);
  Matrix<uint8_t> codes(tokens, heads * sign_row_bytes(dims));
  encode_signs(rows, heads, codes);
  const auto books = build_codebooks(rows, codes, heads), found = cuda::build_codebooks(rows, heads);
  for (size_t head = 0; head < heads; ++head)
    verify(std::equal(found[head].centroids.data(), found[head].centroids.data() + dims * kSignCodes,
                      books[head].centroids.data()),
           "codebooks");

  const double bytes = static_cast<double>(values.size()) * 4;
  const size_t sets = bench.sets_of(bytes);
  std::vector<cuda::DeviceBuffer<float>> device_rows;
  for (size_t set = 0; set < sets; ++set) device_rows.emplace_back(values, bench.stream());
  cuda::SignSums all{.tokens = tokens, .heads = heads, .dims = dims};
  cuda::DeviceBuffer<double> sums(heads * all.pieces() * dims * kSignCodes);
  cuda::DeviceBuffer<uint32_t> counts(heads * all.pieces() * dims / kSignGroup * kSignCodes);
  cuda::DeviceBuffer<float> centroids(heads * dims * kSignCodes);
  all.sums = sums.data(), all.counts = counts.data();
  bench.measure("signvq/codebooks", fmt::format("{} x {} x {} f32", tokens, heads, dims), {.bytes = bytes},
                sets, [&](size_t set) {
                  all.rows = device_rows[set].data();
                  bench.stream().run("codebooks", cuda::run_sign_codebooks, all, centroids.data());
                });
}

void retrieval_cases(DeviceBench& bench) {
  const size_t tokens = bench.small() ? 700 : 65536, heads = bench.small() ? 2 : 64, dims = 128;
  const size_t row_bytes = sign_row_bytes(dims), groups = dims / kSignGroup;
  const std::vector<float> values = random_floats(2, tokens * dims), query = random_floats(3, heads * dims);
  Matrix<uint8_t> codes(tokens, row_bytes);
  const MatrixView<const float> rows(values.data(), tokens, dims);
  encode_signs(rows, 1, codes);
  const auto book = build_codebooks(rows, codes, 1)[0];
  // All heads have the same codes, in separate memory: the timing does not change.
  std::vector<SignTable> tables;
  SignIndex reference(dims);
  reference.append(codes);
  for (size_t head = 0; head < 2; ++head)
    tables.emplace_back(book, std::span(query).subspan(head * dims, dims));
  Matrix<float> expected(2, tokens), found(2, tokens);
  for (size_t head = 0; head < 2; ++head) reference.scores(tables[head], expected.row(head));
  cuda::DeviceSignIndex(dims, codes).scores(tables, found);
  verify(std::equal(found.data(), found.data() + found.size(), expected.data()), "scores");

  const double bytes = static_cast<double>(heads * tokens) * static_cast<double>(row_bytes + 4);
  const size_t sets = bench.sets_of(bytes);
  std::vector<float> all_tables;
  for (size_t head = 0; head < heads; ++head) {
    const SignTable table(book, std::span(query).subspan(head * dims, dims));
    all_tables.insert(all_tables.end(), table.exact().begin(), table.exact().end());
  }
  const cuda::DeviceBuffer<float> device_tables(all_tables, bench.stream());
  std::vector<cuda::DeviceBuffer<uint8_t>> device_codes;
  std::vector<cuda::DeviceBuffer<cuda::SignKeys>> keys;
  std::vector<cuda::DeviceBuffer<float>> scores;
  for (size_t set = 0; set < sets; ++set) {
    auto& all = device_codes.emplace_back(heads * codes.size());
    std::vector<cuda::SignKeys> own;
    for (size_t head = 0; head < heads; ++head) {
      all.upload({codes.data(), codes.size()}, bench.stream(), head * codes.size());
      own.push_back({all.data() + head * codes.size(), tokens});
    }
    keys.emplace_back(own, bench.stream());
    scores.emplace_back(heads * tokens);
    bench.stream().synchronize();
  }
  const std::string shape = fmt::format("{} heads x {} x {}", heads, tokens, dims);
  const auto scores_of = [&](const cuda::SignKeys* of_queries, bool in_pairs, size_t set) {
    bench.stream().run("scores", cuda::run_sign_scores,
                       cuda::SignScores{.keys = of_queries,
                                        .queries = heads,
                                        .max_tokens = tokens,
                                        .tables = device_tables.data(),
                                        .groups = static_cast<unsigned>(groups),
                                        .row_bytes = static_cast<unsigned>(row_bytes),
                                        .in_pairs = in_pairs,
                                        .scores = scores[set].data(),
                                        .score_stride = tokens});
  };
  const auto run_scores = [&](size_t set) { scores_of(keys[set].data(), false, set); };
  for (size_t set = 0; set < sets; ++set) run_scores(set);
  if (bench.wanted("signvq/scores"))
    bench.measure("signvq/scores", shape, {.bytes = bytes}, sets, run_scores);
  if (bench.wanted("signvq/scores, shared keys")) {
    const size_t shared = bench.small() ? 2 : 4;  // queries of a head of keys, as in Llama 3
    std::vector<cuda::DeviceBuffer<cuda::SignKeys>> of_queries;
    for (size_t set = 0; set < sets; ++set) {
      std::vector<cuda::SignKeys> own;
      for (size_t head = 0; head < heads; ++head)
        own.push_back({device_codes[set].data() + head / shared * codes.size(), tokens});
      of_queries.emplace_back(own, bench.stream());
      bench.stream().synchronize();
    }
    const auto all = static_cast<double>(heads * tokens);
    const auto in_pairs = [&](size_t set) { scores_of(of_queries[set].data(), true, set); };
    // The same codes and queries as in the case where each head has its own keys.
    const std::vector<float> apart = read(scores[0], bench.stream());
    scores[0].fill(0xff, bench.stream());
    in_pairs(0);
    verify(read(scores[0], bench.stream()) == apart, "scores of queries that share keys");
    bench.measure("signvq/scores, shared keys", shape + fmt::format(", {} to a head of keys", shared),
                  {.bytes = all * (4 + static_cast<double>(row_bytes) / static_cast<double>(shared))}, sets,
                  in_pairs);
  }
  const LibraryProducts library(bench.stream());
  if (!library.available() || !bench.wanted("signvq/products bf16 (library)")) return;
  std::vector<uint16_t> halves(tokens * dims), half_queries(heads * dims);
  narrow(DType::bf16, values, halves);
  narrow(DType::bf16, query, half_queries);
  cuda::DeviceBuffer<uint16_t> all_keys(heads * halves.size());  // their assignment does not matter
  cuda::DeviceBuffer<float> products(heads * tokens);
  for (size_t head = 0; head < heads; ++head) all_keys.upload(halves, bench.stream(), head * halves.size());
  const cuda::DeviceBuffer<uint16_t> device_queries(half_queries, bench.stream());
  bench.measure("signvq/products bf16 (library)", shape,
                {.bytes = static_cast<double>(heads * tokens) * static_cast<double>(2 * dims + 4)}, 1,
                [&](size_t) {
                  library.multiply_keys({tokens, heads, dims, 1}, all_keys.data(), device_queries.data(),
                                        products.data());
                });
}

}  // namespace

void signvq_cases(DeviceBench& bench) {
  bench.attempt("signvq, codebooks", [&] { codebook_case(bench); });
  bench.attempt("signvq, retrieval", [&] { retrieval_cases(bench); });
}

}  // namespace kvcodec::bench
