// Tokens kept exactly: rows stored as the 16-bit floats they came as. For the codec `none`, for tails that
// wait uncompressed and for exempt tokens.
#pragma once

#include <string>
#include <string_view>

#include "lib/codec/codec.hpp"
#include "lib/codec/stream.hpp"

namespace kvcodec {

/// The shape of one token's row as streams show it: [heads, head_dim], with the layers in front where there
/// are several.
std::vector<uint64_t> row_shape_of(const GroupShape& shape);

/// A stream for rows kept exactly in `storage` (f16 or bf16).
StreamSpec exact_stream(std::string name, const GroupShape& shape, DType storage, Category category);

/// Throws Error(usage) unless the context has heads, a head dimension and a 16-bit storage type.
void check_context(const CodecContext& context);

/// Throws Error(failed) unless rows handed to a codec have the width of its shape.
void check_width(const GroupShape& shape, size_t columns);

/// Appends rows (n, width) to a stream made by exact_stream, rounded to `storage` (16-bit sources stay what
/// they are). Throws Error(bad_input) naming the first value that its range does not hold.
void append_exact(std::string_view stream, DType storage, MatrixView<const float> rows,
                  StreamStore& document);

/// Reads rows [first, first + out.rows()) of such a stream into out: (n, width).
void read_exact(std::string_view stream, DType storage, const StreamReader& document, uint64_t first,
                MatrixView<float> out);

}  // namespace kvcodec
