// Caches that are plain arrays, whole or cut into chunks of tokens: what LMCache, vLLM, SGLang and NumPy have in common.
#pragma once

#include <string>
#include <vector>

#include "formats/interop/plane.hpp"

namespace kvcodec::interop {

/// An array of keys, values or both, somewhere in bytes.
struct Array {
  Bytes bytes;
  Cell type;
  uint64_t begin;
  std::vector<Axis> axes;  ///< slowest first, as of plane_in_array()
  std::string where;       ///< for messages: file, or file and array

  /// Sets the axes' extents, as many as there are axes. Throws Error(bad_input) if one is 0.
  void set_shape(std::span<const uint64_t> shape);
  uint64_t byte_count() const;  ///< of all elements

  /// 1 if there is no such axis.
  uint64_t extent(char axis) const;
  bool has(char axis) const;
  /// The plane of one side of a layer of a document, checked.
  Plane plane(Side side, uint64_t layer, uint64_t document) const;
};

/// The axes that the letters of a layout name, each with extent 1: the caller sets the extents. Throws
/// Error(usage) for letters that name no axis or occur twice, and for a layout without tokens or dimensions.
std::vector<Axis> axes_of(const std::string& layout, const std::string& option);

/// What there is along the axes of a cache, or of a page of it.
struct Extents {
  uint64_t sides = 2, layers = 1, heads = 1, tokens = 1, dims = 1;
};

/// Sets the axes' extents: one document (b), and all heads in d where there is no axis of heads. Throws Error(usage) where
/// sides or layers are several and have no axis, so that values would have no place.
void set_extents(std::vector<Axis>& axes, const Extents& extents, const std::string& option);

/// One piece of a layer's tokens.
struct Piece {
  const Array* array;
  uint64_t layer = 0, document = 0;
  Side of = Side::both;  ///< both: it has an axis of sides, or its values lie in keys
};

/// A layer whose tokens lie in pieces, one behind the other. heads, dims: what the pieces' rows are split into.
ForeignLayer layer_of(const std::vector<Piece>& pieces, const LayerShape& shape);

/// The shape of heads in an array with these extents and the options: rows may say heads and dimensions, or only their
/// product. Throws Error(usage) where the options have to say it. where: first words of messages.
LayerShape heads_in(uint64_t heads, uint64_t dims, const ImportOptions& options, const std::string& where);

/// The shape of a layer whose values lie in its keys, of that many dimensions. Throws Error(usage) unless options.latent
/// says how many of them are values. where: first words of messages.
LayerShape latent_layer(uint64_t dims, const ImportOptions& options, const std::string& where);

/// Writes tokens of all those layers to an array in a file, from its first token on. rows: which tokens of the document.
struct TokenRange {
  uint64_t first, count;
};
void write_array(TargetFile& file, const Array& array, const CacheSource& source, const ExportJob& job,
                 std::span<const int> layers, TokenRange rows);

/// Positions 0, 1, 2 …
std::vector<uint64_t> first_positions(uint64_t count);

}  // namespace kvcodec::interop
