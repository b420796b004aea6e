#include "lib/selfindex/sign_index.hpp"

#include <algorithm>
#include <memory>

#include "lib/core/checked.hpp"
#include "lib/core/cpu.hpp"
#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/selfindex/scan_kernels.hpp"

namespace kvcodec {
namespace {

using scan_kernels::kBlock;

/// Tokens whose scores a thread computes at a time.
constexpr size_t kScoredTogether = 16384;

/// Keys per thread below which starting one costs more than it saves (about a microsecond of scanning).
constexpr size_t kLeastTokens = 4096;

}  // namespace

/// One query's pass over the keys.
class SignSearch {
 public:
  SignSearch(const SignQuery& query, size_t k)
      : index_(*query.index),
        table_(*query.table),
        kernels_(pick(scan_kernels::scalar::table, scan_kernels::avx2::table)()),
        k_(std::min(k, index_.tokens_)) {
    if (table_.groups() * kSignGroup != index_.dims_)
      throw failed("a table of {} groups does not fit keys of {} dimensions", table_.groups(), index_.dims_);
    bytes_.resize(index_.row_bytes_ * 2 * kSignCodes);  // a last nibble without a group adds 0
    std::ranges::copy(table_.bytes(), bytes_.begin());
  }

  size_t tokens() const { return index_.tokens_; }

  void cut(size_t pieces) {
    const size_t blocks = (index_.tokens_ + kBlock - 1) / kBlock;
    step_ = std::max<size_t>((blocks + pieces - 1) / pieces, 1) * kBlock;
    pieces_ = std::max<size_t>((index_.tokens_ + step_ - 1) / step_, 1);
    found_.resize(pieces_);
  }
  size_t pieces() const { return pieces_; }

  /// Scans one piece.
  void scan(size_t piece) {
    auto candidates = std::make_unique<TopCandidates>(k_, table_.margin());
    candidates->collect(piece * step_, std::min((piece + 1) * step_, index_.tokens_), scan_kernels::kScanRoom,
                        kBlock, [&](size_t begin, size_t end, const TopCandidates::Room& room) {
                          TopCandidates::Progress progress;
                          progress.next = kernels_.scan(codes(), bytes_.data(), begin / kBlock,
                                                        (end + kBlock - 1) / kBlock, room.limit, room.keys,
                                                        room.ids, room.count, &progress.written) *
                                          kBlock;
                          return progress;
                        });
    found_[piece] = std::move(candidates);
  }

  /// Joins the pieces and selects by float scores.
  std::vector<Scored> finish(Order order) {
    TopCandidates& all = *found_[0];
    for (size_t piece = 1; piece < pieces_; ++piece) all.merge(*found_[piece]);
    all.prune();
    const std::span<const uint32_t> ids = all.ids();
    std::vector<float> scores(ids.size());
    kernels_.exact_of(codes(), table_.exact().data(), ids.data(), ids.size(), scores.data());
    std::vector<Scored> best(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) best[i] = {scores[i], ids[i]};
    keep_top(best, k_, order);
    return best;
  }

  void scores(std::span<float> out) const {
    if (out.size() != index_.tokens_)
      throw failed("{} scores do not fit {} tokens", out.size(), index_.tokens_);
    parallel_for(index_.tokens_, kScoredTogether, [&](size_t begin, size_t end, int) {
      const size_t whole = end / kBlock * kBlock;
      score(begin, whole, out.data() + begin);
      if (whole == end) return;
      float last[kBlock];
      score(whole, end, last);
      std::copy_n(last, end - whole, out.data() + whole);
    });
  }

 private:
  scan_kernels::Codes codes() const {
    return {index_.bytes_.data(), index_.tokens_, index_.row_bytes_, table_.groups()};
  }

  /// Whole blocks from token `begin`, a multiple of kBlock.
  void score(size_t begin, size_t end, float* out) const {
    kernels_.exact(codes(), table_.exact().data(), begin / kBlock, (end + kBlock - 1) / kBlock, out);
  }

  const SignIndex& index_;
  const SignTable& table_;
  const scan_kernels::Table& kernels_;
  size_t k_, step_ = 0, pieces_ = 0;
  AlignedVector<uint8_t> bytes_;
  std::vector<std::unique_ptr<TopCandidates>> found_;
};

SignIndex::SignIndex(size_t dims) : dims_(dims), row_bytes_(sign_row_bytes(dims)) {}

void SignIndex::append(MatrixView<const uint8_t> codes) {
  if (codes.cols() != row_bytes_)
    throw failed("rows of {} bytes are not sign codes of {} dimensions ({} bytes)", codes.cols(), dims_,
                 row_bytes_);
  const size_t total = checked_add(tokens_, codes.rows());
  if (total > (uint64_t{1} << 32)) throw failed("{} tokens in one index: ids have 32 bits", total);
  bytes_.resize(checked_mul(round_up(total, kBlock), row_bytes_));
  for (size_t i = 0; i < codes.rows(); ++i) {
    const size_t token = tokens_ + i;
    const uint8_t* row = codes.row(i).data();
    constexpr size_t kTokens = scan_kernels::kLaneTokens;
    uint8_t* out = bytes_.data() + token / kTokens * kTokens * row_bytes_ + token % kTokens;
    for (size_t b = 0; b < row_bytes_; ++b) out[b * kTokens] = row[b];
  }
  tokens_ = total;
}

void SignIndex::scores(const SignTable& table, std::span<float> out) const {
  SignSearch({this, &table}, 0).scores(out);
}

std::vector<Scored> SignIndex::top_k(const SignTable& table, size_t k, Order order) const {
  const SignQuery query{this, &table};
  return std::move(kvcodec::top_k({&query, 1}, k, order)[0]);
}

std::vector<std::vector<Scored>> top_k(std::span<const SignQuery> queries, size_t k, Order order) {
  std::vector<SignSearch> searches;
  searches.reserve(queries.size());
  const auto threads = static_cast<size_t>(num_threads());
  struct Piece {
    size_t search, piece;
  };
  std::vector<Piece> pieces;
  for (const SignQuery& query : queries) {
    SignSearch& search = searches.emplace_back(query, k);
    search.cut(queries.size() >= threads ? 1
                                         : std::clamp<size_t>(search.tokens() / kLeastTokens, 1, threads));
    for (size_t piece = 0; piece < search.pieces(); ++piece) pieces.push_back({searches.size() - 1, piece});
  }
  parallel_for(pieces.size(), 1,
               [&](size_t i, size_t, int) { searches[pieces[i].search].scan(pieces[i].piece); });
  std::vector<std::vector<Scored>> best(queries.size());
  const auto finish = [&](size_t i) { best[i] = searches[i].finish(order); };
  if (queries.size() == 1)  // not worth waking threads
    finish(0);
  else
    parallel_for(queries.size(), 1, [&](size_t i, size_t, int) { finish(i); });
  return best;
}

}  // namespace kvcodec
