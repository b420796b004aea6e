// kvcodec_bench_signvq: retrieval from sign codes at d = 128 (16 bytes a key): table, scores and top-100 of
// one query, scores alone against OpenBLAS's sgemv over float keys, one-pass codebooks against k-means.
//
//   kvcodec_bench_signvq [--export DIR | --top-only | --choice-only]
//
// test/bench/peers_signvq.py measures faiss on the same keys and query: --export writes them
// (DIR/keys_<tokens>.f32, DIR/query.f32) instead of measuring. --top-only measures the second table only, --choice-only
// the first: tokens for the four query heads of a key/value head, by the rule of select and eval-model.
#include <cstring>
#include <filesystem>

#include <cblas.h>

#include "lib/attention/selector.hpp"
#include "lib/core/rng.hpp"
#include "lib/selfindex/sign_index.hpp"
#include "test/bench/bench.hpp"

using namespace kvcodec;

namespace {

constexpr size_t kDims = 128, kWanted = 100;
constexpr size_t kTokens[] = {32768, 131072, 1048576};

/// Keys typical for attention: a few loud channels, the others alike.
Matrix<float> make_keys(size_t tokens) {
  Rng rng(tokens);
  Matrix<float> keys(tokens, kDims);
  for (size_t i = 0; i < tokens; ++i)
    for (size_t j = 0; j < kDims; ++j) keys(i, j) = static_cast<float>(rng.normal() * (j % 16 == 0 ? 3 : 1));
  return keys;
}

std::vector<float> make_query() {
  Rng rng(9);
  std::vector<float> query(kDims);
  for (auto& value : query) value = static_cast<float>(rng.normal());
  return query;
}

struct Index {
  Matrix<uint8_t> codes;
  SignCodebook codebook;
  SignIndex index{kDims};

  explicit Index(const Matrix<float>& keys) : codes(keys.rows(), kDims / 8) {
    encode_signs(keys, 1, codes);
    codebook = build_codebooks(keys, codes, 1)[0];
    index.append(codes);
  }
};

std::string microseconds(const bench::Times& times) {
  return fmt::format("{:8.1f} us ({:.1f} .. {:.1f})", times.median() * 1e6, times.min() * 1e6,
                     times.max() * 1e6);
}

int repeats_for(size_t tokens) { return static_cast<int>(std::max<size_t>(101, (size_t{1} << 26) / tokens)); }

void measure_top(const Index& made, const std::vector<float>& query) {
  std::vector<float> scores(made.index.tokens());
  for (const int threads : {1, 2}) {
    set_num_threads(threads);
    const bench::Times times = bench::measure(repeats_for(made.index.tokens()), [&] {
      const SignTable fresh(made.codebook, query);
      made.index.scores(fresh, scores);
      bench::check(top_k(scores, kWanted).size() == kWanted, "count");
    });
    fmt::print("table + scores + top-{}  {:8} keys  {} thread{} {:>32}  {:.1f} GB/s of codes\n", kWanted,
               made.index.tokens(), threads, threads == 1 ? " " : "s", microseconds(times),
               double(made.index.tokens()) * kDims / 8 / times.median() * 1e-9);
  }
}

void measure_scores(const Matrix<float>& keys, const Index& made, const std::vector<float>& query) {
  const size_t tokens = keys.rows();
  std::vector<float> scores(tokens), products(tokens);
  const SignTable table(made.codebook, query);
  for (const int threads : {1, 2}) {
    set_num_threads(threads);
    const bench::Times gemv = bench::measure(tokens > 200000 ? 21 : 101, [&] {
      cblas_sgemv(CblasRowMajor, CblasNoTrans, static_cast<blasint>(tokens), kDims, 1, keys.data(), kDims,
                  query.data(), 1, 0, products.data(), 1);
    });
    const bench::Times exact = bench::measure(repeats_for(tokens), [&] { made.index.scores(table, scores); });
    fmt::print("scores  {:8} keys  {} thread{}  sgemv {:>32}  floats {:>28} = {:.1f}x\n", tokens, threads,
               threads == 1 ? " " : "s", microseconds(gemv), microseconds(exact),
               gemv.median() / exact.median());
  }
}

/// Codes and codebooks of one head, from keys in floats; the floor is reading the keys twice.
void measure_codebooks(const Matrix<float>& keys) {
  Matrix<uint8_t> codes(keys.rows(), kDims / 8);
  for (const int threads : {1, 2}) {
    set_num_threads(threads);
    const bench::Times encode = bench::measure(21, [&] { encode_signs(keys, 1, codes); });
    const bench::Times build = bench::measure(21, [&] { build_codebooks(keys, codes, 1); });
    fmt::print(
        "codebooks  {:8} keys  {} thread{}  codes {:>32}  one-pass codebooks {:>32}  together {:.3f} ms\n",
        keys.rows(), threads, threads == 1 ? " " : "s", microseconds(encode), microseconds(build),
        (encode.median() + build.median()) * 1e3);
  }
}

/// Clusters of the keys, one for 80 tokens, as kvcodec index makes them.
ClusterIndex clusters_of(const Matrix<float>& keys) {
  const ClusterOptions options;
  ClusterIndex index(kDims, static_cast<uint64_t>(options.sink));
  const uint64_t end = keys.rows();
  const ClusterTask task{.index = &index, .keys = keys, .ends = {&end, 1}};
  (void)add_batches({&task, 1}, options, 0);
  return index;
}

/// One choice for a group of query heads, by the mean of their weights: by products with all keys; by sign codes; and by
/// these, or clusters, with products of candidates.
void measure_choice(size_t tokens) {
  constexpr size_t kGroup = 4, kBudget = 1024, kCandidates = 4;
  const Matrix<float> keys = make_keys(tokens);
  const Index made(keys);
  const OracleSelector products(keys);
  const SignSelector signs({made.codebook, std::vector<float>(kDims)}, made.index);
  const ClusterIndex index = clusters_of(keys);
  const ClusterSelector clusters(index, tokens);
  Rng rng(10);
  Matrix<float> queries(kGroup, kDims), scores(kGroup, tokens);
  for (size_t i = 0; i < queries.size(); ++i) queries.data()[i] = static_cast<float>(rng.normal());
  const TokenChoice choice{.queries = queries, .visible = tokens, .budget = kBudget, .newest = 4, .sink = 4};
  const auto measured = [&](const Selector& selector, uint64_t candidates) {
    return bench::measure(static_cast<int>(std::max<size_t>(21, (size_t{1} << 22) / tokens)), [&] {
      selector.scores(queries, scores);
      const auto chosen = choose_tokens(choice, {.candidates = candidates}, keys, scores);
      bench::check(chosen.size() == kBudget, "count");
    });
  };
  set_num_threads(1);
  const bench::Times all = measured(products, 1), alone = measured(signs, 1),
                     refined = measured(signs, kCandidates), coarse = measured(clusters, kCandidates);
  fmt::print("choice of {} for {} query heads  {:8} keys  products {:>32}\n", kBudget, kGroup, tokens,
             microseconds(all));
  const auto print = [&](std::string_view method, const bench::Times& times) {
    fmt::print("  {:32} {:>32} = {:.1f}x\n", method, microseconds(times), all.median() / times.median());
  };
  print("signs", alone);
  print(fmt::format("signs, products of {}", kCandidates * kBudget), refined);
  print(fmt::format("clusters, products of {}", kCandidates * kBudget), coarse);
}

void write(const std::string& file, const float* values, size_t count) {
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(values), static_cast<std::streamsize>(count * sizeof(float)));
  out.close();
  bench::check(bool(out), "writing " + file);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<float> query = make_query();
  if (argc == 3 && std::strcmp(argv[1], "--export") == 0) {
    std::filesystem::create_directories(argv[2]);
    write(fmt::format("{}/query.f32", argv[2]), query.data(), query.size());
    for (const size_t tokens : kTokens) {
      const Matrix<float> keys = make_keys(tokens);
      write(fmt::format("{}/keys_{}.f32", argv[2], tokens), keys.data(), keys.size());
    }
    return 0;
  }
  const bool top_only = argc == 2 && std::strcmp(argv[1], "--top-only") == 0;
  const bool choice_only = argc == 2 && std::strcmp(argv[1], "--choice-only") == 0;
  bench::print_header("sign codes");
  for (const size_t tokens : {8192, 32768, 131072})
    if (!top_only) measure_choice(tokens);
  if (choice_only) return 0;
  for (const size_t tokens : kTokens) {
    const Matrix<float> keys = make_keys(tokens);
    const Index made(keys);
    measure_top(made, query);
    if (top_only) continue;
    measure_scores(keys, made, query);
    measure_codebooks(keys);
  }
}
