#include "cuda/attention/attention.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "cuda/attention/attention.cuh"
#include "cuda/runtime/device_work.hpp"
#include "lib/core/aligned.hpp"

namespace kvcodec::cuda {
namespace {

/// Bytes of device memory that queries of one head take beside rows, for so many tokens; about.
uint64_t scratch_bytes(size_t queries, uint64_t tokens, size_t dims) {
  const uint64_t padded = std::bit_ceil(queries), groups = round_up(padded, kMaxQueries) / kMaxQueries;
  const uint64_t items = round_up(tokens, uint64_t{kSplitTokens}) / kSplitTokens * padded;
  return items * (sizeof(AttentionItem) + (dims + 2) * sizeof(float)) + padded * dims * 2 * sizeof(float) +
         groups * tokens * sizeof(uint32_t);  // each group has a list of its own, if there is one
}

/// Heads that are on the device together. All queries of one group stand one behind the other, filled up to
/// `each` with zeros, and a group's results are joined from its items.
class Work {
 public:
  /// each: queries that share one pass over the rows.
  Work(unsigned each, size_t dims) : dims_(dims) {
    all_.queries_each = each;
    all_.dims = static_cast<unsigned>(round_up(dims, size_t{kDimsTogether}));
  }

  void add(const kvcodec::Attention& head) {
    auto found = rows_.find(head.rows);
    if (found == rows_.end())
      found = rows_
                  .try_emplace(head.rows, upload_rows(head.rows->keys, stream_, all_.dims),
                               upload_rows(head.rows->values, stream_, all_.dims))
                  .first;
    for (size_t first = 0; first < head.queries.rows(); first += all_.queries_each)
      add_group(head, found->second, first);
  }
  bool has_rows_of(const kvcodec::Attention& head) const { return rows_.contains(head.rows); }

  void run() {
    if (results_.empty()) return;
    const DeviceBuffer<uint32_t> ids(ids_, stream_);
    for (size_t i = 0; i < items_.size(); ++i)
      if (listed_[i]) items_[i].ids = ids.data();
    const DeviceBuffer<float> queries(queries_, stream_);
    const DeviceBuffer<AttentionItem> items(items_, stream_);
    const DeviceBuffer<AttentionResult> results(results_, stream_);
    const size_t places = items_.size() * all_.queries_each;
    DeviceBuffer<float> states(places * 2), sums(checked_mul(places, all_.dims)),
        out(results_.size() * all_.dims);
    all_.items = items.data(), all_.count = items_.size();
    all_.queries = queries.data(), all_.states = states.data(), all_.sums = sums.data();
    stream_.run("attention", run_attention_items, all_);
    stream_.run("joining attention", run_attention_join, all_, results.data(), results_.size(), out.data());
    const std::vector<float> host = downloaded(out, stream_);
    for (size_t r = 0; r < results_.size(); ++r)
      std::copy_n(host.begin() + static_cast<std::ptrdiff_t>(r * all_.dims), dims_, rows_out_[r]);
  }

 private:
  struct DeviceRows {
    DeviceBuffer<float> keys, values;
    DeviceRows(DeviceBuffer<float> k, DeviceBuffer<float> v) : keys(std::move(k)), values(std::move(v)) {}
  };

  void add_group(const kvcodec::Attention& head, const DeviceRows& rows, size_t first_query) {
    const size_t count = std::min<size_t>(all_.queries_each, head.queries.rows() - first_query);
    const auto first_item = static_cast<uint32_t>(items_.size()),
               query = static_cast<uint32_t>(queries_.size() / all_.dims);
    const float factor = 1 / std::sqrt(static_cast<float>(dims_));
    for (size_t q = 0; q < all_.queries_each; ++q)
      for (size_t j = 0; j < all_.dims; ++j)
        queries_.push_back(q < count && j < dims_ ? head.queries(first_query + q, j) * factor : 0);
    const size_t offset = head.tokens ? ids_.size() : 0, tokens = head.size();
    if (head.tokens) ids_.insert(ids_.end(), head.tokens->begin(), head.tokens->end());
    if (offset + tokens > UINT32_MAX)
      throw failed("{} tokens in one call; places have 32 bits", offset + tokens);
    for (size_t first = 0; first < tokens; first += kSplitTokens) {
      items_.push_back({rows.keys.data(), rows.values.data(), nullptr, static_cast<uint32_t>(offset + first),
                        static_cast<uint32_t>(std::min<size_t>(kSplitTokens, tokens - first)), query});
      listed_.push_back(head.tokens.has_value());
    }
    for (uint32_t q = 0; q < count; ++q) {
      results_.push_back({first_item, static_cast<uint32_t>(items_.size()), q});
      rows_out_.push_back(head.out.row(first_query + q).data());
    }
  }

  size_t dims_;
  AttentionItems all_;  // of rows that are padded
  std::vector<AttentionItem> items_;
  std::vector<bool> listed_;  // items of chosen tokens
  std::vector<AttentionResult> results_;
  std::vector<float*> rows_out_;
  std::vector<uint32_t> ids_;
  std::vector<float> queries_;
  std::map<const CacheRows*, DeviceRows> rows_;
  Stream stream_;
};

}  // namespace

void attend(std::span<const kvcodec::Attention> heads) {
  if (heads.empty()) return;
  const size_t dims = heads[0].queries.cols();
  if (dims == 0 || dims > kMaxDims)
    throw failed("heads of {} dimensions; attention on a device takes 1 to {}", dims, kMaxDims);
  size_t largest = 1;
  for (const kvcodec::Attention& head : heads) {
    const MatrixView<const float> queries = head.queries;
    if (queries.cols() != dims || head.rows->dims() != dims || head.out.cols() != dims ||
        head.out.rows() != queries.rows())
      throw failed("queries ({}, {}) and results ({}, {}) for rows of {} dimensions among heads of {}",
                   queries.rows(), queries.cols(), head.out.rows(), head.out.cols(), head.rows->dims(), dims);
    for (const uint32_t token : head.tokens.value_or(std::span<const uint32_t>()))
      if (token >= head.rows->tokens()) throw failed("token {} of {}", token, head.rows->tokens());
    largest = std::max(largest, queries.rows());
  }
  const auto each = static_cast<unsigned>(std::bit_ceil(std::min<size_t>(largest, kMaxQueries)));
  // Heads that share rows one after the other, so that each piece holds what it needs once.
  auto order = numbers_below<size_t>(heads.size());
  std::ranges::stable_sort(order, std::less<const CacheRows*>(), [&](size_t i) { return heads[i].rows; });
  const uint64_t room = free_bytes() / 2;
  for (size_t next = 0; next < order.size();) {
    Work work(each, dims);
    for (uint64_t bytes = 0; next < order.size(); ++next) {
      const kvcodec::Attention& head = heads[order[next]];
      uint64_t more = scratch_bytes(head.queries.rows(), head.size(), dims);
      if (!work.has_rows_of(head)) more += uint64_t{head.rows->tokens()} * dims * 2 * sizeof(float);
      if (bytes > 0 && bytes + more > room) break;
      bytes += more;
      work.add(head);
    }
    work.run();
  }
}

// Parts that an engine provides ----------------------------------------------------------------------

/// Copies the rows of as many heads as fit there, each once, with queries and lists of tokens, and results
/// back.
static bool attend_there(const DeviceWork& device, std::span<const kvcodec::Attention> heads) {
  for (const kvcodec::Attention& head : heads) {
    const size_t dims = head.queries.cols();
    if (dims > kMaxDims)
      device.fall_back(fmt::format("attention of heads of {} dimensions (more than {})", dims, kMaxDims));
    const bool other = head.rows->value_dims() != dims || !head.form.is_plain();
    if (other) device.fall_back("attention with soft caps, sinks or latent values");
    if (dims > kMaxDims || other) return false;
  }
  return device.try_run([&] { cuda::attend(heads); }, DeviceWork::Bits::rounded);
}

void add_attention(const DeviceWork& device) {
  device.engine().add<AttentionOnDevice>(
      [&device] { return std::bind_front(attend_there, std::cref(device)); });
}

}  // namespace kvcodec::cuda
