#include "lib/codec/products.hpp"

#include <algorithm>

#include "lib/core/parallel.hpp"
#include "lib/linalg/blas.hpp"
#include "lib/sparse/codec/view.hpp"

namespace kvcodec::sparse {

namespace {

/// Columns of atoms or rows that belong to one head of one layer of a group.
struct Head {
  size_t layer, head;
};

/// Heads of a signal, in the order of its channels: all of the group, or those of one head in every layer.
std::vector<Head> heads_of(const SignalLayout& layout, size_t signal) {
  std::vector<Head> heads;
  for (size_t layer = 0; layer < static_cast<size_t>(layout.layers); ++layer) {
    if (layout.per_head) {
      heads.push_back({layer, signal});
      continue;
    }
    for (size_t head = 0; head < static_cast<size_t>(layout.heads); ++head) heads.push_back({layer, head});
  }
  return heads;
}

/// Codes of one signal of each token.
struct SignalCodes {
  std::vector<uint32_t> ids;
  std::vector<float> coefficients;
  std::vector<uint64_t> offsets{0};
};

SignalCodes codes_of_signal(const CodeView& codes, size_t signal, size_t per_row) {
  SignalCodes out;
  for (size_t i = signal; i < codes.signals(); i += per_row) {
    const auto begin = static_cast<ptrdiff_t>(codes.offsets[i]),
               end = static_cast<ptrdiff_t>(codes.offsets[i + 1]);
    out.ids.insert(out.ids.end(), codes.ids.begin() + begin, codes.ids.begin() + end);
    out.coefficients.insert(out.coefficients.end(), codes.coefficients.begin() + begin,
                            codes.coefficients.begin() + end);
    out.offsets.push_back(out.ids.size());
  }
  return out;
}

/// The same, turned round: of each atom, in which tokens it is, rising, and with which coefficients.
SignalCodes codes_by_atom(const CodeView& codes, size_t signal, size_t per_row, size_t atoms) {
  SignalCodes out;
  out.offsets.assign(atoms + 2, 0);  // the end of an atom's pairs so far stands one place further
  for (size_t i = signal; i < codes.signals(); i += per_row)
    for (uint64_t k = codes.offsets[i]; k < codes.offsets[i + 1]; ++k) ++out.offsets[codes.ids[k] + 2];
  for (size_t atom = 2; atom < out.offsets.size(); ++atom) out.offsets[atom] += out.offsets[atom - 1];
  out.ids.resize(out.offsets.back());
  out.coefficients.resize(out.offsets.back());
  for (size_t i = signal; i < codes.signals(); i += per_row)
    for (uint64_t k = codes.offsets[i]; k < codes.offsets[i + 1]; ++k) {
      const uint64_t place = out.offsets[codes.ids[k] + 1]++;
      out.ids[place] = static_cast<uint32_t>(i / per_row);
      out.coefficients[place] = codes.coefficients[k];
    }
  out.offsets.pop_back();
  return out;
}

/// Atoms per piece of a product with all atoms: fixed, so that sums are the same for any number of threads.
constexpr size_t kAtomsPerPiece = 512;

/// Columns of the weights of atoms that one thread adds to: a cache line.
constexpr size_t kColumns = 16;

}  // namespace

/// Whether products go without decoding. Per token that costs s * vectors multiplications of floats, and once
/// for all tokens atoms * width * vectors / heads in matrix products; decoding costs s * width, of bytes
/// where atoms are such, and width * vectors / heads.
bool SparseView::straight_pays(size_t vectors, size_t tokens) const {
  const auto width = static_cast<double>(shape().width()), heads = width / shape().head_dim,
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
    if (const auto device = engine_->make<ReconstructionEngine>(dictionary);
        device && device->run(codes, out, finishing))
      return;
  Reconstructor(dictionary.atoms).run(codes, out, finishing);
}

/// What each atom weighs in each of the sums, (sums, atoms): here the tokens' weights are the rows that are
/// added up, and an atom is what is coded. False: nothing was done.
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
  const auto device = engine_->make<ReconstructionEngine>(tokens);
  if (!device) return false;
  const SignalCodes by_atom = codes_by_atom(codes.view(), signal, per_row, form_.atoms);
  Matrix<float> sums(form_.atoms, rows.size());
  if (!device->run({by_atom.ids, by_atom.coefficients, by_atom.offsets}, sums, {})) return false;
  engine_->count(false);  // fused, which the CPU's sums are not
  for (size_t atom = 0; atom < form_.atoms; ++atom)
    for (size_t i = 0; i < rows.size(); ++i) of_atoms(i, atom) = sums(atom, i);
  return true;
}

void SparseView::multiply_key_range(uint64_t first, MatrixView<const float> queries,
                                    MatrixView<float> out) const {
  if (!straight_pays(queries.rows(), out.cols())) return decode_and_multiply_keys(*this, first, queries, out);
  const GroupShape& shape = this->shape();
  Codes codes = read(first, out.cols());
  if (out.cols() == 0) return;
  codes.coefficients = coder_.reconstructor().weights(codes.view());
  const MatrixView<const float> atoms = coder_.atoms();
  const auto d = static_cast<size_t>(shape.head_dim), per_row = layout_.signals_per_row();
  const size_t n = queries.rows() / (static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.heads));
  for (size_t signal = 0; signal < per_row; ++signal) {
    const std::vector<Head> heads = heads_of(layout_, signal);
    // Products of all atoms with the queries: columns by head, and the queries of a head.
    Matrix<float> products(form_.atoms, heads.size() * n);
    std::vector<float> means(products.cols());
    std::vector<size_t> rows;  // of queries and out
    for (size_t h = 0; h < heads.size(); ++h)
      for (size_t j = 0; j < n; ++j)
        rows.push_back((heads[h].layer * static_cast<size_t>(shape.heads) + heads[h].head) * n + j);
    parallel_for(form_.atoms, kAtomsPerPiece, [&](size_t begin, size_t end, int) {
      for (size_t h = 0; h < heads.size(); ++h) {
        const float factor =
            coder_.normalization().scale_of(static_cast<size_t>(shape.first_layer) + heads[h].layer);
        gemm(factor, atoms.rows(begin, end - begin).columns(h * d, d), Transpose::no,
             queries.rows(rows[h * n], n), Transpose::yes, 0,
             products.view().rows(begin, end - begin).columns(h * n, n));
      }
    });
    if (coder_.normalization().center() == Center::channel)
      for (size_t i = 0; i < rows.size(); ++i) {
        const Head head = heads[i / n];
        const auto mean = coder_.normalization()
                              .channel_mean.row(static_cast<size_t>(shape.first_layer) + head.layer)
                              .subspan(head.head * d, d);
        double sum = 0;
        for (size_t c = 0; c < d; ++c) sum += double{mean[c]} * queries(rows[i], c);
        means[i] = static_cast<float>(sum);
      }
    std::vector<float> gains;
    for (size_t i = signal; i < codes.gains.size(); i += per_row) gains.push_back(codes.gains[i]);
    Matrix<float> scores(out.cols(), rows.size());
    const Finishing finishing{.gains = gains, .scale = {}, .mean = means};
    if (per_row == 1) {
      add_rows(std::move(products), codes.view(), scores, finishing);
    } else {
      const SignalCodes of_signal = codes_of_signal(codes.view(), signal, per_row);
      add_rows(std::move(products), {of_signal.ids, of_signal.coefficients, of_signal.offsets}, scores,
               finishing);
    }
    for (size_t t = 0; t < scores.rows(); ++t)
      for (size_t i = 0; i < rows.size(); ++i) out(rows[i], t) = scores(t, i);
  }
}

void SparseView::multiply_value_range(uint64_t first, MatrixView<const float> weights,
                                      MatrixView<float> out) const {
  if (!straight_pays(out.rows(), weights.cols()))
    return decode_and_multiply_values(*this, first, weights, out);
  const GroupShape& shape = this->shape();
  Codes codes = read(first, weights.cols());
  codes.coefficients = coder_.reconstructor().weights(codes.view());
  const MatrixView<const float> atoms = coder_.atoms();
  const auto d = static_cast<size_t>(shape.head_dim), per_row = layout_.signals_per_row();
  const size_t n = out.rows() / (static_cast<size_t>(shape.layers) * static_cast<size_t>(shape.heads));
  for (size_t signal = 0; signal < per_row; ++signal) {
    const std::vector<Head> heads = heads_of(layout_, signal);
    std::vector<size_t> rows;  // of weights and out
    for (size_t h = 0; h < heads.size(); ++h)
      for (size_t j = 0; j < n; ++j)
        rows.push_back((heads[h].layer * static_cast<size_t>(shape.heads) + heads[h].head) * n + j);
    Matrix<float> of_atoms(rows.size(), form_.atoms);
    const bool weighed = weigh_atoms_on_device(codes, signal, weights, rows, of_atoms);
    const size_t groups = weighed ? 0 : (rows.size() + kColumns - 1) / kColumns;
    // What each atom weighs in each of the sums, some columns at a time.
    parallel_for(groups, 1, [&](size_t begin, size_t end, int) {
      for (size_t group = begin; group < end; ++group) {
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
      }
    });
    parallel_for(heads.size(), 1, [&](size_t begin, size_t end, int) {
      for (size_t h = begin; h < end; ++h) {
        const size_t layer = static_cast<size_t>(shape.first_layer) + heads[h].layer, row = rows[h * n];
        gemm(coder_.normalization().scale_of(layer), of_atoms.view().rows(h * n, n), Transpose::no,
             atoms.columns(h * d, d), Transpose::no, 0, out.rows(row, n));
        if (coder_.normalization().center() != Center::channel) continue;
        const auto mean = coder_.normalization().channel_mean.row(layer).subspan(heads[h].head * d, d);
        for (size_t j = 0; j < n; ++j) {
          double sum = 0;
          for (size_t t = 0; t < weights.cols(); ++t) sum += weights(row + j, t);
          for (size_t c = 0; c < d; ++c) out(row + j, c) += static_cast<float>(sum * mean[c]);
        }
      }
    });
  }
}

}  // namespace kvcodec::sparse
