#include "lib/sparse/codec/view.hpp"

#include <cmath>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"
#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"

namespace kvcodec::sparse {

namespace {

/// Columns of atoms that belong to one head of one layer of a group.
struct Head {
  size_t layer, head;
  size_t first_row;  // of its vectors
};

/// Heads of a signal, in the order of its channels: all of the group, or those of one head in every layer. n: vectors of a head.
std::vector<Head> heads_of(const SignalLayout& layout, size_t signal, size_t n) {
  std::vector<Head> heads;
  const auto all = as_size(layout.heads);
  for (size_t layer = 0; layer < as_size(layout.layers); ++layer)
    for (size_t head = 0; head < all; ++head)
      if (!layout.per_head || head == signal) heads.push_back({layer, head, (layer * all + head) * n});
  return heads;
}

std::vector<size_t> rows_of(std::span<const Head> heads, size_t n) {
  std::vector<size_t> rows;
  for (const Head& head : heads)
    for (size_t j = 0; j < n; ++j) rows.push_back(head.first_row + j);
  return rows;
}

/// Codes of one signal of each token.
OwnedCodes codes_of_signal(const CodeView& codes, size_t signal, size_t per_row) {
  OwnedCodes out;
  for (size_t i = signal; i < codes.signals(); i += per_row) {
    const uint64_t begin = codes.offsets[i], pairs = codes.offsets[i + 1] - begin;
    append_to(out.ids, codes.ids.subspan(begin, pairs));
    append_to(out.coefficients, codes.coefficients.subspan(begin, pairs));
    out.offsets.push_back(out.ids.size());
  }
  return out;
}

/// Atoms per piece of a product with all atoms: fixed, so that sums are the same for any number of threads.
constexpr size_t kAtomsPerPiece = 512;

/// Columns of the weights of atoms that one thread adds to: a cache line.
constexpr size_t kColumns = 16;

}  // namespace

SparseView::Codes SparseView::read(uint64_t first, uint64_t count) const {
  SparsePairs pairs = reader_.read(first, count);
  Codes codes;
  codes.coefficients = dequantize_coefficients(form_.coefficients, pairs);
  codes.ids = std::move(pairs.ids);
  codes.offsets.reserve(pairs.counts.size() + 1);
  for (const uint32_t of_signal : pairs.counts) codes.offsets.push_back(codes.offsets.back() + of_signal);
  codes.gains.resize(pairs.gains.size());
  widen(DType::f16, pairs.gains, codes.gains);
  for (size_t i = 0; i < codes.gains.size(); ++i)
    if (!std::isfinite(codes.gains[i]))
      throw bad_input("stream 'gain': that of signal {} is not finite",
                      first * layout_.signals_per_row() + i);
  return codes;
}

void SparseView::decode_rows(uint64_t first, MatrixView<float> out) const {
  const Codes codes = read(first, out.rows());
  if (out.rows() == 0) return;
  if (layout_.per_head) {
    Matrix<float> values(codes.offsets.size() - 1, layout_.signal_width());
    coder_.reconstruct(codes.view(), values);
    from_signals(coder_.normalization(), layout_, shape().first_layer(), values, codes.gains, out);
    return;
  }
  // A token is one signal, in the order of the row: what from_signals does can be done on the way out.
  const Normalization& normalization = coder_.normalization();
  std::vector<float> scale;
  const auto layer = as_size(shape().first_layer()), layers = shape().layers.size();
  if (scales_layers(normalization.normalize))
    for (size_t i = 0; i < layers; ++i)
      scale.insert(scale.end(), layout_.layer_width(), normalization.layer_scale[layer + i]);
  Finishing finishing{.gains = codes.gains, .scale = scale, .mean = {}};
  if (normalization.center() == Center::channel)
    finishing.mean = {normalization.channel_mean.row(layer).data(), layers * layout_.layer_width()};
  coder_.reconstruct(codes.view(), out, finishing);
}

/// True if products go faster without decoding. Per token that costs s * vectors multiplications of floats, and once for all tokens atoms *
/// width * vectors / heads in matrix products; decoding costs s * width, of bytes where atoms are such, and width * vectors / heads.
bool SparseView::straight_pays(size_t vectors, size_t tokens) const {
  const auto width = static_cast<double>(shape().width()), heads = width / shape().head_dim(),
             per_head = static_cast<double>(vectors) / heads, count = static_cast<double>(tokens),
             all_pairs = count * static_cast<double>(form_.sparsity * layout_.signals_per_row());
  // Measured (kvcodec_bench_reconstruct): a multiplication of the random accesses of sums costs as much as
  // kInMatrices in matrix products; one of bytes kInBytes of it.
  constexpr double kInMatrices = 6, kInBytes = 0.25;
  const double channels = static_cast<double>(layout_.signal_width());
  const double of_vectors = static_cast<double>(vectors) / static_cast<double>(layout_.signals_per_row());
  const double decoding =
      all_pairs * channels * (coder_.in_bytes() ? kInBytes : 1) + count * width * per_head / kInMatrices;
  const double straight = all_pairs * std::max<double>(of_vectors, kColumns) +
                          static_cast<double>(form_.atoms) * width * per_head / kInMatrices;
  return straight < decoding;
}

/// Sums of rows as if they were atoms; on the device where there is one that takes them, with the same bits.
void SparseView::add_rows(Matrix<float> rows, const CodeView& codes, MatrixView<float> out,
                          const Finishing& finishing) const {
  Dictionary dictionary;
  dictionary.atoms = std::move(rows);
  if (engine_)
    if (const auto device = engine_->make<ReconstructionOnDevice>(dictionary);
        device && device(codes, out, finishing))
      return;
  Reconstructor(dictionary.atoms).run(codes, out, finishing);
}

/// Finds the weight of each atom in each of the sums, (sums, atoms): here the tokens' weights are the rows
/// that are added up, and an atom is what is coded. False: nothing was done.
bool SparseView::weigh_atoms_on_device(const Codes& codes, size_t signal, MatrixView<const float> weights,
                                       std::span<const size_t> rows, MatrixView<float> of_atoms) const {
  if (!engine_ || weights.cols() == 0) return false;
  const size_t per_row = layout_.signals_per_row();
  Dictionary tokens;
  tokens.atoms = Matrix<float>(weights.cols(), rows.size());
  for (size_t t = 0; t < weights.cols(); ++t) {
    const float gain = codes.gains.empty() ? 1 : codes.gains[t * per_row + signal];
    for (size_t i = 0; i < rows.size(); ++i) tokens.atoms(t, i) = weights(rows[i], t) * gain;
  }
  const auto device = engine_->make<ReconstructionOnDevice>(tokens);
  if (!device) return false;
  Matrix<float> sums(form_.atoms, rows.size());
  if (!device(codes_by_atom(codes.view(), form_.atoms, signal, per_row).view(), sums, {})) return false;
  engine_->count(false);  // fused, which the CPU's sums are not
  for (size_t atom = 0; atom < form_.atoms; ++atom)
    for (size_t i = 0; i < rows.size(); ++i) of_atoms(i, atom) = sums(atom, i);
  return true;
}

void SparseView::multiply_keys(uint64_t first, MatrixView<const float> queries, MatrixView<float> out) const {
  Codes codes = read(first, out.cols());
  if (out.cols() == 0) return;
  codes.coefficients = coder_.reconstructor().weights(codes.view());
  const MatrixView<const float> atoms = coder_.atoms();
  const Normalization& normalization = coder_.normalization();
  const auto d = shape().dims(), per_row = layout_.signals_per_row(),
             first_layer = as_size(shape().first_layer());
  const size_t n = queries.rows() * d / layout_.row_width();
  for (size_t signal = 0; signal < per_row; ++signal) {
    const std::vector<Head> heads = heads_of(layout_, signal, n);
    const std::vector<size_t> rows = rows_of(heads, n);  // of queries and out
    // Products of all atoms with the queries: columns by head, and the queries of a head.
    Matrix<float> products(form_.atoms, rows.size());
    parallel_for(form_.atoms, kAtomsPerPiece, [&](size_t begin, size_t end, int) {
      for (size_t h = 0; h < heads.size(); ++h)
        gemm(normalization.scale_of(first_layer + heads[h].layer),
             atoms.rows(begin, end - begin).columns(h * d, d),
             transposed(queries.rows(heads[h].first_row, n)), 0,
             products.view().rows(begin, end - begin).columns(h * n, n));
    });
    std::vector<float> means(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const Head& head = heads[i / n];
      const float* mean = normalization.mean_of(first_layer + head.layer, head.head * d);
      double sum = 0;
      for (size_t c = 0; mean && c < d; ++c) sum += double{mean[c]} * queries(rows[i], c);
      means[i] = static_cast<float>(sum);
    }
    std::vector<float> gains;
    for (size_t i = signal; i < codes.gains.size(); i += per_row) gains.push_back(codes.gains[i]);
    Matrix<float> scores(out.cols(), rows.size());
    const Finishing finishing{.gains = gains, .scale = {}, .mean = means};
    if (per_row == 1)
      add_rows(std::move(products), codes.view(), scores, finishing);
    else
      add_rows(std::move(products), codes_of_signal(codes.view(), signal, per_row).view(), scores, finishing);
    for (size_t t = 0; t < scores.rows(); ++t)
      for (size_t i = 0; i < rows.size(); ++i) out(rows[i], t) = scores(t, i);
  }
}

void SparseView::multiply_values(uint64_t first, MatrixView<const float> weights,
                                 MatrixView<float> out) const {
  Codes codes = read(first, weights.cols());
  codes.coefficients = coder_.reconstructor().weights(codes.view());
  const MatrixView<const float> atoms = coder_.atoms();
  const Normalization& normalization = coder_.normalization();
  const auto d = shape().dims(), per_row = layout_.signals_per_row();
  const size_t n = out.rows() * d / layout_.row_width();
  for (size_t signal = 0; signal < per_row; ++signal) {
    const std::vector<Head> heads = heads_of(layout_, signal, n);
    const std::vector<size_t> rows = rows_of(heads, n);  // of weights and out
    Matrix<float> of_atoms(rows.size(), form_.atoms);
    const bool weighed = weigh_atoms_on_device(codes, signal, weights, rows, of_atoms);
    const size_t groups = weighed ? 0 : (rows.size() + kColumns - 1) / kColumns;
    // The weight of each atom in each of the sums, some columns at a time.
    parallel_each(groups, 1, [&](size_t group) {
      const size_t from = group * kColumns, columns = std::min(kColumns, rows.size() - from);
      Matrix<float> sums(form_.atoms, kColumns);
      for (size_t t = 0; t < weights.cols(); ++t) {
        const size_t i = t * per_row + signal;
        const float gain = codes.gains.empty() ? 1 : codes.gains[i];
        float factors[kColumns] = {};
        for (size_t c = 0; c < columns; ++c) factors[c] = weights(rows[from + c], t) * gain;
        for (uint64_t k = codes.offsets[i]; k < codes.offsets[i + 1]; ++k) {
          float* row = sums.row(codes.ids[k]).data();
          const float coefficient = codes.coefficients[k];
          for (size_t c = 0; c < kColumns; ++c) row[c] += coefficient * factors[c];
        }
      }
      for (size_t atom = 0; atom < form_.atoms; ++atom)
        for (size_t c = 0; c < columns; ++c) of_atoms(from + c, atom) = sums(atom, c);
    });
    parallel_each(heads.size(), 1, [&](size_t h) {
      const size_t layer = as_size(shape().first_layer()) + heads[h].layer, row = heads[h].first_row;
      gemm(normalization.scale_of(layer), of_atoms.view().rows(h * n, n), atoms.columns(h * d, d), 0,
           out.rows(row, n));
      const float* mean = normalization.mean_of(layer, heads[h].head * d);
      for (size_t j = row; mean && j < row + n; ++j) {
        double sum = 0;
        for (size_t t = 0; t < weights.cols(); ++t) sum += weights(j, t);
        for (size_t c = 0; c < d; ++c) out(j, c) += static_cast<float>(sum * mean[c]);
      }
    });
  }
}

}  // namespace kvcodec::sparse
