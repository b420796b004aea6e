#include "lib/model/key_rope.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/error.hpp"
#include "lib/core/parallel.hpp"
#include "lib/model/rope.hpp"
#include "lib/model/row_ops.hpp"

namespace kvcodec {
namespace {

/// Values per piece of parallel work, 0.2 ms of it: what is less is done sooner than a thread starts. Small against a chunk.
constexpr size_t kPieceValues = 1 << 18;

void check_turn(const HeadTurn& turn, int head_dim) {
  if (turn.first + 2 * turn.frequencies.size() > static_cast<size_t>(head_dim))
    throw bad_input(
        "{} frequencies turn {} dimensions; heads have {}", turn.frequencies.size(),
        2 * turn.frequencies.size(),
        static_cast<size_t>(head_dim) - std::min<size_t>(turn.first, static_cast<size_t>(head_dim)));
  for (const float frequency : turn.frequencies)
    if (!(frequency >= 0 && frequency <= 1))
      throw bad_input("a frequency of the rotary embedding is {}; it must be in 0..1", frequency);
  if (!std::isnormal(turn.factor) || turn.factor < 0)
    throw bad_input("turned dimensions are multiplied by {}; it must be positive", turn.factor);
}

/// Cosines and sines of one token for each kind of layer.
class Angles {
 public:
  explicit Angles(const std::vector<HeadTurn>& kinds) : kinds_(kinds), of_kind_(kinds.size()) {
    for (size_t kind = 0; kind < kinds.size(); ++kind) {
      of_kind_[kind].cosines.resize(kinds[kind].frequencies.size());
      of_kind_[kind].sines.resize(kinds[kind].frequencies.size());
    }
  }

  void move_to(uint64_t token) {
    token_ = token;
    for (OfKind& of : of_kind_) of.current = false;
  }

  void turn(TurnWay way, size_t kind, std::span<float> heads, size_t head_dim) {
    const HeadTurn& how = kinds_[kind];
    const size_t turned = 2 * how.frequencies.size();
    if (turned == 0) return;
    OfKind& of = of_kind_[kind];
    if (!of.current) compute(way, how, of);
    for (size_t at = 0; at < heads.size(); at += head_dim)
      turn_pairs(heads.subspan(at + how.first, turned), of.cosines, of.sines);
  }

 private:
  struct OfKind {
    bool current = false;
    std::vector<float> cosines, sines;
  };

  void compute(TurnWay way, const HeadTurn& how, OfKind& of) const {
    cosines_sines(static_cast<float>(token_), how.frequencies, of.cosines, of.sines);
    const bool back = way == TurnWay::back;
    const float factor = back ? 1 / how.factor : how.factor;
    if (factor != 1) scale(of.cosines, factor);
    if (factor != 1 || back) scale(of.sines, back ? -factor : factor);
    of.current = true;
  }

  const std::vector<HeadTurn>& kinds_;
  std::vector<OfKind> of_kind_;
  uint64_t token_ = 0;
};

}  // namespace

KeyRope KeyRope::not_yet(std::string why) {
  KeyRope rope = unknown(std::move(why));
  rope.before_ = true;
  return rope;
}

KeyRope KeyRope::unknown(std::string why) {
  KeyRope rope({}, {}, 0);
  rope.why_not_ = std::move(why);
  return rope;
}

KeyRope::KeyRope(std::vector<HeadTurn> kinds, std::vector<size_t> of_layer, int head_dim)
    : kinds_(std::move(kinds)), of_layer_(std::move(of_layer)), head_dim_(static_cast<size_t>(head_dim)) {
  for (const HeadTurn& turn : kinds_) check_turn(turn, head_dim);
  for (const size_t kind : of_layer_)
    if (kind >= kinds_.size()) throw failed("a layer is turned in way {} of {}", kind, kinds_.size());
}

KeyRope KeyRope::of(const ModelConfig& config) {
  const auto turn_of = [&](const Rope& rope) {
    if (rope.scaling.kind == RopeScaling::Kind::longrope)
      throw bad_input("longrope turns short documents and long ones by other angles");
    return HeadTurn{rope_frequencies(rope, config.head_dim),
                    static_cast<float>(rope.scaling.attention_factor), static_cast<size_t>(rope.first)};
  };
  try {
    // By LayerRope.
    std::vector<HeadTurn> kinds(kLayerRopes);
    std::vector<size_t> of_layer;
    for (int layer = 0; layer < config.num_layers; ++layer) {
      const LayerRope kind = config.rope_of(layer);
      of_layer.push_back(static_cast<size_t>(kind));
      if (kind != LayerRope::none)
        kinds[of_layer.back()] = turn_of(kind == LayerRope::local ? config.local_rope : config.rope);
    }
    return {std::move(kinds), std::move(of_layer), config.head_dim};
  } catch (const Error& error) {
    return unknown(error.what());
  }
}

bool KeyRope::turns() const {
  return std::ranges::any_of(of_layer_, [&](size_t kind) { return !kinds_[kind].frequencies.empty(); });
}

void KeyRope::turn(TurnWay way, int first_layer, int layers, uint64_t first, MatrixView<float> rows) const {
  turn_rows(way, first_layer, layers, rows, first, nullptr);
}

void KeyRope::turn(TurnWay way, int first_layer, int layers, std::span<const uint64_t> tokens,
                   MatrixView<float> rows) const {
  if (tokens.size() != rows.rows()) throw failed("{} rows for {} tokens", rows.rows(), tokens.size());
  turn_rows(way, first_layer, layers, rows, 0, tokens.data());
}

void KeyRope::turn_rows(TurnWay way, int first_layer, int layers, MatrixView<float> rows, uint64_t first,
                        const uint64_t* tokens) const {
  const auto begin_layer = static_cast<size_t>(first_layer), count = static_cast<size_t>(layers);
  if (!known()) throw failed("keys cannot be turned: {}", why_not_);
  if (first_layer < 0 || layers < 1 || begin_layer + count > of_layer_.size())
    throw failed("layers {} to {} of {}", first_layer, begin_layer + count - 1, of_layer_.size());
  if (rows.cols() % (count * head_dim_) != 0)
    throw failed("rows of {} values are not {} layers of whole heads of {}", rows.cols(), layers, head_dim_);
  const size_t width = rows.cols() / count, grain = std::max<size_t>(1, kPieceValues / (rows.cols() + 1));
  parallel_for(rows.rows(), grain, [&](size_t begin, size_t end, int) {
    Angles angles(kinds_);
    for (size_t i = begin; i < end; ++i) {
      angles.move_to(tokens ? tokens[i] : first + i);
      for (size_t layer = 0; layer < count; ++layer)
        angles.turn(way, of_layer_[begin_layer + layer], rows.row(i).subspan(layer * width, width),
                    head_dim_);
    }
  });
}

}  // namespace kvcodec
