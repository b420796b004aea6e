#include "cli/search/probe.hpp"

#include <cmath>
#include <numeric>

#include "formats/hdf5/hdf5.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {

/// The bytes of a codes file besides its streams and its block of headers: of each token, document, part (one per side of a group), group of
/// parts, and stream of one; of headers in small blocks; and one byte of so many, for digests and an unused end. Measured; they matter for a
/// few megabytes.
constexpr uint64_t kTokenBytes = 8, kDocumentBytes = 125, kPartBytes = 60, kColumnBytes = 56,
                   kStreamBytes = 16, kHeaderBytes = 8192, kDataShare = 1024;

/// Tokens of a document for each query that judges them: attention then takes about as long as coding. Of short pieces a few queries
/// more, as they differ much.
constexpr uint64_t kTokensOfQuery = 128, kLeastQueries = 4;

/// Documents are cut at multiples of so many tokens, which end a block of any codec: tokens short of a block may be kept exactly.
constexpr uint64_t kCut = 256;

/// Bits of a stream's bytes in a file, with packed ids.
static double stored_bits(const StreamSpec& spec, uint64_t bytes) {
  const uint64_t elements = bytes / size_of(spec.type);
  return spec.index_bound > 0 ? static_cast<double>(elements * index_bits(spec.index_bound))
                              : static_cast<double>(bytes) * 8;
}

Probe::Probe(const KvReader& kv, const std::vector<size_t>& documents, const std::vector<size_t>& sampled,
             const std::vector<int>& layers, uint64_t max_tokens)
    : kv_(kv), layers_(layers), all_documents_(documents.size()), all_held_(as_size(kv.model().num_layers)) {
  for (const size_t document : documents) {
    all_tokens_ += kv.documents().length(document);
    for (const int layer : layers) all_held_[as_size(layer)] += kv.documents().held(layer, document);
  }
  for (const size_t document : sampled)
    if (const uint64_t length = kv.documents().length(document); length > 0) {
      filled_.push_back(document);
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + length);
    }
  if (ends_.empty()) throw bad_input("{}: there is no token to try options on", kv.name());
  tokens_ = std::clamp<uint64_t>(max_tokens, 1, ends_.back());
  query_rows_ = StoredQueries::rows_in(kv);
  has_queries_ = std::ranges::any_of(
      filled_, [&](size_t document) { return !StoredQueries(kv, query_rows_, document, 1).empty(); });
}

/// Takes the documents that hold tokens at even distances, as many as suffice if all are of one length; then at half the distances,
/// until there are enough tokens. Where the first of them lies depends on the part: multiples of the golden ratio are spread evenly.
std::vector<Probe::Piece> Probe::pieces_of(size_t part) const {
  constexpr double kGolden = 0.6180339887498949;
  const double shift = 0.5 + kGolden * static_cast<double>(part), first = shift - std::floor(shift);
  std::vector<Piece> pieces;
  std::vector<bool> taken(ends_.size());
  const uint64_t all = ends_.back();
  uint64_t there = 0;
  bool full = false;
  for (uint64_t places = (tokens_ * ends_.size() + all - 1) / all; !full; places *= 2)
    for (uint64_t k = 0; k < places && !full; ++k) {
      const double place =
          (static_cast<double>(k) + first) / static_cast<double>(places) * static_cast<double>(all);
      const auto i = static_cast<size_t>(
          std::ranges::upper_bound(ends_, std::min(static_cast<uint64_t>(place), all - 1)) - ends_.begin());
      if (taken[i]) continue;
      taken[i] = true;
      const uint64_t length = kv_.documents().length(filled_[i]);
      uint64_t count = std::min(length, tokens_ - there);
      if (count < length && count > kCut) count -= count % kCut;
      full = count < length || there + count == tokens_;
      if (count < length && count < kCut && there > 0) break;
      pieces.push_back(piece_at(filled_[i], kv_.documents().offsets[filled_[i]], count));
      there += count;
    }
  std::ranges::sort(pieces, {}, &Piece::document);
  return pieces;
}

template <class Body>
void Probe::for_each_part(const Codec& codec, std::span<const Side> sides, const Body& body) const {
  size_t part = 0;  // sides have different documents, too
  for (const auto& group : whole_groups(layers_, groups_by(codec), ErrorKind::usage, "layers")) {
    for (const Side side : sides) {
      const GroupShape shape{group, kv_.model().layer_shape(group.front()), side};
      if (shape.width() == 0) continue;
      const Rows rows = read(codec, shape, part + (side == Side::value));
      for (const Matrix<float>& own : rows.own) coded_values_ += own.size();
      at_dataset(kv_.name(), side, group.front(),
                 [&] { body(shape, encode_in_memory(codec, shape, rows.documents), rows); });
    }
    part += codec.sides().size();
  }
}

/// The piece, or, if the layer leaves out its first token, as many tokens from the first one that the layer holds.
Probe::Piece Probe::held(const Piece& piece, int layer) const {
  const Documents& documents = kv_.documents();
  const uint64_t begin = documents.offsets[piece.document] + documents.left_out_of(layer, piece.document);
  return begin <= piece.first
             ? piece
             : piece_at(piece.document, begin,
                        std::min(piece.count, documents.offsets[piece.document + 1] - begin));
}

Probe::Rows Probe::read(const Codec& codec, const GroupShape& shape, size_t part) const {
  Rows rows;
  const GroupShape surveyed = codec.surveyed(shape);
  for (const Piece& piece : pieces_of(part)) rows.pieces.push_back(held(piece, shape.first_layer()));
  const auto read = [&](const GroupShape& of, std::vector<Matrix<float>>& to) {
    for (const Piece& piece : rows.pieces)
      if (Matrix<float>& all = to.emplace_back(piece.count, of.width()); piece.count > 0)
        kv_.read(of, piece.first, all);
  };
  read(shape, rows.own);
  if (surveyed.side != shape.side) read(surveyed, rows.surveyed);
  for (size_t i = 0; i < rows.pieces.size(); ++i) {
    DocumentRows& document = rows.documents.emplace_back(rows.own[i].view());
    document.token_ids = rows.pieces[i].ids;
    if (!rows.surveyed.empty()) document.surveyed = rows.surveyed[i].view();
    if (!codec.weighs_tokens()) continue;
    const Piece& piece = rows.pieces[i];
    std::vector<float>& weights = weights_[piece.document];
    if (weights.empty()) weights = token_weights(kv_, query_rows_, piece.document);
    const auto begin =
        weights.begin() + static_cast<ptrdiff_t>(piece.first - kv_.documents().offsets[piece.document]);
    document.weights.assign(begin, begin + static_cast<ptrdiff_t>(piece.count));
  }
  if (codec.wants_queries() && kv_.query_tokens() > 0) read_queries(shape, rows);
  return rows;
}

void Probe::read_queries(const GroupShape& shape, Rows& rows) const {
  const auto queries = kv_.queries(shape.first_layer());
  if (!queries || queries->token_rows.empty()) return;
  rows.queries.reserve(rows.pieces.size());
  for (size_t i = 0; i < rows.pieces.size(); ++i) {
    TokenQueries some = queries_of(*queries, rows.pieces[i].first, rows.pieces[i].count);
    Matrix<float>& matrix = rows.queries.emplace_back(some.rows.rows(), some.rows.cols());
    std::copy_n(some.rows.data(), matrix.size(), matrix.data());
    rows.documents[i].query_tokens = std::move(some.tokens);
    rows.documents[i].queries = matrix.view();
  }
}

Probe::Total Probe::total_of(const GroupShape& shape, const Encoded& encoded, const Rows& rows) const {
  Total total;
  for (const StreamSpec& spec : encoded.specs()) {
    const double bits = stored_bits(spec, encoded.bytes(spec.name).size());
    (spec.shared ? total.shared : total.own) += bits;
    if (spec.category == Category::exempt) total.exact += bits;
  }
  uint64_t sampled = 0;
  for (const Piece& piece : rows.pieces) sampled += piece.count;
  const auto all = static_cast<double>(all_held_[as_size(shape.first_layer())]);
  total.values = static_cast<double>(shape.width()) * all;
  total.known_values = sampled > 0 ? total.values : 0;
  for (double* const bits : {&total.own, &total.exact})
    *bits = sampled > 0 ? *bits * all / static_cast<double>(sampled) : 0;
  return total;
}

void Probe::Total::add(const Total& other) {
  own += other.own, shared += other.shared, exact += other.exact;
  values += other.values, known_values += other.known_values;
}

void Probe::add_errors(const Codec& codec, const GroupShape& shape, const Encoded& encoded, const Rows& rows,
                       Errors& errors) const {
  for (size_t d = 0; d < rows.pieces.size(); ++d) {
    const Matrix<float>& original = rows.own[d];
    if (original.rows() == 0) continue;
    const Piece& piece = rows.pieces[d];
    const StoredQueries queries(kv_, query_rows_, piece.document,
                                std::max(kLeastQueries, (piece.count + kTokensOfQuery - 1) / kTokensOfQuery));
    Matrix<float> decoded(original.rows(), original.cols());
    codec.open(shape, encoded.document(d))->decode(0, decoded);
    const auto sides = sides_in(shape.side);
    for (const Side side : sides)
      for (size_t l = 0; l < shape.layers.size(); ++l) {
        const int layer = shape.layers[l];
        SideErrors& sums = errors[as_size(layer)][side == Side::value ? 1 : 0];
        const size_t begin = shape.column_of(side, l), width = shape.layer.width(side);
        if (width == 0) continue;
        for (size_t t = 0; t < original.rows(); ++t)
          for (size_t j = begin; j < begin + width; ++j) {
            const double x = original(t, j), error = x - static_cast<double>(decoded(t, j));
            sums.signal += x * x;
            sums.error += error * error;
          }
        if (queries.empty()) continue;
        std::vector<uint64_t> tokens(original.rows());
        std::iota(tokens.begin(), tokens.end(), piece.first);
        const LayerRows own(kv_, layer, tokens.front(), tokens.size());
        LayerRows other = own;
        other.replace(kv_.model().layer_shape(layer), side, decoded.view().columns(begin, width));
        sums.attention.add(
            queries.errors(kv_, layer, tokens, {own.keys, own.values, other.keys, other.values}));
      }
  }
}

Probe::Trial Probe::measure(const Codec& codec, std::span<const Side> sides, Asked asked) const {
  Trial trial;
  if (asked == Asked::errors) trial.errors.resize(as_size(kv_.model().num_layers));
  std::array<Total, 2> totals;
  uint64_t parts = 0, streams = 0;
  for_each_part(codec, sides, [&](const GroupShape& shape, const Encoded& encoded, const Rows& rows) {
    totals[shape.side == Side::value].add(total_of(shape, encoded, rows));
    if (asked == Asked::errors) add_errors(codec, shape, encoded, rows, trial.errors);
    ++parts, streams += encoded.specs().size();
  });
  for (size_t side = 0; side < totals.size(); ++side)
    if (const double values = totals[side].values; values > 0)
      trial.sides[side] = {totals[side].bits_per_value(), values / static_cast<double>(all_tokens_)};
  Total total = totals[0];
  total.add(totals[1]);
  if (total.values == 0) return trial;
  const uint64_t block = h5::File::header_block_bytes(2 * static_cast<uint64_t>(total.values));
  const uint64_t besides = all_tokens_ * kTokenBytes +
                           all_documents_ * (kDocumentBytes + parts * kPartBytes) + parts * kColumnBytes +
                           streams * kStreamBytes + block + (block < kHeaderBytes ? kHeaderBytes : 0) +
                           static_cast<uint64_t>(total.own / 8) / kDataShare;
  trial.besides = 8 * static_cast<double>(besides) / total.values;
  trial.bits = total.bits_per_value() + trial.besides;
  trial.exact = total.known_values > 0 ? total.exact / 16 / total.known_values : 0;
  return trial;
}

double Probe::Trial::cost(Side side, const Weights* weights) const {
  double sum = 0;
  for (size_t layer = 0; layer < errors.size(); ++layer)
    sum += cost_of_errors(errors[layer][side == Side::value], side, layer, weights);
  return sum;
}

double cost_of_errors(const Probe::SideErrors& errors, Side side, size_t layer, const Weights* weights) {
  if (errors.signal <= 0) return 0;
  if (weights) return errors.error * weights->cost(side, static_cast<int>(layer));
  const AttentionErrorSums& attention = errors.attention;
  return attention.queries > 0 ? attention.mean_divergence() + attention.output_nmse()
                               : errors.error / errors.signal;
}

/// cost(errors, side, layer): of a side of a layer that has a signal.
template <class Cost>
static double mean_db(const Probe::Errors& errors, const Cost& cost) {
  double sum = 0;
  size_t count = 0;
  for (size_t layer = 0; layer < errors.size(); ++layer)
    for (const Side side : kSides)
      if (const Probe::SideErrors& own = errors[layer][side == Side::value]; own.signal > 0)
        sum += cost(own, side, layer), ++count;
  return count == 0 ? 0 : -10 * std::log10(sum / static_cast<double>(count));
}

double Probe::snr_db(const Errors& errors) {
  return mean_db(errors, [](const SideErrors& own, Side, size_t) { return own.error / own.signal; });
}

double Probe::judged_db(const Errors& errors) {
  return mean_db(errors, [](const SideErrors& own, Side side, size_t layer) {
    return cost_of_errors(own, side, layer, nullptr);
  });
}

}  // namespace kvcodec::cli
