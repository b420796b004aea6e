// Shared by the fuzz targets of codecs: a codec chosen by the input, and a reader of all its streams.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "lib/codec/codec.hpp"
#include "lib/codec/registry.hpp"
#include "lib/core/half.hpp"
#include "lib/core/rng.hpp"
#include "lib/rvq/codec/book.hpp"
#include "lib/sparse/codec/book.hpp"
#include "test/fuzz/fuzz.hpp"
#include "test/name_number.hpp"
#include "test/transform_books.hpp"

namespace kvcodec::fuzz {

/// A value from the input for a field of any type; it need not be a valid one.
inline Scalar choose_value(const OptionField& field, Bytes& input) {
  const uint8_t byte = input.byte();
  if (std::holds_alternative<bool*>(field.target)) return byte % 2 != 0;
  if (std::holds_alternative<int64_t*>(field.target)) return int64_t{byte % 64};
  if (std::holds_alternative<double*>(field.target)) return byte < 128 ? 0.0 : (byte - 128) / 127.0;
  const std::vector<std::string> choices = choices_of(field);
  return choices.empty() ? std::string() : choices[byte % choices.size()];
}

/// Codebooks for the context with a few random entries; the input determines their number and type.
inline Book choose_codebooks(const CodecContext& context, Bytes& input) {
  constexpr DType kTypes[] = {DType::f16, DType::bf16, DType::f32};
  RvqBook book;
  RvqBookOptions& o = book.options;
  Rng rng(input.byte());
  o.codebooks_value = o.codebooks_low = 1 + input.byte() % 4, o.codebooks_high = 1 + input.byte() % 2;
  o.entries_value = 2 + input.byte() % 16, o.entries_low = 2 + 2 * int64_t{input.byte()};
  o.entries_high = 2 + input.byte() % 16;  // ids of low dimensions may need two bytes
  o.entry_type = kTypes[input.byte() % 3];
  o.split = input.byte() % 4 == 0 ? SplitBy::none : SplitBy::rope;
  book.head_dim = context.head_dim;
  const auto d = static_cast<size_t>(context.head_dim);
  book.split = split_dimensions(o.split, {}, d, paper_high_pairs(d));
  for (const RvqPart part : kRvqParts) {
    Codebooks books(book.stages(part), book.entries(part), book.width(part));
    for (size_t s = 0; s < books.stages(); ++s)
      for (size_t e = 0; e < books.entries(); ++e)
        for (float& value : books.stage(s).row(e)) value = static_cast<float>(rng.normal());
    book.of(part).books = std::move(books);
  }
  return to_book(book);
}

/// A dictionary for the context with a few random atoms; the input determines their number and the treatment of signals.
inline Book choose_dictionary(const CodecContext& context, Bytes& input) {
  SparseBook book;
  TrainOptions& o = book.options;
  Rng rng(input.byte());
  o.atoms = 1 + input.byte() % 200;
  o.sparsity = 1;  // what encoding takes is an option of its own
  o.signal = input.byte() % 4 == 0 ? SignalUnit::head : SignalUnit::token;
  o.normalize = static_cast<Normalize>(input.byte() % 3);
  o.center = input.byte() % 2 == 0 ? Center::none : Center::channel;
  const uint8_t kind = input.byte();
  o.atom_type = kind % 4 == 0 ? AtomType::f32 : AtomType::i8;
  o.dict_scope = kind < 192 ? DictScope::global : DictScope::layer;
  o.optimizer = Optimizer::gradient;
  book.num_layers = context.num_layers, book.heads = context.heads, book.head_dim = context.head_dim;
  const auto layers = static_cast<size_t>(context.num_layers);
  const auto fill = [&](Matrix<float>& matrix) {
    for (size_t i = 0; i < matrix.size(); ++i) matrix.data()[i] = static_cast<float>(rng.normal());
  };
  for (const Side side : kSides) {
    Dictionary& dictionary = book.of(side).dictionary;
    dictionary.atoms = Matrix<float>(static_cast<size_t>(o.atoms), book.layout().signal_width());
    fill(dictionary.atoms);
    Normalization& normalization = dictionary.normalization;
    normalization.normalize = o.normalize;
    if (scales_layers(normalization.normalize)) normalization.layer_scale.assign(layers, 0.75f);
    if (o.center == Center::channel) {
      normalization.channel_mean = Matrix<float>(layers, book.layout().layer_width());
      fill(normalization.channel_mean);
    }
  }
  return to_book(book);
}

/// A transform for the context; the input determines what a vector is, from how many ids it is predicted, and whether first tokens
/// are known.
inline Book choose_transform(const CodecContext& context, Bytes& input) {
  Rng rng(input.byte());
  const uint8_t kind = input.byte();
  return to_book(test::random_transform_book({.per_head = kind % 2 == 0,
                                              .sides = kind % 4 < 2 ? SideCoding::joint : SideCoding::apart,
                                              .layer_group = 1,
                                              .predict_tokens = kind / 4 % 4,
                                              .first_tokens = kind / 16 % 2 == 1},
                                             context, rng));
}

inline Book choose_book(std::string_view codec, const CodecContext& context, Bytes& input) {
  if (codec == "rvq") return choose_codebooks(context, input);
  if (codec == "sparse") return choose_dictionary(context, input);
  return choose_transform(context, input);
}

/// Ids of a document's tokens if the codec predicts from them; some need not be there, and some may be beyond its
/// vocabulary.
inline std::vector<uint32_t> choose_ids(const Codec& codec, Bytes& input) {
  std::vector<uint32_t> ids(codec.predicts_from() > 0 ? input.byte() : 0);
  for (uint32_t& id : ids) id = input.byte() % (codec.predicts_from() + 1);
  return ids;
}

/// The codec whose name has the input's number, or else one that both determine. An input of the corpus has the number of its codec,
/// and so keeps it whatever codecs come. Of those that need a book, the ones that choose_book knows.
inline const CodecEntry& choose_entry(Bytes& input) {
  const uint32_t number = input.below(1 << 16);
  const CodecEntry* chosen = nullptr;
  uint32_t most = 0;
  for (const CodecEntry& entry : codecs()) {
    const std::string_view name = entry.name;
    if (entry.capabilities.needs_book && name != "rvq" && name != "sparse" && name != "transform") continue;
    const uint32_t difference = test::number_of(name) ^ number;
    const uint32_t weight = difference % (1 << 16) == 0 ? UINT32_MAX : difference * 2654435761u;
    if (!chosen || weight > most) chosen = &entry, most = weight;
  }
  return *chosen;
}

/// The codec that the input chooses, with options set from it as far as they are valid; `book` has to outlive it.
inline std::unique_ptr<Codec> choose_codec(Bytes& input, CodecContext& context, Book& book) {
  const CodecEntry& entry = choose_entry(input);
  const uint8_t byte = input.byte();
  context = {.num_layers = 1,
             .heads = 1 + byte % 3,
             .head_dim = 1 + input.byte() % 40,
             .storage = byte < 128 ? DType::bf16 : DType::f16};
  if (entry.capabilities.needs_book) {
    book = choose_book(entry.name, context, input);
    context.book = &book;
  }
  const auto options = entry.make_options();
  for (const OptionField& field : options->fields())
    expect_refusal_or_success([&] { set_value(field, choose_value(field, input)); });
  return entry.make(*options, context);
}

/// The shape of one side, which the input chooses, of the context's only layer.
inline GroupShape choose_side(const Codec& codec, const CodecContext& context, Bytes& input) {
  const Side side = input.byte() % 2 ? Side::value : Side::key;
  return {codec.group_of(0), context.layer_shape(0), codec.joint() ? Side::both : side};
}

/// Products of tokens [first, first + count) with vectors of ones, two for each head.
inline void multiply(const DocumentView& document, uint64_t first, size_t count) {
  const GroupShape& shape = document.shape();
  const size_t vectors = 2 * static_cast<size_t>(static_cast<int>(shape.layers.size()) * shape.heads());
  Matrix<float> per_channel(vectors, static_cast<size_t>(shape.head_dim())), per_token(vectors, count);
  if (shape.side == Side::key) {
    std::fill_n(per_channel.data(), per_channel.size(), 1.0f);
    document.multiply(first, per_channel, per_token);
  } else {
    std::fill_n(per_token.data(), per_token.size(), 1.0f);
    document.multiply(first, per_token, per_channel);
  }
}

/// Products with both sides of what is coded jointly, or with the side that is coded.
inline void multiply_sides(const Codec& codec, const GroupShape& shape, const StreamReader& streams,
                           uint64_t first, size_t count) {
  for (const Side side : sides_in(shape.side))
    expect_refusal_or_success([&] { multiply(*codec.open(of_side(shape, side), streams), first, count); });
}

/// Decodes and multiplies some tokens, which the input chooses and which need not be there, then scattered
/// ones, then all of them.
inline void read_everything(const Codec& codec, const GroupShape& shape, const StreamReader& streams,
                            Bytes& input) {
  const uint64_t first = input.byte();
  Matrix<float> some(input.byte() % 64, shape.width());
  const auto document = codec.open(shape, streams);
  expect_refusal_or_success([&] { document->decode(first, some); });
  multiply_sides(codec, shape, streams, first, some.rows());
  std::vector<uint32_t> scattered;
  for (uint64_t token = first % 7; token < document->tokens() && scattered.size() < 64;
       token += 1 + first % 40)
    scattered.push_back(static_cast<uint32_t>(token));
  Matrix<float> chosen(scattered.size(), shape.width());
  expect_refusal_or_success([&] { document->decode_tokens(scattered, chosen); });
  Matrix<float> all(document->tokens(), shape.width());
  expect_refusal_or_success([&] { document->decode(0, all); });
  multiply_sides(codec, shape, streams, 0, all.rows());
}

}  // namespace kvcodec::fuzz
