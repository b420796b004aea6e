#include "lib/model/rope.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <mutex>
#include <numbers>

#include "lib/core/error.hpp"
#include "lib/core/lazy.hpp"
#include "lib/core/parallel.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {

/// Llama 3.1's rule for one frequency. Constants are rounded to float where the reference mixes them with
/// float tensors, and a constant divided by a tensor is the constant times the reciprocal, as there.
static float llama3_frequency(float frequency, const RopeScaling& scaling) {
  const double low_wavelength = scaling.original_positions / scaling.low_frequency_factor;
  const double high_wavelength = scaling.original_positions / scaling.high_frequency_factor;
  const auto factor = static_cast<float>(scaling.factor);
  const float wavelength = 1 / frequency * static_cast<float>(2 * std::numbers::pi);
  if (wavelength < static_cast<float>(high_wavelength)) return frequency;
  if (wavelength > static_cast<float>(low_wavelength)) return frequency / factor;
  const float turns = 1 / wavelength * static_cast<float>(scaling.original_positions);
  const float smooth = (turns - static_cast<float>(scaling.low_frequency_factor)) /
                       static_cast<float>(scaling.high_frequency_factor - scaling.low_frequency_factor);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

/// The share of a pair's frequency that yarn keeps: 1 = kept, 0 = divided by the factor. The reference computes the
/// bounds in double and the ramp between them in float.
static float kept_by_yarn(const Rope& rope, int dims, size_t pair) {
  const RopeScaling& scaling = rope.scaling;
  const auto pair_that_turns = [&](double turns) {
    return dims * std::log(scaling.original_positions / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = pair_that_turns(scaling.fast_turns), high = pair_that_turns(scaling.slow_turns);
  if (scaling.whole_bounds) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, dims - 1.0);
  if (low == high) high += 0.001;  // as the reference avoids a division by 0
  const float place = (static_cast<float>(pair) - static_cast<float>(low)) / static_cast<float>(high - low);
  return 1 - std::clamp(place, 0.0f, 1.0f);
}

/// One frequency after scaling. power: theta to the pair's exponent.
static float scaled_frequency(float power, size_t pair, const Rope& rope, int dims, RopeLength length) {
  const RopeScaling& scaling = rope.scaling;
  const float frequency = 1.0f / power;
  const auto factor = static_cast<float>(scaling.factor);
  switch (scaling.kind) {
    case RopeScaling::Kind::none:
      return frequency;
    case RopeScaling::Kind::linear:
      return frequency / factor;
    case RopeScaling::Kind::llama3:
      return llama3_frequency(frequency, scaling);
    case RopeScaling::Kind::yarn: {
      const float kept = kept_by_yarn(rope, dims, pair);
      return 1.0f / (factor * power) * (1 - kept) + frequency * kept;
    }
    case RopeScaling::Kind::longrope:
      return 1.0f / ((length == RopeLength::longer ? scaling.long_divisors : scaling.divisors)[pair] * power);
    case RopeScaling::Kind::divided:
      return frequency / scaling.divisors[pair];
    case RopeScaling::Kind::proportional:
      return static_cast<double>(pair + 1) <= scaling.share * dims / 2 ? frequency / factor : 0.0f;
  }
  return frequency;
}

/// Selects the list of longrope for documents of so many tokens.
static RopeLength length_of(const Rope& rope, size_t tokens) {
  return rope.scaling.kind == RopeScaling::Kind::longrope &&
                 static_cast<double>(tokens) > rope.scaling.original_positions
             ? RopeLength::longer
             : RopeLength::up_to_original;
}

static bool has_layer(const ModelConfig& config, LayerRope wanted) {
  if (config.layer_rope.empty()) return wanted == LayerRope::usual;
  return std::find(config.layer_rope.begin(), config.layer_rope.end(), wanted) != config.layer_rope.end();
}

static const Rope& rope_of(const ModelConfig& config, LayerRope kind) {
  return kind == LayerRope::usual ? config.rope : config.local_rope;
}

static size_t tables_of(const Rope& rope) { return rope.scaling.kind == RopeScaling::Kind::longrope ? 2 : 1; }

void order_pairs(PairOrder to, size_t dims, std::span<float> row) {
  const size_t half = dims / 2;
  std::vector<float> before(dims);
  for (size_t at = 0; at + dims <= row.size(); at += dims) {
    const auto head = row.subspan(at, dims);
    std::ranges::copy(head, before.begin());
    for (size_t j = 0; j < half; ++j)
      if (to == PairOrder::halves)
        head[j] = before[2 * j], head[j + half] = before[2 * j + 1];
      else
        head[2 * j] = before[j], head[2 * j + 1] = before[j + half];
  }
}

std::vector<float> rope_frequencies(const Rope& rope, int head_dim, RopeLength length) {
  const int dims = turned_dims(rope, head_dim);
  std::vector<float> frequencies(static_cast<size_t>(dims) / 2);
  for (size_t j = 0; j < frequencies.size(); ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(dims);
    // The power is correctly rounded here; the reference's float power may be off by one unit in the last
    // place.
    const double theta = static_cast<float>(rope.theta);
    const auto power = static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
    frequencies[j] = scaled_frequency(power, j, rope, dims, length);
  }
  return frequencies;
}

RopeTable::RopeTable(const Rope& rope, int head_dim, size_t positions, RopeLength length)
    : first_(static_cast<size_t>(rope.first)),
      head_dim_(static_cast<size_t>(head_dim)),
      cosines_(positions, static_cast<size_t>(turned_dims(rope, head_dim)) / 2),
      sines_(cosines_.rows(), cosines_.cols()) {
  const std::vector<float> frequencies = rope_frequencies(rope, head_dim, length);
  const auto factor = static_cast<float>(rope.scaling.attention_factor);
  parallel_each(positions, 64, [&](size_t position) {
    for (size_t j = 0; j < frequencies.size(); ++j) {
      const double angle = static_cast<float>(position) * frequencies[j];  // rounded to float, then widened
      cosines_(position, j) = static_cast<float>(std::cos(angle)) * factor;
      sines_(position, j) = static_cast<float>(std::sin(angle)) * factor;
    }
  });
}

void RopeTable::turn(size_t position, std::span<float> heads, std::span<const float> sines) const {
  for (size_t at = first_; at < heads.size(); at += head_dim_)
    turn_pairs(heads.subspan(at, 2 * cosines_.cols()), cosines(position), sines);
}

void RopeTable::turn_back(size_t position, std::span<float> heads) const {
  std::vector<float> opposite(sines_.cols());
  scale(sines(position), -1, opposite);
  turn(position, heads, opposite);
}

size_t rope_tables(const ModelConfig& config) {
  return (has_layer(config, LayerRope::usual) ? tables_of(config.rope) : 0) +
         (has_layer(config, LayerRope::local) ? tables_of(config.local_rope) : 0);
}

RopeTables::RopeTables(const ModelConfig& config, size_t longest) : config_(config) {
  for (const LayerRope kind : {LayerRope::usual, LayerRope::local}) {
    if (!has_layer(config, kind)) continue;
    Lengths& tables = kind == LayerRope::usual ? usual_ : local_;
    const Rope& rope = rope_of(config, kind);
    tables.usual.emplace(rope, config.head_dim_of(kind), longest);
    if (length_of(rope, longest) == RopeLength::longer)
      tables.longer.emplace(rope, config.head_dim_of(kind), longest, RopeLength::longer);
  }
}

const RopeTable* RopeTables::table(int layer, size_t document_tokens) const {
  const LayerRope kind = config_.rope_of(layer);
  if (kind == LayerRope::none) return nullptr;
  const Lengths& tables = kind == LayerRope::usual ? usual_ : local_;
  const bool longer = length_of(rope_of(config_, kind), document_tokens) == RopeLength::longer;
  return longer ? &*tables.longer : &*tables.usual;
}

namespace {

/// Values per piece of parallel work, 0.2 ms of it: what is less is done sooner than a thread starts. Small against a chunk.
constexpr size_t kPieceValues = 1 << 18;

void check_turn(const HeadTurn& turn) {
  if (turn.first + 2 * turn.frequencies.size() > turn.head_dim)
    throw bad_input("{} frequencies turn {} dimensions; heads have {}", turn.frequencies.size(),
                    2 * turn.frequencies.size(), turn.head_dim - std::min(turn.first, turn.head_dim));
  for (const float frequency : turn.frequencies)
    if (!(frequency >= 0 && frequency <= 1))
      throw bad_input("a frequency of the rotary embedding is {}; it must be in 0..1", frequency);
  if (!std::isnormal(turn.factor) || turn.factor < 0)
    throw bad_input("turned dimensions are multiplied by {}; it must be positive", turn.factor);
}

/// Cosines of the angles of each token, and behind them sines, made when they are first needed.
class AngleTable {
 public:
  static constexpr uint64_t kTokens = 8192;

  explicit AngleTable(const std::vector<float>& frequencies) : frequencies_(frequencies) {}
  const std::vector<float>& frequencies() const { return frequencies_; }

  /// A block of tokens, the first of which is index * kOfBlock.
  static constexpr uint64_t kOfBlock = 256;
  const Matrix<float>& block(uint64_t index) const {
    return blocks_[index].get([&] {
      const size_t n = frequencies_.size();
      Matrix<float> angles(kOfBlock, 2 * n);
      for (size_t i = 0; i < kOfBlock; ++i)
        cosines_sines(static_cast<float>(index * kOfBlock + i), frequencies_, angles.row(i).first(n),
                      angles.row(i).subspan(n));
      return angles;
    });
  }

 private:
  std::vector<float> frequencies_;
  std::array<Lazy<Matrix<float>>, kTokens / kOfBlock> blocks_;
};

/// The table of these frequencies, which all layers, passes and codecs share.
std::shared_ptr<const AngleTable> angle_table(const std::vector<float>& frequencies) {
  constexpr size_t kKept = 4;  // a model has one or two
  static std::mutex mutex;
  static std::deque<std::shared_ptr<const AngleTable>> tables;
  const std::lock_guard lock(mutex);
  const auto known =
      std::ranges::find_if(tables, [&](const auto& table) { return table->frequencies() == frequencies; });
  if (known != tables.end()) return *known;
  if (tables.size() == kKept) tables.pop_front();
  return tables.emplace_back(std::make_shared<AngleTable>(frequencies));
}

/// Cosines and sines of one token's angles.
struct Angles {
  void move_to(uint64_t to, TurnWay way, const HeadTurn& how) {
    if (token == to) return;
    const size_t n = how.frequencies.size();
    cosines.resize(n), sines.resize(n);
    if (to < AngleTable::kTokens) {
      if (!table) table = angle_table(how.frequencies);
      constexpr uint64_t kOfBlock = AngleTable::kOfBlock;
      if (!block || *token / kOfBlock != to / kOfBlock)  // far tokens are in no block
        block = &table->block(to / kOfBlock);
      const auto row = block->row(static_cast<size_t>(to % kOfBlock));
      std::ranges::copy(row.first(n), cosines.begin());
      std::ranges::copy(row.subspan(n), sines.begin());
    } else {
      cosines_sines(static_cast<float>(to), how.frequencies, cosines, sines);
    }
    token = to;
    const bool back = way == TurnWay::back;
    const float factor = back ? 1 / how.factor : how.factor;
    if (factor != 1) scale(cosines, factor);
    if (factor != 1 || back) scale(sines, back ? -factor : factor);
  }
  std::optional<uint64_t> token;
  std::vector<float> cosines, sines;
  std::shared_ptr<const AngleTable> table;
  const Matrix<float>* block = nullptr;  // that of the last token that the table has
};

}  // namespace

KeyRope::KeyRope(std::vector<HeadTurn> kinds, std::vector<size_t> of_layer, int head_dim)
    : kinds_(std::move(kinds)), of_layer_(std::move(of_layer)) {
  for (HeadTurn& turn : kinds_) {
    if (turn.head_dim == 0) turn.head_dim = static_cast<size_t>(head_dim);
    check_turn(turn);
  }
  for (const size_t kind : of_layer_)
    if (kind >= kinds_.size()) throw failed("a layer is turned in way {} of {}", kind, kinds_.size());
}

KeyRope KeyRope::of(const ModelConfig& config) {
  const auto turn_of = [&](const Rope& rope, LayerRope kind) {
    if (rope.scaling.kind == RopeScaling::Kind::longrope)
      throw bad_input("longrope turns short documents and long ones by other angles");
    const int head_dim = config.head_dim_of(kind);
    return HeadTurn{rope_frequencies(rope, head_dim), static_cast<float>(rope.scaling.attention_factor),
                    static_cast<size_t>(rope.first), static_cast<size_t>(head_dim)};
  };
  if (!config.names.positions.empty()) return unknown("the model's positions are learned vectors");
  try {
    // By LayerRope.
    std::vector<HeadTurn> kinds(kLayerRopes);
    std::vector<size_t> of_layer;
    for (int layer = 0; layer < config.num_layers; ++layer) {
      const LayerRope kind = config.rope_of(layer);
      of_layer.push_back(static_cast<size_t>(kind));
      if (kind != LayerRope::none) kinds[of_layer.back()] = turn_of(rope_of(config, kind), kind);
    }
    return {std::move(kinds), std::move(of_layer), config.head_dim};
  } catch (const Error& error) {
    return unknown(error.what());
  }
}

void KeyRope::turn(TurnWay way, std::span<const int> layers, std::span<const uint64_t> tokens,
                   MatrixView<float> rows) const {
  if (tokens.size() != rows.rows()) throw failed("{} rows for {} tokens", rows.rows(), tokens.size());
  turn_rows(way, layers, rows, 0, tokens.data());
}

void KeyRope::turn_rows(TurnWay way, std::span<const int> layers, MatrixView<float> rows, uint64_t first,
                        const uint64_t* tokens) const {
  const size_t count = layers.size();
  if (!known()) throw failed("keys cannot be turned: {}", why_not_);
  for (const int layer : layers)
    if (layer < 0 || static_cast<size_t>(layer) >= of_layer_.size())
      throw failed("layer {} of {}", layer, of_layer_.size());
  for (const int layer : layers)
    if (const HeadTurn& how = kinds_[of_layer_[static_cast<size_t>(layer)]];
        !how.frequencies.empty() && rows.cols() % (count * how.head_dim) != 0)
      throw failed("rows of {} values are not {} layers of whole heads of {}", rows.cols(), count,
                   how.head_dim);
  const size_t width = rows.cols() / count, grain = std::max<size_t>(1, kPieceValues / (rows.cols() + 1));
  parallel_for(rows.rows(), grain, [&](size_t begin, size_t end, int) {
    std::vector<Angles> angles(kinds_.size());
    for (size_t i = begin; i < end; ++i)
      for (size_t layer = 0; layer < count; ++layer) {
        const size_t kind = of_layer_[static_cast<size_t>(layers[layer])];
        const HeadTurn& how = kinds_[kind];
        if (how.frequencies.empty()) continue;
        angles[kind].move_to(tokens ? tokens[i] : first + i, way, how);
        for (size_t at = layer * width; at < (layer + 1) * width; at += how.head_dim)
          turn_pairs(rows.row(i).subspan(at + how.first, 2 * how.frequencies.size()), angles[kind].cosines,
                     angles[kind].sines);
      }
  });
}

}  // namespace kvcodec
