// Attention of one step: all tokens, and 7.5% of them.
#include <cmath>

#include "cuda/attention/attention.cuh"
#include "cuda/attention/attention.hpp"
#include "lib/core/rng.hpp"
#include "test/bench/cuda/device_bench.hpp"

namespace kvcodec::bench {
namespace {

constexpr size_t kDims = 128;
constexpr unsigned kQueriesEach = 4;
constexpr double kChosenShare = 0.075;  // the paper's

bool near(const Matrix<float>& a, const Matrix<float>& b) {
  double off = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    off += std::pow(double{a.data()[i]} - double{b.data()[i]}, 2);
    size += std::pow(double{b.data()[i]}, 2);
  }
  return off <= 1e-10 * size;  // floats: far below 1e-5
}

}  // namespace

void attention_cases(DeviceBench& bench) {
  const size_t tokens = bench.small() ? 700 : 32768, heads = bench.small() ? 2 : 64;
  const auto chosen_count = static_cast<size_t>(kChosenShare * static_cast<double>(tokens));
  const std::vector<float> keys = random_floats(1, tokens * kDims), values = random_floats(2, tokens * kDims);
  const std::vector<float> some = random_floats(3, kQueriesEach * kDims);
  std::vector<uint32_t> all(tokens), chosen;
  for (size_t t = 0; t < tokens; ++t) all[t] = static_cast<uint32_t>(t);
  Rng rng(4);
  rng.shuffle(all);
  chosen.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(chosen_count));
  std::sort(chosen.begin(), chosen.end());

  const CacheRows rows({keys.data(), tokens, kDims}, {values.data(), tokens, kDims});
  const MatrixView<const float> queries(some.data(), kQueriesEach, kDims);
  Matrix<float> expected(kQueriesEach, kDims), found(kQueriesEach, kDims);
  attend(Attention{queries, &rows, expected});
  const Attention on_device{queries, &rows, found};
  cuda::attend({&on_device, 1});
  verify(near(found, expected), "attention over all tokens");

  // Every head has rows and ids of its own in memory, with the same content.
  const std::vector<float> all_queries = random_floats(5, heads * kQueriesEach * kDims);
  const cuda::DeviceBuffer<float> device_queries(all_queries, bench.stream());
  struct HeadRows {
    const float *keys, *values;
  };
  const auto measure = [&](const std::string& name, const std::vector<uint32_t>* ids,
                           const std::vector<HeadRows>& of_heads, double bytes_per_token) {
    const size_t sets = of_heads.size() / heads;
    const size_t count = ids ? ids->size() : tokens;
    cuda::DeviceBuffer<uint32_t> device_ids(ids ? heads * count : 0);
    if (ids)
      for (size_t head = 0; head < heads; ++head) device_ids.upload(*ids, bench.stream(), head * count);
    std::vector<cuda::AttentionItem> items;  // of all sets; the others are the first's with rows of their own
    std::vector<cuda::AttentionResult> results;
    for (size_t head = 0; head < heads; ++head) {
      const auto first_item = static_cast<uint32_t>(items.size()),
                 query = static_cast<uint32_t>(head * kQueriesEach);
      for (size_t first = 0; first < count; first += cuda::kSplitTokens)
        items.push_back({of_heads[head].keys, of_heads[head].values, ids ? device_ids.data() : nullptr,
                         static_cast<uint32_t>((ids ? head * count : 0) + first),
                         static_cast<uint32_t>(std::min<size_t>(cuda::kSplitTokens, count - first)), query});
      for (uint32_t q = 0; q < kQueriesEach; ++q)
        results.push_back({first_item, static_cast<uint32_t>(items.size()), q});
    }
    const size_t each = items.size();
    for (size_t set = 1; set < sets; ++set)
      for (size_t i = 0; i < each; ++i) {
        cuda::AttentionItem item = items[i];
        const HeadRows& own = of_heads[set * heads + item.query / kQueriesEach];
        item.keys = own.keys, item.values = own.values;
        items.push_back(item);
      }
    const cuda::DeviceBuffer<cuda::AttentionItem> device_items(items, bench.stream());
    const cuda::DeviceBuffer<cuda::AttentionResult> device_results(results, bench.stream());
    cuda::DeviceBuffer<float> states(each * kQueriesEach * 2), sums(each * kQueriesEach * kDims);
    cuda::DeviceBuffer<float> out(results.size() * kDims);
    bench.measure(name, fmt::format("{} heads x {} of {}, {} queries", heads, count, tokens, kQueriesEach),
                  {.bytes = static_cast<double>(heads * count) * bytes_per_token}, sets, [&](size_t set) {
                    const cuda::AttentionItems work{device_items.data() + set * each,
                                                    each,
                                                    kQueriesEach,
                                                    kDims,
                                                    device_queries.data(),
                                                    states.data(),
                                                    sums.data()};
                    bench.stream().run("attention", cuda::run_attention_items, work);
                    bench.stream().run("joining attention", cuda::run_attention_join, work,
                                       device_results.data(), results.size(), out.data());
                  });
  };
  std::vector<HeadRows> of_heads;
  const bool dense = bench.wanted("attention/dense"), of_chosen = bench.wanted("attention/chosen");
  if (dense || of_chosen) {
    constexpr double kBytesPerToken = 8.0 * kDims;
    // The chosen rows of one set lie in the second-level cache in part.
    const size_t sets =
        of_chosen ? bench.sets_of(static_cast<double>(heads * chosen_count) * kBytesPerToken) : 1;
    const size_t places = heads * sets;
    cuda::DeviceBuffer<float> all_keys(places * keys.size()), all_values(places * values.size());
    for (size_t head = 0; head < places; ++head) {
      all_keys.upload(keys, bench.stream(), head * keys.size());
      all_values.upload(values, bench.stream(), head * values.size());
      of_heads.push_back({all_keys.data() + head * keys.size(), all_values.data() + head * values.size()});
    }
    if (of_chosen) measure("attention/chosen", &chosen, of_heads, kBytesPerToken + 4);
    of_heads.resize(heads);
    if (dense) measure("attention/dense", nullptr, of_heads, kBytesPerToken);
  }
}

}  // namespace kvcodec::bench
