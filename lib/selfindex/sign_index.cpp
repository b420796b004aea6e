#include "lib/selfindex/sign_index.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/core/checked.hpp"
#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/selfindex/sign_kernels.hpp"

namespace kvcodec {

using sign_kernels::kBlock;

void sign_kernels::scalar::scores(const Codes& codes, const float* table, float* out) {
  for (size_t block = 0; block < codes.blocks; ++block)
    for (size_t t = 0; t < kBlock; ++t) {
      float sum = 0;
      for (size_t group = 0; group < codes.groups; ++group) {
        const uint8_t byte = codes.bytes[(block * codes.row_bytes + group / 2) * kBlock + t];
        sum += table[16 * group + (group % 2 == 0 ? byte >> 4 : byte & 15)];
      }
      *out++ = sum;
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
  bytes_.resize(checked_mul(round_up(total, size_t{kBlock}), row_bytes_));
  for (size_t i = 0; i < codes.rows(); ++i) {
    const size_t token = tokens_ + i;
    for (size_t b = 0; b < row_bytes_; ++b)
      bytes_[(token / kBlock * row_bytes_ + b) * kBlock + token % kBlock] = codes(i, b);
  }
  tokens_ = total;
}

void SignIndex::scores(const SignTable& table, std::span<float> out) const {
  if (table.groups() * kSignGroup != dims_)
    throw failed("a table of {} groups does not fit keys of {} dimensions", table.groups(), dims_);
  if (out.size() != tokens_) throw failed("{} scores do not fit {} tokens", out.size(), tokens_);
  const auto kernel = pick(sign_kernels::scalar::scores, sign_kernels::avx2::scores);
  constexpr size_t kScoredTogether = 512;  // blocks that a thread scores at a time
  parallel_for((tokens_ + kBlock - 1) / kBlock, kScoredTogether, [&](size_t begin, size_t end, int) {
    const auto score = [&](size_t first, size_t count, float* to) {
      kernel({bytes_.data() + first * kBlock * row_bytes_, count, row_bytes_, table.groups()},
             table.exact().data(), to);
    };
    const size_t whole = std::min(end, tokens_ / kBlock);
    score(begin, whole - begin, out.data() + begin * kBlock);
    if (whole == end) return;
    float last[kBlock];
    score(whole, 1, last);
    std::copy_n(last, tokens_ % kBlock, out.data() + whole * kBlock);
  });
}

}  // namespace kvcodec
