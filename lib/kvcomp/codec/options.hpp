// Options of the codec `kvcomp`, values that follow from them, and its documents, opened.
#pragma once

#include <string_view>
#include <vector>

#include "lib/codec/document_view.hpp"
#include "lib/codec/group_shape.hpp"
#include "lib/codec/layer_weights.hpp"
#include "lib/codec/outer_codecs.hpp"
#include "lib/core/dtype.hpp"
#include "lib/core/options.hpp"
#include "lib/engine/engine.hpp"
#include "lib/kvcomp/block.hpp"
#include "lib/kvcomp/stored_blocks.hpp"
#include "lib/quant/error_bounded.hpp"

namespace kvcodec::kvcomp {

/// The keys that share a step: those of a channel over a block of tokens, or all of a head's block.
enum class KeySteps : uint8_t { channel, block };
constexpr auto names_of(KeySteps) { return std::to_array<std::string_view>({"channel", "block"}); }

struct KvcompOptions final : Options {
  KeySteps key_quant = KeySteps::block;  ///< the paper's; with channels centred
  double key_rel = 0;                    ///< 0: by key_quant, where the paper's accuracy begins to drop
  double value_rel = 0;                  ///< 0: 0.15, likewise
  bool key_origins = true;               ///< the paper has none: beyond it
  double max_error = 0;
  double max_rel_error = 0;
  double max_logit_error = 0;
  int64_t block = 64;        ///< the paper's block size
  int64_t window = 0;        ///< the paper has a buffer
  int64_t sink = kBestSink;  ///< the paper has none
  bool unit_heads = true;    ///< the released code's
  Centered center = Centered::automatic;
  EntropyChoice entropy = EntropyChoice::automatic;  ///< huffman, the paper's, decodes three times as fast
  LayerWeights weights = {};  ///< max_error is that of a scale of 1; no option: from the context

  /// A step of a channel follows its channel's spread already; and bounds are of values that nothing rounds before.
  bool gains_by_center() const { return key_quant == KeySteps::block && !bounded(Side::key); }

  void check() const override {
    if (center != Centered::automatic && center != Centered::none &&
        (bounded(Side::key) || bounded(Side::value)))
      throw usage_error(
          "center is {}; error bounds need values that are not centred: leave out one of the two",
          name_of(center));
  }

  /// True if an option bounds the errors of that side: then key-rel or value-rel has no default.
  bool bounded(Side side) const {
    return max_error > 0 || max_rel_error > 0 || (side == Side::key && max_logit_error > 0);
  }

  std::vector<OptionField> fields() override {
    return {
        {"key-quant", "what shares a step of the keys: a channel over a block of tokens, or all of a block",
         &key_quant},
        {"key-rel",
         "step of the keys, relative to the spread of what shares it; errors are at most half a step (0: "
         "0.25 by channel, 0.05 by block; none if one of the bounds below is given)",
         &key_rel, 0, 1},
        {"value-rel",
         "step of the values, relative to the spread of a token's head (0: 0.15; none if --max-error or "
         "--max-rel-error is given)",
         &value_rel, 0, 1},
        {"max-error", "largest error of any value (0: no such bound)", &max_error, 0},
        {"max-rel-error",
         "largest error of any value, relative to the largest magnitude of what shares its step (0: no such "
         "bound)",
         &max_rel_error, 0, 1},
        {"max-logit-error",
         "largest error of any attention logit q.k / sqrt(head dimension) of the dumped queries, by a bound "
         "on the keys (0: no such bound)",
         &max_logit_error, 0},
        {"block", "tokens of a block, which is coded and decoded alone", &block, 1,
         static_cast<double>(kMaxBlockRun)},
        {"window", "newest tokens of a document kept exactly, beside those short of a block", &window, 0,
         1 << 24},
        sink_field(sink),
        {"key-origins",
         "count the symbols of keys from level 0 and not from a level near their channel's mean",
         &key_origins},
        {"unit-heads", "give each head steps of its own, of values and of keys by block", &unit_heads},
        {.name = "entropy",
         .help =
             "coder of the symbols: huffman is fastest, rans packs tighter at low rates, auto takes the smaller, "
             "none spends whole bits",
         .target = &entropy},
        center_field(center)};
  }

  /// Gives key-rel and value-rel their defaults, where these apply.
  void resolve() {
    if (key_rel == 0 && !bounded(Side::key)) key_rel = key_quant == KeySteps::channel ? 0.25 : 0.05;
    if (value_rel == 0 && !bounded(Side::value)) value_rel = 0.15;
  }
};

Layout layout_of(const KvcompOptions& options, const GroupShape& shape);

/// Limits of the errors of keys that max-logit-error sets, a shared stream: one per channel, or per head.
inline constexpr std::string_view kLimits = "limits";
inline bool has_limits(const KvcompOptions& options, Side side) {
  return side == Side::key && options.max_logit_error > 0;
}
inline size_t limits_per_head(const Layout& layout) {
  return layout.unit == UnitShape::column ? layout.block.dims : 1;
}

/// As Codec::view_of; multiplies with symbols without turning them into floats. engine: may be nullptr.
ViewPtr make_view(const KvcompOptions& options, const GroupShape& shape, DType storage, Engine* engine,
                  const StreamReader& document);

}  // namespace kvcodec::kvcomp
