#include "test/lib/codec/codec_subject.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <string_view>

#include "lib/codec/registry.hpp"
#include "lib/core/bits.hpp"
#include "lib/core/half.hpp"
#include "test/name_number.hpp"
#include "test/test.hpp"
#include "test/transform_books.hpp"

namespace kvcodec::test {

std::unique_ptr<Subject> make_subject(const CodecCase& row, int heads, int head_dim, Side side, DType storage,
                                      Rng& rng) {
  return make_subject(row,
                      {.num_layers = 4,
                       .heads = heads,
                       .head_dim = head_dim,
                       .storage = storage,
                       .rope = sample_rope(4, head_dim)},
                      side, rng);
}

std::unique_ptr<Subject> make_subject(const CodecCase& row, const CodecContext& context, Side side,
                                      Rng& rng) {
  auto subject = std::make_unique<Subject>();
  subject->context = context;
  if (row.make_book) subject->book = row.make_book(subject->context, rng);
  if (subject->book) subject->context.book = &*subject->book;
  // Options go through their record, like in a file: anything that parameters() omits shows in every test.
  const auto asked = codec_of(row, subject->context);
  subject->codec = codec_from_record(find_codec(row.codec), asked->parameters(), subject->context);
  CHECK(subject->codec->parameters() == asked->parameters());
  subject->shape = {subject->codec->group_of(0), context.layer_shape(0),
                    subject->codec->joint() ? Side::both : side};
  return subject;
}

std::unique_ptr<Subject> random_subject(const CodecCase& row, Rng& rng) {
  constexpr int kHeadDims[] = {1, 2, 3, 4, 8, 12, 31, 32, 33, 36, 64, 127, 128, 130};
  // A book takes time with the square of the width.
  const bool narrow = kSanitized && row.make_book;
  const int heads = 1 + static_cast<int>(rng.below(kSanitized ? 3 : 8));
  int head_dim = 0;
  while (head_dim < std::max(1, row.least_head_dim) || head_dim % row.head_dim_multiple != 0 ||
         (narrow && head_dim > std::max(36, row.least_head_dim)))
    head_dim = kHeadDims[rng.below(std::size(kHeadDims))];
  const Side side = kSides[rng.below(2)];
  const DType storage = rng.below(2) ? DType::bf16 : DType::f16;
  return make_subject(row, heads, head_dim, side, storage, rng);
}

Matrix<float> make_rows(const Subject& subject, size_t tokens, Look look, Rng& rng) {
  Matrix<float> rows(tokens, subject.shape.width());
  for (size_t j = 0; j < rows.cols(); ++j) {
    const double loudness = look == Look::tiny ? 0x1p-20 : std::exp2(rng.uniform(-6, 4));
    const double offset = rng.below(3) == 0 ? loudness * rng.uniform(-8, 8) : 0;
    const double constant = loudness * rng.normal();
    for (size_t i = 0; i < tokens; ++i) {
      double value = offset + loudness * rng.normal() * (rng.below(200) == 0 ? 40 : 1);
      if (look == Look::constant) value = constant;
      if (look == Look::zero) value = 0;
      rows(i, j) = round_to(subject.context.storage, static_cast<float>(value));
    }
  }
  return rows;
}

Encoded encode(const Subject& subject, MatrixView<const float> rows) {
  DocumentRows document(rows);
  document.token_ids = sample_ids(rows.rows());
  return encode_in_memory(*subject.codec, subject.shape, {{document}});
}

StreamStore& surveyed_document(const Subject& subject, MatrixView<const float> rows, Encoded& encoded) {
  const std::vector<uint32_t> ids = sample_ids(rows.rows());
  StreamStore& document = encoded.add_document(ids);
  if (subject.codec->survey_scope(subject.shape) == SurveyScope::none) return document;
  const auto survey = subject.codec->survey(subject.shape);
  for (int pass = 0; pass < survey->passes(); ++pass) {
    survey->observe_ids(ids);
    for (size_t first = 0; first < rows.rows(); first += 37)
      survey->observe(rows.rows(first, std::min<size_t>(37, rows.rows() - first)));
    survey->end_document();
    survey->end_pass();
  }
  survey->finish(document);
  return document;
}

Matrix<float> decode(const Subject& subject, const StreamReader& document, size_t first, size_t count) {
  Matrix<float> out(count, subject.shape.width());
  subject.codec->open(subject.shape, document)->decode(first, out);
  return out;
}

bool same_bits(MatrixView<const float> a, MatrixView<const float> b) {
  if (a.rows() != b.rows() || a.cols() != b.cols()) return false;
  for (size_t i = 0; i < a.rows(); ++i)
    if (a.cols() > 0 && std::memcmp(a.row(i).data(), b.row(i).data(), a.cols() * sizeof(float)) != 0)
      return false;
  return true;
}

void check_decoded(const CodecCase& row, const Subject& subject, MatrixView<const float> rows,
                   const StreamReader& document, MatrixView<const float> decoded) {
  const GroupShape& shape = subject.shape;
  const auto check = [&](MatrixView<const float> original, MatrixView<const float> found) {
    if (row.check_error)
      row.check_error(shape, subject.context.storage, original, found);
    else
      CHECK(same_bits(found, original));
  };
  if (row.rope == RopeChoice::keep || shape.side == Side::value) return check(rows, decoded);
  CodecCase plain = row;
  plain.rope = RopeChoice::keep;
  const auto inner = codec_of(plain, subject.context);
  Matrix<float> turned(rows.rows(), rows.cols()), found = turned;
  for (size_t i = 0; i < rows.rows(); ++i) std::ranges::copy(rows.row(i), turned.row(i).begin());
  const auto turn_keys = [&](TurnWay way, Matrix<float>& values) {
    subject.context.rope.turn(way, shape.layers, 0,
                              values.view().columns(shape.column_of(Side::key), shape.side_width(Side::key)));
  };
  turn_keys(TurnWay::back, turned);
  for (float& value : std::span(turned.data(), turned.size()))
    value = round_to(subject.context.storage, value);
  inner->open(shape, document)->decode(0, found);
  check(turned, found);
  turn_keys(TurnWay::forward, found);
  CHECK(same_bits(found, decoded));
}

bool same_streams(const Encoded& a, const Encoded& b) {
  CHECK(a.specs() == b.specs());
  return std::ranges::all_of(a.specs(), [&](const StreamSpec& spec) {
    return std::ranges::equal(a.bytes(spec.name), b.bytes(spec.name));
  });
}

uint64_t stored_bits(const Encoded& encoded) {
  uint64_t bits = 0;
  for (const StreamSpec& spec : encoded.specs()) {
    if (spec.shared) continue;
    const uint64_t elements = encoded.bytes(spec.name).size() / size_of(spec.type);
    bits += elements * (spec.index_bound > 0 ? index_bits(spec.index_bound) : size_of(spec.type) * 8);
  }
  return bits;
}

void for_each_case(const std::function<void(const CodecCase&, Rng&)>& body, size_t sanitized_step) {
  std::map<std::string_view, size_t> seen;  // rows of each codec
  for (const CodecCase& row : codec_table()) {
    CAPTURE(row.label);
    Rng rng(number_of(row.label));
    if (kSanitized && seen[row.codec]++ % sanitized_step != 0) continue;
    body(row, rng);
  }
}

std::optional<ErrorKind> decoding_error(const Subject& subject, const StreamReader& document, size_t tokens) {
  try {
    decode(subject, document, 0, tokens);
    return std::nullopt;
  } catch (const Error& error) {
    return error.kind();
  }
}

Encoded tampered(const Encoded& original,
                 const std::function<void(const StreamSpec&, std::vector<std::byte>&)>& change) {
  Encoded copy(original.specs());
  StreamStore& store = copy.add_document(sample_ids());
  for (const StreamSpec& spec : original.specs()) {
    const auto all = original.bytes(spec.name);
    std::vector<std::byte> bytes(all.begin(), all.end());
    change(spec, bytes);
    store.append(spec.name, bytes);
  }
  return copy;
}

}  // namespace kvcodec::test
