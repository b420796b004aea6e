// Tokens kept exactly: rows stored as the 16-bit floats they came as. For the codec `none`, for tails that
// wait uncompressed and for exempt tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/codec/codec.hpp"
#include "lib/codec/stream.hpp"

namespace kvcodec {

/// The shape of one token's row as streams show it: [heads, head_dim], with the layers in front where there
/// are several, and with the two sides in front of all where a row has both.
std::vector<uint64_t> row_shape_of(const GroupShape& shape);

/// A stream for rows kept exactly in `storage` (f16 or bf16).
StreamSpec exact_stream(std::string name, const GroupShape& shape, DType storage, Category category);

/// Throws Error(usage) unless the context has heads, a head dimension and a 16-bit storage type.
void check_context(const CodecContext& context);

/// Throws Error(failed) unless rows handed to a codec have the width of its shape.
void check_width(const GroupShape& shape, size_t columns);

/// Rows (n, width) rounded to `storage`, row after row; 16-bit sources stay what they are.
/// Throws Error(bad_input) naming the first value that its range does not hold.
std::vector<uint16_t> to_storage(DType storage, MatrixView<const float> rows);

/// Rounds one row to `out`, which has as many values. index: the row's number, for messages. Throws as to_storage.
void store_row(DType storage, std::span<const float> row, size_t index, std::span<uint16_t> out);

/// Reads rows [first, first + out.rows()) of a stream made by exact_stream into out: (n, width).
/// Throws Error(bad_input) if they are not all there or hold values that are not finite.
void read_exact(std::string_view stream, DType storage, const StreamReader& document, uint64_t first,
                MatrixView<float> out);

}  // namespace kvcodec
