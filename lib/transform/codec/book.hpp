// Books of type `transform`: what train-transform learns and the codec `transform` needs (FORMAT.md, "transform").
//
// A part is one side of some consecutive layers, or both together; its vectors are tokens with all heads of these
// layers. R: number of steps; n: components of a part, those that some step uses; b: columns of a block of the metric.
// <side>: key, value or both. Parameters: all of TransformBookOptions, and num-layers, heads, head-dim, value-dim, source, rope.
//   steps            f32 [R]       of all parts, coarsest first: the rungs
//   bits, errors     f64 [R]       what they came to in training: bits per value; squared weighted error per token
//   tables           u8 [bytes]    the models of all classes, one behind the other (RansModel::write), zero bits to
//                                  the end of the byte
//   shrinks          f32 [classes, 3]
//   <side>/<first layer>/mean          f32 [width]
//   <side>/<first layer>/inverse_roots f32 [width / b, b (b + 1) / 2]   of what errors cost, M^(-1/2) (lib/transform/basis.hpp):
//                                                          the triangle of each block
//   <side>/<first layer>/vectors       u8 [bytes]          levels of eigenvectors, in as many bits as their row has, to whole bytes a row
//   <side>/<first layer>/vector_bits   u8 [n]              b: of a code c the level is 2 c + 1 - 2^b up to 4 bits, else c - 2^(b - 1)
//   <side>/<first layer>/vector_scales f32 [n]             value = level * scale
//   <side>/<first layer>/classes       u8 [R, n]           255 = dead
//   <side>/<first layer>/gains         f16 [R, n]
//   <side>/<first layer>/first_mean    f32 [width]         of first tokens (lib/transform/levels.hpp), if they were learned
//   <side>/<first layer>/first_classes u8 [R, width / head-dim]
// and where vectors are predicted from the ids of tokens (lib/transform/basis.hpp), predict-tokens being more than 0:
//   features         u8 [V, F]     level + 128: of each id of the vocabulary
//   feature_scales   f32 [V]
//   <side>/<first layer>/scores         u8 [r, predict-tokens * F]
//   <side>/<first layer>/score_scales   f32 [r]
//   <side>/<first layer>/loadings       u8 [r, width]
//   <side>/<first layer>/loading_scales f32 [r]
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/codec/book.hpp"
#include "lib/codec/group_shape.hpp"
#include "lib/core/options.hpp"
#include "lib/transform/basis.hpp"
#include "lib/transform/levels.hpp"
#include "lib/transform/rounding.hpp"

namespace kvcodec {

/// Number of first tokens of a document that are kept exactly unless the book knows them: the very first is an attention
/// sink, whose keys and values are like no others.
inline constexpr int64_t kTransformSink = 1;

/// Coding of keys and values of a group of layers: apart, or as one vector.
enum class SideCoding : uint8_t { apart, joint };
constexpr auto names_of(SideCoding) { return std::to_array<std::string_view>({"apart", "joint"}); }

struct TransformBookOptions final : Options {
  SideCoding sides = SideCoding::joint;  ///< data common to keys and values is then coded once
  int64_t layer_group = 0;               ///< 0: as many layers as keep vectors below kMaxAutoWidth values
  double max_bits = 2;                   ///< finer steps need nearly all components: a larger book for little
  double least_bits = 0.1;
  double vector_error = kVectorError;
  double rate_distortion = LevelOptions().lambda;
  double unbias = LevelOptions().unbias;
  double first_finer = 16;     ///< factor by which first tokens have finer steps; 0: they are not learned
  int64_t predict_tokens = 0;  ///< ids that a vector is predicted from: its token's and those before; 0: none

  std::vector<OptionField> fields() override;
  void check() const override;

  static constexpr uint64_t kMaxAutoWidth = 8192;

  /// The layers of a group: layer_group, or for 0 the largest divisor of the number of layers whose vectors have at most kMaxAutoWidth
  /// values. layer_width: values of one layer in a vector.
  int64_t layers_of_group(int num_layers, uint64_t layer_width) const;
  /// The sides of the parts that the book has for each group of layers.
  std::span<const Side> part_sides() const {
    return sides == SideCoding::joint ? std::span<const Side>(kJointly) : std::span<const Side>(kSides);
  }
};

struct TransformBook {
  TransformBookOptions options;
  int num_layers = 0, heads = 0, head_dim = 0;
  int value_dim = kAsKeys;
  std::string source;                  ///< identifies the data it was learned from
  RopeChoice rope = RopeChoice::keep;  ///< of the keys it was learned from
  std::vector<LevelClass> classes;
  std::vector<RungMeasure> measures;      ///< bits per value, error per token, of each step
  std::optional<TokenFeatures> features;  ///< there if options.predict_tokens is not 0

  struct Part {
    Side side = Side::key;
    int first_layer = 0;
    TransformBasis basis;
    std::vector<LevelRung> rungs;  ///< of each step
    FirstTokens first;             ///< of all parts or of none
  };
  std::vector<Part> parts;

  size_t steps() const { return measures.size(); }
  bool knows_first_tokens() const { return !parts.empty() && !parts.front().first.empty(); }
  LayerShape layer() const { return layer_of(heads, head_dim, value_dim); }
  /// Values of a row of that side of a part.
  size_t width(Side side) const {
    return GroupShape{consecutive(0, static_cast<int>(options.layer_group)), layer(), side}.width();
  }
  /// The rung whose bits in training are nearest to these.
  size_t rung_for(double bits) const;
};

/// Vectors and gains are rounded to their stored types.
Book to_book(const TransformBook& transform);

/// Checks everything: type, parameters, shapes, finite values. Throws Error(bad_input) naming the array.
TransformBook transform_book_from(const Book& book);

}  // namespace kvcodec
