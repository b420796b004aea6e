#include "lib/rvq/team_training.hpp"

#include <algorithm>

#include "lib/core/parallel.hpp"
#include "lib/kmeans/kmeans.hpp"
#include "lib/linalg/nearest.hpp"

namespace kvcodec {
namespace {

constexpr size_t kEntriesOfPiece = 16;

class TeamTraining final : public RvqTrainEngine {
 public:
  explicit TeamTraining(const Team& team) : team_(team) {}

  bool take(MatrixView<const float> rows) override {
    rows_ = rows;
    return true;
  }

  bool choose(MatrixView<const float> entries, std::span<const float> bias,
              std::span<uint32_t> ids) override {
    const TeamShare own = team_.share(rows_.rows());
    ProductSearch(entries, bias)
        .best(rows_.rows(own.begin, own.count()), ids.subspan(own.begin, own.count()), {});
    team_.gather(ids, rows_.rows());
    return true;
  }

  bool means(std::span<const uint32_t> ids, MatrixView<float> means) override {
    team_means(team_, rows_, sort_by_cluster(ids, means.rows()), means);
    return true;
  }

  bool sums(std::span<const uint32_t> ids, MatrixView<double> sums) override {
    Matrix<double> of_members(sums.rows(), sums.cols());
    const RowsByCluster sorted = sort_by_cluster(ids, sums.rows());
    const TeamShare own = team_.share(sums.rows());
    parallel_for(own.count(), kEntriesOfPiece, [&](size_t begin, size_t end, int) {
      for (size_t e = own.begin + begin; e < own.begin + end; ++e)
        for (uint64_t at = sorted.offsets[e]; at < sorted.offsets[e + 1]; ++at)
          add_row(rows_.row(sorted.rows[at]), of_members.row(e));
    });
    team_.gather(std::span(of_members.data(), of_members.size()), of_members.rows());
    for (size_t e = 0; e < sums.rows(); ++e) std::ranges::copy(of_members.row(e), sums.row(e).begin());
    return true;
  }

  /// Sums over entries, which are few beside the rows: every rank forms all of them.
  bool outer(MatrixView<const double> /*rows*/, std::span<const double> /*weights*/,
             MatrixView<const double> /*others*/, MatrixView<double> /*a*/) override {
    return false;
  }

  bool encode(const Codebooks& books, MatrixView<const float> rows, size_t beam,
              MatrixView<uint32_t> ids) override {
    const TeamShare own = team_.share(rows.rows());
    Matrix<uint32_t> all(ids.rows(), ids.cols());
    ResidualEncoder(books).encode(rows.rows(own.begin, own.count()), beam,
                                  all.view().rows(own.begin, own.count()));
    team_.gather(std::span(all.data(), all.size()), all.rows());
    for (size_t i = 0; i < ids.rows(); ++i) std::ranges::copy(all.row(i), ids.row(i).begin());
    return true;
  }

 private:
  static void add_row(std::span<const float> row, std::span<double> to) {
    for (size_t j = 0; j < to.size(); ++j) to[j] += double{row[j]};
  }

  const Team& team_;
  MatrixView<const float> rows_;
};

}  // namespace

std::unique_ptr<RvqTrainEngine> rvq_training_of(const Team& team) {
  return std::make_unique<TeamTraining>(team);
}

}  // namespace kvcodec
