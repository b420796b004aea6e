// Products with keys and values: what attention needs of a cache. Codecs that can multiply without decoding
// do; the functions here decode, or work on rows that are there.
#pragma once

#include <cstdint>

#include "lib/codec/document_view.hpp"

namespace kvcodec {

/// DocumentView::multiply_keys and multiply_values for any codec: decode some tokens at a time, few enough for
/// the processor's cache, and multiply them.
void decode_and_multiply_keys(const DocumentView& document, uint64_t first, MatrixView<const float> queries,
                              MatrixView<float> out);
void decode_and_multiply_values(const DocumentView& document, uint64_t first, MatrixView<const float> weights,
                                MatrixView<float> out);

/// out(i, t) = vector i . row t of its head. rows: (tokens, heads * d) of floats, vectors: (heads * n, d)
/// with those of head 0 first, out: (heads * n, tokens).
void multiply_key_rows(MatrixView<const float> rows, MatrixView<const float> vectors, MatrixView<float> out);

/// out(i, c) += sum over t of weights(i, t) * rows(t, c) of its head. weights: (heads * n, tokens), out:
/// (heads * n, d).
void multiply_value_rows(MatrixView<const float> rows, MatrixView<const float> weights,
                         MatrixView<float> out);

/// Throws Error(failed) unless the shape is one of that side, and vectors (heads * n, head_dim) and per_token
/// (heads * n, any) fit it.
void check_products(const GroupShape& shape, Side side, MatrixView<const float> vectors,
                    MatrixView<const float> per_token);

/// Decodes tokens [first, first + keys_out.rows()) of both sides in turns, a range of keys and then the same range of
/// values, so that what is coded jointly is decoded once (Codec::open_sides). keys_out, values_out: (n, width of a
/// side).
void decode_sides(const DocumentView& keys, const DocumentView& values, uint64_t first,
                  MatrixView<float> keys_out, MatrixView<float> values_out);

}  // namespace kvcodec
