#include <algorithm>
#include <numeric>

#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/sparse/codec/codec.hpp"
#include "lib/sparse/coefficients.hpp"

namespace kvcodec::sparse {

/// The pursuit of one of the dictionaries. Of many dictionaries those used last keep their Gram matrices.
std::shared_ptr<const Omp> SparseCodec::omp_for(SideCoder& side, uint64_t signals,
                                                const OmpOptions& options) const {
  auto omp = side.omp_for(signals, options);
  if (!omp->has_gram()) return omp;
  const std::lock_guard lock(mutex_);
  with_gram_.remove(&side);
  with_gram_.push_front(&side);
  const size_t most = std::max<size_t>(std::size(kSides), kGramBytes / Omp::gram_bytes(atoms_));
  while (with_gram_.size() > most) {
    with_gram_.back()->drop_gram();
    with_gram_.pop_back();
  }
  return omp;
}

/// Rounds the coefficients of each signal, which stand in `coefficients` one signal behind the other, into
/// the words and scales of `stored`.
void SparseCodec::round_jointly(const Omp& omp, CoefficientType type, const SparseCodes& codes,
                                std::span<const float> coefficients, SparsePairs& stored) const {
  const size_t signals = stored.counts.size();
  std::vector<size_t> firsts(signals);
  std::exclusive_scan(stored.counts.begin(), stored.counts.end(), firsts.begin(), size_t{0});
  stored.words.resize(coefficients.size());
  stored.scales.resize(signals);
  struct Scratch {
    JointRounder rounder;
    Matrix<float> products;
  };
  std::vector<std::unique_ptr<Scratch>> scratch(static_cast<size_t>(num_threads()));
  constexpr size_t kSignalsPerPiece = 16;
  parallel_for(signals, kSignalsPerPiece, [&](size_t begin, size_t end, int worker) {
    auto& own = scratch[static_cast<size_t>(worker)];
    if (!own) own.reset(new Scratch{JointRounder(type), Matrix<float>(pairs(), pairs())});
    auto& [rounder, products] = *own;
    for (size_t i = begin; i < end; ++i) {
      const size_t first = firsts[i], count = stored.counts[i];
      const MatrixView<float> gram = products.view().rows(0, count).columns(0, count);
      omp.products_of(std::span(stored.ids).subspan(first, count), gram);
      const double allowed = options_.rounding_error * codes.residuals[i] * codes.residuals[i];
      stored.scales[i] = rounder.round(gram, coefficients.subspan(first, count), allowed,
                                       std::span(stored.words).subspan(first, count));
    }
  });
}

void SparseCodec::append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const {
  check_shape(shape, rows.cols());
  if (rows.rows() == 0) return;
  SideCoder& side = coder(shape);
  const size_t signals = rows.rows() * layout_.signals_per_row();
  std::vector<float> gains(gained(shape.side) ? signals : 0);
  Matrix<float> values(signals, layout_.signal_width());
  to_signals(side.normalization(), layout_, shape.first_layer, rows, values, gains);
  OmpOptions pursuit;
  pursuit.sparsity = options_.sparsity;
  pursuit.error_target = options_.error_target;
  pursuit.selection = options_.selection;
  SparseCodes codes;
  std::shared_ptr<const Omp> omp;
  const bool on_device = side.encode_on_device(values, pursuit, codes);
  if (!on_device) omp = omp_for(side, signals, pursuit), codes = omp->encode(values, pursuit);
  SparsePairs stored{.counts = codes.counts, .ids = {}, .words = {}, .scales = {}, .gains = {}};
  std::vector<float> coefficients;
  for (size_t i = 0; i < signals; ++i) {
    const auto ids = codes.ids.row(i).first(codes.counts[i]);
    const auto row = codes.coefficients.row(i).first(codes.counts[i]);
    stored.ids.insert(stored.ids.end(), ids.begin(), ids.end());
    coefficients.insert(coefficients.end(), row.begin(), row.end());
  }
  const CoefficientType type = options_.coefficients;
  if (scale_bits(type) > 0)
    round_jointly(on_device ? *side.any_omp() : *omp, type, codes, coefficients, stored);
  else
    stored.words = coefficients_in_f16(coefficients);
  stored.gains.resize(gains.size());
  narrow(DType::f16, gains, stored.gains);  // they are f16 numbers already
  form(shape.side).append(std::move(stored), document);
}

}  // namespace kvcodec::sparse
