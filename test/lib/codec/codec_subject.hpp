// Codecs of codec_table.hpp in use: rows for them, the data that they store, and the decoded rows.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lib/codec/encoded.hpp"
#include "lib/core/error.hpp"
#include "test/lib/codec/codec_table.hpp"

namespace kvcodec::test {

/// The kinds of rows.
enum class Look { ordinary, constant, zero, tiny };
inline constexpr Look kLooks[] = {Look::ordinary, Look::constant, Look::zero, Look::tiny};

/// A codec with everything that it refers to, and the shape of its rows.
struct Subject {
  CodecContext context;
  std::optional<Book> book;
  std::unique_ptr<Codec> codec;
  GroupShape shape;
};

std::unique_ptr<Subject> make_subject(const CodecCase& row, int heads, int head_dim, Side side, DType storage,
                                      Rng& rng);

/// The same with everything that the codec is made from but its book; it is for the first layer's group.
std::unique_ptr<Subject> make_subject(const CodecCase& row, const CodecContext& context, Side side, Rng& rng);

std::unique_ptr<Subject> random_subject(const CodecCase& row, Rng& rng);

/// Rows of 16-bit values: channels of different loudness and offset, now and then an outlier.
Matrix<float> make_rows(const Subject& subject, size_t tokens, Look look, Rng& rng);

Encoded encode(const Subject& subject, MatrixView<const float> rows);

/// A new document with the data that a survey left in the streams of another encoding of the same rows: the shared data, and the
/// data that the document has from its start.
StreamStore& surveyed_document(const Subject& subject, MatrixView<const float> rows, Encoded& encoded);

Matrix<float> decode(const Subject& subject, const StreamReader& document, size_t first, size_t count);

bool same_bits(MatrixView<const float> a, MatrixView<const float> b);

/// Compares decoded rows with the encoded ones. For keys turned back, the result of a codec without a rope around it on the same
/// streams must be within the codec's bound of the keys turned back, and equal the decoded keys after turning forward.
void check_decoded(const CodecCase& row, const Subject& subject, MatrixView<const float> rows,
                   const StreamReader& document, MatrixView<const float> decoded);

bool same_streams(const Encoded& a, const Encoded& b);

/// Bits of everything stored for the tokens themselves, index streams packed. Shared streams are excluded, because they do not grow
/// with the tokens.
uint64_t stored_bits(const Encoded& encoded);

/// Calls body for each row of the table, with random numbers that follow from its label; under sanitizers for the first one of each
/// codec and every `sanitized_step`-th of its others.
void for_each_case(const std::function<void(const CodecCase&, Rng&)>& body, size_t sanitized_step = 1);

/// The kind of the error when everything is decoded; std::nullopt if it succeeds.
std::optional<ErrorKind> decoding_error(const Subject& subject, const StreamReader& document, size_t tokens);

/// The document's streams with change(spec, bytes) made to each, as a new single document.
Encoded tampered(const Encoded& original,
                 const std::function<void(const StreamSpec&, std::vector<std::byte>&)>& change);

}  // namespace kvcodec::test
