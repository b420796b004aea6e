#include "lib/pipeline/generation.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/pipeline/attend.hpp"

namespace kvcodec {

/// Tokens that are read at a time up to which their attention takes past rows from where they are; for more a copy of these, in the order that the
/// model's own attention wants, costs less.
constexpr size_t kReadInPlace = 8;

uint32_t choose_token(std::span<const float> logits, const Sampling& sampling, Rng& rng) {
  if (find_non_finite(logits)) throw failed("the model's prediction is not finite");
  if (sampling.temperature == 0)
    return static_cast<uint32_t>(std::ranges::max_element(logits) - logits.begin());
  std::vector<uint32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0u);
  const size_t likeliest =
      sampling.top_k > 0 ? std::min(order.size(), as_size(sampling.top_k)) : order.size();
  std::ranges::partial_sort(
      order, order.begin() + std::ssize(std::span(order).first(likeliest)),
      [&](uint32_t a, uint32_t b) { return std::pair(-logits[a], a) < std::pair(-logits[b], b); });
  order.resize(likeliest);
  std::vector<double> weights;
  weights.reserve(order.size());
  for (const uint32_t token : order)
    weights.push_back(
        std::exp((double{logits[token]} - double{logits[order.front()]}) / sampling.temperature));
  const double wanted = sampling.top_p * std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0;
  size_t kept = 0;
  while (kept < weights.size() && (kept == 0 || sum < wanted)) sum += weights[kept++];
  double left = rng.uniform() * sum;
  for (size_t i = 0; i < kept; ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order[kept - 1];
}

/// Hands the tokens that are there to the model.
class GrowingDocument::Cache final : public PastCache {
 public:
  explicit Cache(const GrowingDocument& document) : document_(document) {}
  void read(int layer, size_t /*document*/, MatrixView<float> keys, MatrixView<float> values) override {
    for (const Side side : kSides) {
      const Matrix<float>& from = document_.rows_.of(side)[as_size(layer)];
      MatrixView<float>& to = side == Side::key ? keys : values;
      for (size_t t = 0; t < to.rows(); ++t) std::ranges::copy(from.row(t), to.row(t).begin());
    }
  }
  std::span<const float> state(int layer, size_t /*document*/) const override {
    return document_.states_.at(as_size(layer));
  }

 private:
  const GrowingDocument& document_;
};

/// Takes the keys, the values and the last prediction of what is read.
class GrowingDocument::Sink final : public PrefillSink {
 public:
  /// first_row: of `rows`, where the first token goes.
  Sink(GrowingDocument& document, size_t first_row) : document_(document), first_row_(first_row) {}
  void layer(const LayerChunk& chunk) override {
    for (const Side side : kSides) {
      const auto& from = side == Side::key ? chunk.key : chunk.value;
      Matrix<float>& to = document_.rows_.of(side)[as_size(chunk.layer)];
      for (size_t i = 0; i < from.rows(); ++i)
        std::ranges::copy(from.row(i), to.row(first_row_ + chunk.first + i).begin());
    }
  }
  void state(int layer, size_t /*document*/, std::span<const float> state) override {
    auto& states = document_.states_;
    states.resize(as_size(document_.model_.config().num_layers));
    states[as_size(layer)].assign(state.begin(), state.end());
  }
  void logits(size_t /*first*/, MatrixView<const float> logits) override {
    const auto last = logits.row(logits.rows() - 1);
    document_.logits_.assign(last.begin(), last.end());
  }

 private:
  GrowingDocument& document_;
  size_t first_row_;
};

/// Attention to what the document has, where it is: codes, or rows.
class GrowingDocument::Past final : public AttentionMethod {
 public:
  explicit Past(GrowingDocument& document) : document_(document), config_(document.model_.config()) {}
  bool has_past() const override { return true; }
  void attend(const AttentionRows& rows) override {
    document_.codes_ ? attend_to_codes(rows) : attend_to_rows(rows);
  }

 private:
  /// The first token that a query sees which sees `visible` of the document's first.
  uint64_t first_seen(int layer, uint64_t visible) const {
    const size_t window = as_size(config_.window[as_size(layer)]);
    return window > 0 && visible > window ? visible - window : 0;
  }
  ScoreForm form_of(const AttentionRows& rows) const {
    return {static_cast<float>(config_.attention_softcap), rows.sinks};
  }

  void attend_to_codes(const AttentionRows& rows) const {
    const ModelConfig own = config_.of_layer(rows.source);
    const GroupShape group = {{rows.source}, usual_layer(own.num_kv_heads, own.head_dim), Side::key};
    const AttentionSource source{[&](Side side, uint64_t first, MatrixView<const float> factors,
                                     MatrixView<float> out) { multiply(rows, side, first, factors, out); }};
    const size_t batch = attention_batch(group, config_.num_q_heads);
    for (size_t begin = 0; begin < rows.query.rows(); begin += batch) {
      const size_t count = std::min(batch, rows.query.rows() - begin);
      std::vector<uint64_t> visible(count), from(count);
      for (size_t i = 0; i < count; ++i) {
        visible[i] = rows.position + begin + i + 1;
        from[i] = first_seen(rows.layer, visible[i]);
      }
      attend_causally(group, source,
                      {.q_heads = config_.num_q_heads,
                       .rows = rows.query.rows(begin, count),
                       .visible = visible,
                       .from = from,
                       .form = form_of(rows)},
                      rows.out.rows(begin, count));
    }
  }

  /// Products with codes, and behind them with rows of tokens that are new.
  void multiply(const AttentionRows& rows, Side side, uint64_t first, MatrixView<const float> factors,
                MatrixView<float> out) const {
    const bool keys = side == Side::key;
    const size_t count = keys ? out.cols() : factors.cols(),
                 past = first < rows.past ? std::min<size_t>(count, rows.past - first) : 0;
    if (past > 0)
      document_.codes_->multiply(side, rows.source, first, keys ? factors : factors.columns(0, past),
                                 keys ? out.columns(0, past) : out);
    else if (!keys)
      for (size_t i = 0; i < out.rows(); ++i) std::ranges::fill(out.row(i), 0.0f);
    if (past == count) return;
    const size_t begin = first + past - rows.past;
    if (keys)
      multiply_key_rows(rows.key.rows(begin, count - past), factors, out.columns(past, count - past));
    else
      multiply_value_rows(rows.value.rows(begin, count - past), factors.columns(past, count - past), out);
  }

  void attend_to_rows(const AttentionRows& rows) {
    const ModelConfig own = config_.of_layer(rows.source);
    const auto layer = as_size(rows.source), heads = as_size(own.num_kv_heads), dims = as_size(own.head_dim),
               value_dims = as_size(own.value_dim()), sharing = as_size(config_.num_q_heads) / heads;
    const bool in_keys = config_.is_latent();
    MatrixView<float> keys = document_.rows_.keys[layer],
                      values = in_keys ? keys : document_.rows_.values[layer];
    // New tokens are not there before they are handed out.
    for (size_t i = 0; i < rows.query.rows(); ++i) {
      const size_t token = rows.position + i, row = token - rows.past;
      std::ranges::copy(rows.key.row(row), keys.row(token).begin());
      if (!in_keys) std::ranges::copy(rows.value.row(row), values.row(token).begin());
    }
    std::vector<CacheRows> seen;
    std::vector<Attention> tasks;
    seen.reserve(rows.query.rows() * heads);
    tasks.reserve(rows.query.rows() * heads);
    for (size_t i = 0; i < rows.query.rows(); ++i)
      for (size_t head = 0; head < heads; ++head) {
        const uint64_t visible = rows.position + i + 1, from = first_seen(rows.layer, visible);
        seen.emplace_back(
            keys.columns(head * dims, dims).rows(from, visible - from),
            values.columns(in_keys ? 0 : head * value_dims, value_dims).rows(from, visible - from));
        tasks.push_back({.queries = {rows.query.row(i).data() + head * sharing * dims, sharing, dims},
                         .rows = &seen.back(),
                         .out = {rows.out.row(i).data() + head * sharing * value_dims, sharing, value_dims},
                         .form = form_of(rows).of_heads(head * sharing, sharing)});
      }
    kvcodec::attend(tasks);
  }

  GrowingDocument& document_;
  const ModelConfig& config_;
};

void GrowingDocument::start(size_t tokens) {
  if (tokens > room_) throw usage_error("{} tokens are to be kept; there is room for {}", tokens, room_);
  const size_t held = rows_.keys.front().rows();
  if (tokens > held) {
    LayerRows larger(model_.config(), std::min(room_, std::max(tokens, 2 * held)));
    for (const Side side : kSides)
      for (size_t layer = 0; layer < larger.keys.size(); ++layer)
        for (size_t t = 0; t < tokens_; ++t)
          std::ranges::copy(rows_.of(side)[layer].row(t), larger.of(side)[layer].row(t).begin());
    rows_ = std::move(larger);
  }
  tokens_ = tokens;
}

std::span<const float> GrowingDocument::read(std::span<const uint32_t> tokens, const Progress& progress,
                                             AttentionMethod* attention) {
  if (tokens.empty() || tokens.size() > room_ - tokens_)
    throw usage_error("{} tokens are to be read, behind {} of at most {}", tokens.size(), tokens_, room_);
  const uint64_t offsets[] = {0, tokens.size()}, past[] = {tokens_};
  if (codes_)
    rows_ = LayerRows(model_.config(), tokens.size());
  else
    start(past[0] + tokens.size());
  Cache cache(*this);
  Sink sink(*this, codes_ ? 0 : past[0]);
  Past in_place(*this);
  PrefillOptions options;
  options.logits = LogitRows::last;
  options.attention = attention;
  if (codes_ || (!attention && past[0] > 0 && tokens.size() <= kReadInPlace && !model_.uses_engine()))
    options.attention = &in_place;
  model_.prefill({.tokens = tokens, .offsets = offsets, .past = past, .cache = &cache}, options, sink,
                 progress);
  if (codes_) {
    codes_->append(rows_, 0, tokens.size(), tokens);
    tokens_ += tokens.size();
  }
  return logits_;
}

KeyRope rope_to_join(const ModelConfig& config) {
  KeyRope rope = KeyRope::of(config);
  if (!rope.known()) throw usage_error("caches of this model cannot be joined: {}", rope.why_not());
  if (!config.delta.layers.empty())
    throw usage_error(
        "caches of this model cannot be joined: its layers without attention keep a state of all tokens");
  return rope;
}

LayerRows read_in_pieces(const LlamaModel& model, std::span<const uint32_t> tokens, const Joining& joining) {
  const ModelConfig& config = model.config();
  const KeyRope rope = rope_to_join(config);
  if (joining.pieces < 1 || joining.pieces > tokens.size())
    throw usage_error("{} tokens cannot be read in {} pieces", tokens.size(), joining.pieces);
  GrowingDocument whole(model, tokens.size());
  for (size_t i = 0; i < joining.pieces; ++i) {
    const size_t place = i * tokens.size() / joining.pieces,
                 count = (i + 1) * tokens.size() / joining.pieces - place;
    if (i == 0) {
      whole.read(tokens.first(count));
      continue;
    }
    std::vector<uint32_t> ids = joining.begin;
    ids.insert(ids.end(), tokens.begin() + std::ssize(tokens.first(place)),
               tokens.begin() + std::ssize(tokens.first(place + count)));
    GrowingDocument piece(model, ids.size());
    piece.read(ids);
    const size_t again = std::min(count, joining.recomputed);
    if (again > 0) whole.read(tokens.subspan(place, again));
    whole.start(place + count);
    for (size_t layer = 0; layer < as_size(config.num_layers); ++layer) {
      const MatrixView<float> keys = piece.rows().keys[layer];
      const int number[] = {static_cast<int>(layer)};
      rope.turn(TurnWay::back, number, uint64_t{0}, keys);
      rope.turn(TurnWay::forward, number, uint64_t{place}, keys.rows(joining.begin.size(), count));
      for (const Side side : kSides) {
        const Matrix<float>& from = piece.rows().of(side)[layer];
        for (size_t t = again; t < count; ++t)
          std::ranges::copy(from.row(joining.begin.size() + t),
                            whole.rows().of(side)[layer].row(place + t).begin());
      }
    }
  }
  return std::move(whole.rows());
}

}  // namespace kvcodec
