// The rotary embedding of a cache's keys, done and undone without a table: for tokens anywhere in a document,
// a few or many, as codecs meet them (lib/codec/rope_codec.hpp). The forward pass has tables (rope.hpp).
//
// Keys are turned back by the very angles that they were turned by, which are rounded to float (rope.hpp says
// why); what is lost on the way is the rounding of a product and a sum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/model/config.hpp"

namespace kvcodec {

/// How a layer's heads are turned: of n pairs, dimensions first + j and first + j + n by the angle
/// index * frequencies[j]. All other dimensions stay as they are.
struct HeadTurn {
  std::vector<float> frequencies;  ///< n of them, radians per token, in 0..1; none: nothing is turned
  float factor = 1;                ///< what turned dimensions are multiplied by besides
  size_t first = 0;                ///< where they begin in a head

  bool operator==(const HeadTurn&) const = default;
};

enum class TurnWay : bool { forward, back };

class KeyRope {
 public:
  /// Of a cache of which it is not known how keys were turned, or of which there is nothing to undo; why: a
  /// sentence's end for messages, behind "keys cannot be turned back: ".
  static KeyRope unknown(std::string why);
  /// Of a cache whose keys are from before the embedding: there is nothing to undo, since nothing was done.
  static KeyRope not_yet(std::string why);
  KeyRope() : KeyRope(unknown("nothing is said of the model's rotary embedding")) {}

  /// kinds: the different ways; of_layer: of each layer, which one of them. Throws Error(bad_input) for
  /// frequencies that are not in 0..1 (angles of any document must be small enough to be computed), for more
  /// of them than half a head has, and for factors that are not positive.
  KeyRope(std::vector<HeadTurn> kinds, std::vector<size_t> of_layer, int head_dim);

  /// That of a model; unknown, where it is one that the constructor refuses.
  static KeyRope of(const ModelConfig& config);

  bool known() const { return why_not_.empty(); }
  const std::string& why_not() const { return why_not_; }
  /// Whether the cache's keys are from before the embedding.
  bool before() const { return before_; }
  /// Whether any layer turns its keys.
  bool turns() const;
  size_t layers() const { return of_layer_.size(); }

  /// Turns tokens first, first + 1 … of some consecutive layers in place: rows (n, layers * heads * head_dim).
  void turn(TurnWay way, int first_layer, int layers, uint64_t first, MatrixView<float> rows) const;

  /// The same of tokens anywhere: row i is token tokens[i].
  void turn(TurnWay way, int first_layer, int layers, std::span<const uint64_t> tokens,
            MatrixView<float> rows) const;

 private:
  void turn_rows(TurnWay way, int first_layer, int layers, MatrixView<float> rows, uint64_t first,
                 const uint64_t* tokens) const;

  std::vector<HeadTurn> kinds_;
  std::vector<size_t> of_layer_;
  size_t head_dim_ = 0;
  std::string why_not_;
  bool before_ = false;
};

}  // namespace kvcodec
