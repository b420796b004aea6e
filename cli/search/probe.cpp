#include "cli/search/probe.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/core/bits.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

/// Upper bounds of the bytes of a codes file besides its streams: for each token, for each document, for each of its parts (one per
/// side of a group), and for the file itself. Measured; they matter for caches of a few megabytes.
constexpr double kTokenBytes = 8.2, kDocumentBytes = 45, kPartBytes = 74, kFileBytes = 21000;

/// Tokens of a document for each query that judges them: attention then takes about as long as coding.
constexpr uint64_t kTokensOfQuery = 128;

/// Bits of a stream's bytes in a file, with packed ids.
double stored_bits(const StreamSpec& spec, uint64_t bytes) {
  const uint64_t elements = bytes / size_of(spec.type);
  return spec.index_bound > 0 ? static_cast<double>(elements * index_bits(spec.index_bound))
                              : static_cast<double>(bytes) * 8;
}

}  // namespace

Probe::Probe(const KvReader& kv, const std::vector<size_t>& documents, const std::vector<size_t>& sampled,
             const std::vector<int>& layers, uint64_t max_tokens)
    : kv_(kv), layers_(layers), all_documents_(documents.size()), all_held_(as_size(kv.model().num_layers)) {
  for (const size_t document : documents) {
    all_tokens_ += kv.documents().length(document);
    for (const int layer : layers) all_held_[as_size(layer)] += kv.documents().held(layer, document);
  }
  take_pieces(sampled, max_tokens);
  if (tokens_ == 0) throw bad_input("{}: there is no token to try options on", kv.name());
  const std::vector<uint64_t> rows = StoredQueries::rows_in(kv);
  for (const Piece& piece : pieces_)
    queries_.emplace_back(kv, rows, piece.document, (piece.count + kTokensOfQuery - 1) / kTokensOfQuery);
}

/// Takes the documents that hold tokens at even distances, as many as suffice if all are of one length; then at half the distances,
/// until there are enough tokens.
void Probe::take_pieces(const std::vector<size_t>& sampled, uint64_t max_tokens) {
  const Documents& documents = kv_.documents();
  std::vector<size_t> filled;
  std::vector<uint64_t> ends;  // of these documents, one behind the other
  for (const size_t document : sampled)
    if (documents.length(document) > 0) {
      filled.push_back(document);
      ends.push_back((ends.empty() ? 0 : ends.back()) + documents.length(document));
    }
  if (ends.empty()) return;
  const uint64_t tokens = ends.back(), wanted = std::clamp<uint64_t>(max_tokens, 1, tokens);
  std::vector<bool> taken(ends.size());
  for (uint64_t places = (wanted * ends.size() + tokens - 1) / tokens; tokens_ < wanted; places *= 2)
    for (uint64_t k = 0; k < places && tokens_ < wanted; ++k) {
      const uint64_t place = (2 * k + 1) * tokens / (2 * places);
      const auto i = static_cast<size_t>(std::ranges::upper_bound(ends, place) - ends.begin());
      if (taken[i]) continue;
      taken[i] = true;
      const uint64_t count = std::min(documents.length(filled[i]), wanted - tokens_);
      pieces_.push_back(piece_at(filled[i], documents.offsets[filled[i]], count));
      tokens_ += count;
    }
  std::ranges::sort(pieces_, {}, &Piece::document);
}

Probe::Piece Probe::piece_at(size_t document, uint64_t first, uint64_t count) const {
  return {document, first, count, kv_.has_tokens() ? kv_.tokens(first, count) : std::vector<uint32_t>()};
}

void Probe::note_energy_alone(const CommonOptions& common) const {
  if (!has_queries())
    common.note(
        "{}: it has no queries for attention, so that errors are judged by their energy alone, which says little "
        "about what a model loses; see dump-kv --queries",
        kv_.name());
}

template <class Body>
void Probe::for_each_part(const Codec& codec, std::span<const Side> sides, const Body& body) const {
  for (const auto& group : whole_groups(layers_, groups_by(codec), ErrorKind::usage, "layers"))
    for (const Side side : sides) {
      const GroupShape shape{group, kv_.model().layer_shape(group.front()), side};
      if (shape.width() == 0) continue;
      const Rows rows = read(codec, shape);
      at_dataset(kv_.name(), side, group.front(),
                 [&] { body(shape, encode_in_memory(codec, shape, rows.documents), rows); });
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

Probe::Rows Probe::read(const Codec& codec, const GroupShape& shape) const {
  Rows rows;
  const GroupShape surveyed = codec.surveyed(shape);
  for (const Piece& piece : pieces_) rows.pieces.push_back(held(piece, shape.first_layer()));
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

void Probe::add_bits(const GroupShape& shape, const Encoded& encoded, const Rows& rows, Total& total) const {
  double own = 0;
  for (const StreamSpec& spec : encoded.specs())
    (spec.shared ? total.shared : own) += stored_bits(spec, encoded.bytes(spec.name).size());
  uint64_t sampled = 0;
  for (const Piece& piece : rows.pieces) sampled += piece.count;
  const auto all = static_cast<double>(all_held_[as_size(shape.first_layer())]);
  const double values = static_cast<double>(shape.width()) * all;
  total.values += values;
  if (sampled == 0) return;
  total.known_values += values;
  total.own += own * all / static_cast<double>(sampled);
}

double Probe::bits(const Codec& codec) const {
  Total total;
  uint64_t sides = 0;
  for_each_part(codec, codec.sides(), [&](const GroupShape& shape, const Encoded& encoded, const Rows& rows) {
    add_bits(shape, encoded, rows, total);
    ++sides;
  });
  const double of_document = kDocumentBytes + static_cast<double>(sides) * kPartBytes;
  const double besides = static_cast<double>(all_tokens_) * kTokenBytes +
                         static_cast<double>(all_documents_) * of_document + kFileBytes;
  return total.bits_per_value(8 * besides);
}

void Probe::add_errors(const Codec& codec, const GroupShape& shape, const Encoded& encoded, const Rows& rows,
                       Errors& errors) const {
  for (size_t d = 0; d < pieces_.size(); ++d) {
    const Matrix<float>& original = rows.own[d];
    if (original.rows() == 0) continue;
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
        if (queries_[d].empty()) continue;
        std::vector<uint64_t> tokens(original.rows());
        std::iota(tokens.begin(), tokens.end(), rows.pieces[d].first);
        const LayerRows own(kv_, layer, tokens.front(), tokens.size());
        LayerRows other = own;
        other.replace(kv_.model().layer_shape(layer), side, decoded.view().columns(begin, width));
        sums.attention.add(
            queries_[d].errors(kv_, layer, tokens, {own.keys, own.values, other.keys, other.values}));
      }
  }
}

Probe::Errors Probe::errors(const Codec& codec) const {
  Errors errors(as_size(kv_.model().num_layers));
  for_each_part(codec, codec.sides(), [&](const GroupShape& shape, const Encoded& encoded, const Rows& rows) {
    add_errors(codec, shape, encoded, rows, errors);
  });
  return errors;
}

Probe::OneSide Probe::one_side(const Codec& codec, Side side) const {
  OneSide result{.side = side, .errors = {}};
  result.errors.resize(as_size(kv_.model().num_layers));
  Total total;
  for_each_part(codec, {&side, 1}, [&](const GroupShape& shape, const Encoded& encoded, const Rows& rows) {
    add_bits(shape, encoded, rows, total);
    add_errors(codec, shape, encoded, rows, result.errors);
  });
  result.width = total.values / static_cast<double>(all_tokens_);
  result.bits = total.values > 0 ? total.bits_per_value(0) : 0;
  return result;
}

double Probe::OneSide::cost(const Weights* weights) const {
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

namespace {

/// cost(errors, side, layer): of a side of a layer that has a signal.
template <class Cost>
double mean_db(const Probe::Errors& errors, const Cost& cost) {
  double sum = 0;
  size_t count = 0;
  for (size_t layer = 0; layer < errors.size(); ++layer)
    for (const Side side : kSides)
      if (const Probe::SideErrors& own = errors[layer][side == Side::value]; own.signal > 0)
        sum += cost(own, side, layer), ++count;
  return count == 0 ? 0 : -10 * std::log10(sum / static_cast<double>(count));
}

}  // namespace

double Probe::snr_db(const Errors& errors) {
  return mean_db(errors, [](const SideErrors& own, Side, size_t) { return own.error / own.signal; });
}

double Probe::judged_db(const Errors& errors) {
  return mean_db(errors, [](const SideErrors& own, Side side, size_t layer) {
    return cost_of_errors(own, side, layer, nullptr);
  });
}

}  // namespace kvcodec::cli
