// Root attributes that every kvcodec file carries (FORMAT.md, "Every file").
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/codec/group_shape.hpp"

namespace kvcodec {

/// The group whose attributes say what a file is.
inline constexpr char kRoot[] = "/";

/// Who made a file and how: written to every product.
struct Provenance {
  std::string command;  ///< the command line of this run, one line
  std::vector<std::string>
      history;  ///< the commands that led to the inputs, oldest first; this run's own is added on writing
};

/// The cache's model and what its keys are; `kv` files carry it, and `codes` and `dictionary` files repeat
/// it.
struct ModelInfo {
  std::string model;  ///< name, usually the model folder's
  int num_layers = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;      ///< of a layer; the most where layers differ
  int head_dim = 0;          ///< of keys and values; the largest of keys where these or layers differ
  double rope_theta = 0;     ///< 0 = unknown
  std::string rope_scaling;  ///< JSON, see FORMAT.md; empty = none
  std::string key_state = "post-rope";  ///< "post-rope" or "pre-rope"
  std::string source;  ///< where the cache came from: digest of the weights, files of the text
  /// What the cache holds of each layer, where that is not num_kv_heads heads of head_dim dimensions in keys and values
  /// of all of them; else empty.
  std::vector<LayerShape> layer_shapes = {};
  /// A JSON object about the file of another program that the cache was imported from, which an export to the same
  /// format needs to write it as it was; empty = none.
  std::string imported = {};

  bool one_shape() const { return layer_shapes.empty(); }
  LayerShape layer_shape(int layer) const {
    return one_shape() ? usual_layer(num_kv_heads, head_dim) : layer_shapes[static_cast<size_t>(layer)];
  }

  bool operator==(const ModelInfo&) const = default;
};

/// One side of some layers, or both, as codecs take it. Throws Error(failed) where they are not of one shape, or a row
/// would have nothing.
GroupShape group_shape(const ModelInfo& model, int first_layer, int layers, Side side);

/// The model with that shape of each layer; where all are the usual one, it says nothing of layers.
ModelInfo with_layer_shapes(ModelInfo model, std::vector<LayerShape> shapes);

/// Documents lie one behind the other along the token axis: document i is tokens [offsets[i], offsets[i +
/// 1]).
struct Documents {
  std::vector<std::string> names;
  std::vector<uint64_t> offsets{0};
  /// Of each document, for each layer of the model, how many of its first tokens the layer does not hold: what lies
  /// before the window of a layer that has one. Empty where all layers hold all tokens.
  std::vector<std::vector<uint64_t>> left_out = {};

  size_t count() const { return names.size(); }
  uint64_t tokens() const { return offsets.back(); }
  uint64_t length(size_t i) const { return offsets[i + 1] - offsets[i]; }
  /// Whether all layers hold all tokens.
  bool whole() const { return left_out.empty(); }
  uint64_t left_out_of(int layer, size_t i) const {
    return whole() ? 0 : left_out[i][static_cast<size_t>(layer)];
  }
  /// Tokens of document i that the layer holds, its last ones; and those of all documents.
  uint64_t held(int layer, size_t i) const { return length(i) - left_out_of(layer, i); }
  uint64_t held(int layer) const;
  /// Which tokens the layer holds, numbered through all documents: runs [first, end) that lie in one piece in a kv file's
  /// dataset and are read at once.
  std::vector<std::pair<uint64_t, uint64_t>> held_runs(int layer) const;
  /// left_out: of each layer, or empty: none.
  void add(std::string name, uint64_t length, std::span<const uint64_t> left_out_of_layers = {});
};

/// What this program calls itself in products: "kvcodec 1.2.3".
std::string generator();

/// Now, or the time that SOURCE_DATE_EPOCH sets, as 2026-01-31T12:00:00Z. Throws Error(usage) if that is no
/// number.
std::string timestamp();

/// What a file says it is.
struct FileType {
  std::string type;  ///< "kv", "dictionary", "codes" …
  int version = 0;
  std::string generator, created;
  std::vector<std::string> history;
};

/// Reads the type of any kvcodec file. Throws Error(bad_input) if it is none, or of a newer version than this
/// program knows.
FileType identify(const std::string& file);

}  // namespace kvcodec
