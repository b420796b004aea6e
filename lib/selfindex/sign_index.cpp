#include "lib/selfindex/sign_index.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"

namespace kvcodec {

/// The scores of the 32 tokens of each block, padding included, by a table [group][16]; row_bytes: of a token.
static void score_blocks(std::span<const uint8_t> bytes, size_t row_bytes, std::span<const float> table,
                         float* out) {
  for (size_t first = 0; first < bytes.size(); first += row_bytes * kSignBlock, out += kSignBlock) {
    float sums[kSignBlock] = {};
    for (size_t group = 0; group < table.size() / kSignCodes; ++group) {
      const uint8_t* of_group = bytes.data() + first + group / 2 * kSignBlock;
      const float* entries = table.data() + group * kSignCodes;
      const int shift = group % 2 == 0 ? 4 : 0;
      for (size_t t = 0; t < kSignBlock; ++t) sums[t] += entries[of_group[t] >> shift & 15];
    }
    std::ranges::copy(sums, out);
  }
}

SignTable::SignTable(const SignCodebook& codebook, std::span<const float> query)
    : exact_(codebook.groups() * kSignCodes) {
  if (query.size() != codebook.dims())
    throw failed("a query of {} values against a codebook of {} dimensions", query.size(), codebook.dims());
  double largest = 0;  // what the magnitudes of a key's entries may add up to
  for (size_t group = 0; group < groups(); ++group) {
    float of_group = 0;
    for (size_t code = 0; code < kSignCodes; ++code) {
      float& entry = exact_[group * kSignCodes + code];
      for (size_t i = group * kSignGroup; i < (group + 1) * kSignGroup; ++i) {
        const float product = query[i] * codebook.centroids(i, code);
        entry = i % kSignGroup == 0 ? product : entry + product;
      }
      of_group = std::isnan(entry) ? entry : std::max(of_group, std::abs(entry));
    }
    largest += static_cast<double>(of_group);
  }
  if (!(largest <= static_cast<double>(std::numeric_limits<float>::max())))
    throw bad_input("the products of a query with the centroids are beyond the range of floats");
}

void SignIndex::append(MatrixView<const uint8_t> codes) {
  if (codes.cols() != row_bytes_)
    throw failed("rows of {} bytes are not sign codes of {} dimensions ({} bytes)", codes.cols(), dims_,
                 row_bytes_);
  const size_t total = checked_add(tokens_, codes.rows());
  if (total > (uint64_t{1} << 32)) throw failed("{} tokens in one index: ids have 32 bits", total);
  bytes_.resize(checked_mul(round_up(total, kSignBlock), row_bytes_));
  for (size_t i = 0; i < codes.rows(); ++i) {
    const size_t token = tokens_ + i;
    for (size_t b = 0; b < row_bytes_; ++b)
      bytes_[(token / kSignBlock * row_bytes_ + b) * kSignBlock + token % kSignBlock] = codes(i, b);
  }
  tokens_ = total;
}

void SignIndex::scores(const SignTable& table, std::span<float> out) const {
  if (table.groups() * kSignGroup != dims_)
    throw failed("a table of {} groups does not fit keys of {} dimensions", table.groups(), dims_);
  if (out.size() != tokens_) throw failed("{} scores do not fit {} tokens", out.size(), tokens_);
  constexpr size_t kScoredTogether = 512;  // blocks that a thread scores at a time
  parallel_for((tokens_ + kSignBlock - 1) / kSignBlock, kScoredTogether, [&](size_t begin, size_t end, int) {
    const auto score = [&](size_t first, size_t count, float* to) {
      const size_t block = kSignBlock * row_bytes_;
      score_blocks(std::span(bytes_).subspan(first * block, count * block), row_bytes_, table.exact(), to);
    };
    const size_t whole = std::min(end, tokens_ / kSignBlock);
    score(begin, whole - begin, out.data() + begin * kSignBlock);
    if (whole == end) return;
    float last[kSignBlock];
    score(whole, 1, last);
    std::copy_n(last, tokens_ % kSignBlock, out.data() + whole * kSignBlock);
  });
}

}  // namespace kvcodec
