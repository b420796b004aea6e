// kvcodec_bench_selection: how well selectors find the tokens that attention looks at, on keys and queries of
// a model.
//
//   kvcodec_bench_selection KV
//
// KV is a kv file with queries (kvcodec dump-kv --queries last:32). In every document the tokens before the
// first one with a query are the context; every query head selects from it, budgets of 64 to 512 tokens and
// 7.5%. Means over layers, heads and queries of the recall of the true top-B, the share of the softmax
// weights covered, and the error of the attention output, relative to that over the whole context.
#include <algorithm>
#include <cmath>
#include <map>

#include "formats/cache/kv_file.hpp"
#include "lib/attention/attention.hpp"
#include "lib/attention/selector.hpp"
#include "lib/metrics/reconstruction.hpp"
#include "test/bench/bench.hpp"

using namespace kvcodec;

namespace {

struct Sums {
  double recall = 0, mass = 0, error = 0;
  size_t count = 0;
};

/// Recall, mass and error by budget and method, in their original order.
using Results = std::map<size_t, std::vector<std::pair<std::string, Sums>>>;

/// Sign codes of keys from which `center` is subtracted.
struct Signs {
  Matrix<uint8_t> codes;
  SignCodebook codebook;
  SignIndex index;

  Signs(const Matrix<float>& keys, const std::vector<float>& center)
      : codes(keys.rows(), sign_row_bytes(keys.cols())), index(keys.cols()) {
    Matrix<float> centred = keys;
    for (size_t t = 0; t < keys.rows(); ++t)
      for (size_t j = 0; j < keys.cols(); ++j) centred(t, j) -= center[j];
    encode_signs(centred, 1, codes);
    codebook = build_codebooks(centred, codes, 1)[0];
    index.append(codes);
  }
};

std::vector<float> mean_of(const Matrix<float>& keys) {
  std::vector<double> sums(keys.cols());
  for (size_t t = 0; t < keys.rows(); ++t)
    for (size_t j = 0; j < keys.cols(); ++j) sums[j] += keys(t, j);
  std::vector<float> mean(keys.cols());
  for (size_t j = 0; j < mean.size(); ++j) mean[j] = static_cast<float>(sums[j] / double(keys.rows()));
  return mean;
}

/// Centroids that are the signs themselves.
SignCodebook signs_only(size_t dims) {
  SignCodebook codebook{Matrix<float>(dims, kSignCodes)};
  for (size_t j = 0; j < dims; ++j)
    for (size_t code = 0; code < kSignCodes; ++code)
      codebook.centroids(j, code) = (code >> (kSignGroup - 1 - j % kSignGroup)) & 1 ? 1.0f : -1.0f;
  return codebook;
}

/// One head's context against the queries of one head.
void measure_head(const Matrix<float>& keys, const Matrix<float>& values, MatrixView<const float> queries,
                  Results& results) {
  const CacheRows rows(keys, values);
  const size_t dims = keys.cols();
  const Signs centred(keys, mean_of(keys)), raw(keys, std::vector<float>(dims));
  const SignCodebook signs = signs_only(dims);
  const OracleSelector oracle(keys);
  const std::vector<float> none(dims);  // no key is appended
  const SignSelector by_codes({centred.codebook, none}, centred.index),
      by_raw({raw.codebook, none}, raw.index);
  const SignSelector by_signs({signs, none}, centred.index);
  QuestSelector quest(dims);
  quest.append(keys);
  const std::pair<const char*, const Selector*> methods[] = {{"sign codes", &by_codes},
                                                             {"  without centre", &by_raw},
                                                             {"  signs without centroids", &by_signs},
                                                             {"Quest, pages of 16", &quest},
                                                             {"oracle", &oracle}};
  Matrix<float> logits(queries.rows(), keys.rows()), full(queries.rows(), dims), part(1, dims);
  oracle.scores(queries, logits);
  const float scale = 1 / std::sqrt(static_cast<float>(dims));
  for (size_t i = 0; i < logits.size(); ++i) logits.data()[i] *= scale;
  attend({queries, &rows, full});
  for (const size_t budget : {size_t{64}, size_t{128}, size_t{256}, size_t{512}, keys.rows() * 75 / 1000}) {
    auto& table = results[budget];
    std::vector<std::vector<uint32_t>> wanted;
    for (size_t q = 0; q < queries.rows(); ++q)
      wanted.push_back(ids_in_order(top_k(logits.row(q), budget, Order::by_id)));
    for (size_t method = 0; method < std::size(methods); ++method) {
      if (table.size() <= method) table.push_back({methods[method].first, {}});
      Sums& sums = table[method].second;
      Matrix<float> scores(queries.rows(), keys.rows());
      methods[method].second->scores(queries, scores);
      for (size_t q = 0; q < queries.rows(); ++q) {
        const auto selected = ids_in_order(top_k(scores.row(q), budget, Order::by_id));
        attend({queries.rows(q, 1), &rows, part, selected});
        sums.recall += selection_recall(selected, wanted[q]);
        sums.mass += mass_covered(logits.row(q), selected);
        sums.error += relative_error(part.row(0), full.row(q));
        ++sums.count;
      }
    }
  }
}

void measure_layer(const KvReader& kv, int layer, Results& results) {
  const auto queries = kv.queries(layer);
  bench::check(queries.has_value(), "the file has queries");
  const size_t dims = static_cast<size_t>(kv.model().head_dim),
               heads = static_cast<size_t>(kv.model().num_kv_heads);
  const size_t query_heads = static_cast<size_t>(kv.model().num_q_heads), group = query_heads / heads;
  const auto& offsets = kv.documents().offsets;
  for (size_t document = 0; document + 1 < offsets.size(); ++document) {
    const auto in_document = [&](uint64_t row) {
      return row >= offsets[document] && row < offsets[document + 1];
    };
    std::vector<size_t> rows;
    for (size_t i = 0; i < queries->token_rows.size(); ++i)
      if (in_document(queries->token_rows[i])) rows.push_back(i);
    if (rows.empty() || queries->token_rows[rows[0]] <= offsets[document] + 64) continue;
    const size_t context = queries->token_rows[rows[0]] - offsets[document];
    Matrix<float> all_keys(context, heads * dims), all_values(context, heads * dims);
    kv.read(Side::key, layer, offsets[document], all_keys);
    kv.read(Side::value, layer, offsets[document], all_values);
    for (size_t head = 0; head < heads; ++head) {
      Matrix<float> keys(context, dims), values(context, dims), of_head(rows.size() * group, dims);
      for (size_t t = 0; t < context; ++t) {
        std::copy_n(all_keys.row(t).data() + head * dims, dims, keys.row(t).data());
        std::copy_n(all_values.row(t).data() + head * dims, dims, values.row(t).data());
      }
      for (size_t i = 0; i < rows.size(); ++i)
        std::copy_n(queries->values.data() + (rows[i] * query_heads + head * group) * dims, group * dims,
                    of_head.row(i * group).data());
      measure_head(keys, values, of_head, results);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print("skipped: needs a kv file with queries (kvcodec_bench_selection KV)\n");
    return 0;
  }
  const KvReader kv(argv[1]);
  Results results;
  for (const int layer : kv.layers()) measure_layer(kv, layer, results);
  fmt::print("{}: {}, {} tokens\n", kv.name(), kv.model().model, kv.documents().offsets.back());
  for (const auto& [budget, table] : results)
    for (const auto& [method, sums] : table)
      fmt::print("budget {:4}  {:26} recall {:.3f}  mass {:.3f}  output error {:.3f}  ({} selections)\n",
                 budget, method, sums.recall / double(sums.count), sums.mass / double(sums.count),
                 sums.error / double(sums.count), sums.count);
}
