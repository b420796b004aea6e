// Rotary position embedding (Su et al. 2021) in the half-split layout of the Hugging Face models: dimension j of the
// turned dimensions (usually all) is turned together with dimension j + turned / 2, by position * frequency[j].
//
// Frequencies and angles are rounded to float exactly where the reference implementation (transformers)
// rounds them. At position p that rounding moves an angle by up to p * 2^-24 radians, far more than the float
// arithmetic around it, so an "exact" angle would differ visibly from the keys that models are trained and
// served with.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/model/config.hpp"

namespace kvcodec {

/// The order in which programs keep those dimensions of a key that are turned: the two of a pair lie half of them apart, as here, or
/// side by side.
enum class PairOrder : uint8_t { halves, neighbours };
constexpr auto names_of(PairOrder) { return std::to_array<std::string_view>({"halves", "neighbours"}); }

/// Brings each head of the row, of `dims` turned dimensions, from the other order into this one.
void order_pairs(PairOrder to, size_t dims, std::span<float> row);

/// The list of divisors of longrope that is used.
enum class RopeLength : bool { up_to_original, longer };

/// The frequencies of turned_dims(rope, head_dim) / 2 pairs, in radians per token, after scaling.
std::vector<float> rope_frequencies(const Rope& rope, int head_dim,
                                    RopeLength length = RopeLength::up_to_original);

/// Cosines and sines for positions 0 .. positions - 1, multiplied by the scaling's attention factor as the
/// reference does.
class RopeTable {
 public:
  RopeTable(const Rope& rope, int head_dim, size_t positions, RopeLength length = RopeLength::up_to_original);

  std::span<const float> cosines(size_t position) const {
    return cosines_.row(position);
  }  ///< as many as frequencies
  std::span<const float> sines(size_t position) const { return sines_.row(position); }

  /// Turns heads, side by side, in place: the dimensions that are turned.
  void turn(size_t position, std::span<float> heads) const { turn(position, heads, sines(position)); }

  /// The backward pass of turn(): turns derivatives by the opposite angles, with the same factor.
  void turn_back(size_t position, std::span<float> heads) const;

 private:
  void turn(size_t position, std::span<float> heads, std::span<const float> sines) const;

  size_t first_, head_dim_;
  Matrix<float> cosines_, sines_;
};

/// Number of tables that a model's layers need, for documents of any length.
size_t rope_tables(const ModelConfig& config);

/// The tables of all layers, for documents of up to `longest` tokens.
class RopeTables {
 public:
  RopeTables(const ModelConfig& config, size_t longest);

  /// The table of a layer, for a document of so many tokens, its cache included; nullptr: the layer turns nothing.
  const RopeTable* table(int layer, size_t document_tokens) const;

 private:
  struct Lengths {
    std::optional<RopeTable> usual, longer;  ///< longer: for documents beyond longrope's original length
  };

  const ModelConfig& config_;
  Lengths usual_, local_;
};

// The rotary embedding of a cache's keys, done and undone without a table: for few or many tokens anywhere in a document,
// as codecs need it (lib/codec/outer_codecs.hpp). Keys are turned back by the same angles as forward; the only loss is
// the rounding of a product and a sum.

/// Rotation of a layer's heads: n pairs, of dimensions first + j and first + j + n, turn by the
/// angle index * frequencies[j]. All other dimensions stay as they are.
struct HeadTurn {
  std::vector<float> frequencies;  ///< n of them, radians per token, in 0..1; none: nothing is turned
  float factor = 1;                ///< further factor of turned dimensions
  size_t first = 0;                ///< the first of them in a head
  size_t head_dim = 0;             ///< of heads; 0: as many as KeyRope says

  bool operator==(const HeadTurn&) const = default;
};

enum class TurnWay : bool { forward, back };

class KeyRope {
 public:
  /// For a cache whose keys were turned in an unknown way, or have nothing to undo; why: the end of a
  /// sentence for messages, behind "keys cannot be turned back: ".
  static KeyRope unknown(std::string why) {
    KeyRope rope({}, {}, 0);
    rope.why_not_ = std::move(why);
    return rope;
  }
  /// For a cache whose keys are from before the embedding: there is nothing to undo, since nothing was done.
  static KeyRope not_yet(std::string why) {
    KeyRope rope = unknown(std::move(why));
    rope.before_ = true;
    return rope;
  }
  KeyRope() : KeyRope(unknown("nothing is said of the model's rotary embedding")) {}

  /// kinds: the different ways; of_layer: the index of each layer's way. Throws Error(bad_input) for
  /// frequencies that are not in 0..1 (angles of any document must be small enough to be computed), for more
  /// frequencies than half a head has dimensions, and for factors that are not positive.
  KeyRope(std::vector<HeadTurn> kinds, std::vector<size_t> of_layer, int head_dim);

  /// The embedding of a model; unknown() if the constructor refuses it.
  static KeyRope of(const ModelConfig& config);

  bool known() const { return why_not_.empty(); }
  const std::string& why_not() const { return why_not_; }
  /// True if the cache's keys are from before the embedding.
  bool before() const { return before_; }
  /// True if any layer turns its keys.
  bool turns() const {
    return std::ranges::any_of(of_layer_, [&](size_t kind) { return !kinds_[kind].frequencies.empty(); });
  }
  size_t layers() const { return of_layer_.size(); }

  /// Turns tokens first, first + 1 … of some layers in place: rows (n, layers * heads * head_dim).
  void turn(TurnWay way, std::span<const int> layers, uint64_t first, MatrixView<float> rows) const {
    turn_rows(way, layers, rows, first, nullptr);
  }

  /// The same for tokens anywhere: row i is token tokens[i].
  void turn(TurnWay way, std::span<const int> layers, std::span<const uint64_t> tokens,
            MatrixView<float> rows) const;

 private:
  void turn_rows(TurnWay way, std::span<const int> layers, MatrixView<float> rows, uint64_t first,
                 const uint64_t* tokens) const;

  std::vector<HeadTurn> kinds_;
  std::vector<size_t> of_layer_;
  std::string why_not_;
  bool before_ = false;
};

}  // namespace kvcodec
