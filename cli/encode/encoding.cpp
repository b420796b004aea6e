#include "cli/encode/encoding.hpp"

#include <algorithm>
#include <string_view>

#include "cli/codecs/weights.hpp"
#include "cli/frame/text.hpp"
#include "cli/inputs/matching.hpp"
#include "cli/search/goal.hpp"
#include "lib/codec/layer_weights.hpp"
#include "lib/codec/pair_codec.hpp"
#include "lib/codec/rope_codec.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

/// Throws Error(bad_input) unless the tokens of the cache can follow those in the codes: model, type and token ids must fit.
void check_continues(const KvReader& kv, const CodesReader& base) {
  check_same_model(kv, base);
  if (kv.dtype() != base.info().source_dtype)
    throw bad_input("{}: the element type is {}; {} has {}", kv.name(), name_of(kv.dtype()), base.name(),
                    name_of(base.info().source_dtype));
  if (kv.has_tokens() != base.has_tokens() && base.info().documents.tokens() > 0)
    throw bad_input("{}: {} token ids; {} {}", kv.name(), kv.has_tokens() ? "has" : "has no", base.name(),
                    base.has_tokens() ? "has them" : "has none");
}

/// Makes the codec. An Error(bad_input) names the book's file, if there is one: it is about the book.
std::unique_ptr<Codec> make_codec(const CodecEntry& entry, const Options& options,
                                  const CodecContext& context, std::optional<RopeChoice> rope,
                                  const std::string& book_file) {
  try {
    return kvcodec::make_codec(entry, options, context, choose_rope(entry, rope, context));
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::bad_input && !book_file.empty()) throw error.at(book_file);
    throw;
  }
}

/// Whether a dictionary or codebooks were learned with --weights.
bool is_weighed(const Book& book) {
  const Scalar* normalize = book.parameters.find("normalize");
  return book.parameters.find(kErrorScales) || (normalize && *normalize == Scalar(std::string("weights")));
}

/// Notes codecs that weigh errors and yet keep no first token exactly: weights do not cover it.
void note_first_tokens(const CodecEntry& entry, const Record& parameters, const Book* book,
                       const EncodeOptions& options) {
  const auto note = [&](const CodecEntry& codec, std::string_view prefix) {
    const Scalar* sink = parameters.find(fmt::format("{}sink", prefix));
    if (!sink || *sink != Scalar(int64_t{0})) return;
    const std::string advice = fmt::format(
        "first tokens, whose errors cost far more: keep the first one exact with --{}sink 1", prefix);
    if (!codec.book_type.empty()) {
      if (book && is_weighed(*book))
        options.common.note("{} was learned with weights, which do not cover {}", options.book, advice);
    } else if (!options.weights.empty()) {
      options.common.note("{} does not cover {}", options.weights, advice);
    }
  };
  if (!entry.is_pair()) return note(entry, "");
  for (const Side side : kSides) note(entry.of(side), pair_prefix(side));
}

}  // namespace

Encoding::Encoding(const KvReader& kv, const EncodeOptions& options, const NamedCodec& codec,
                   const std::vector<size_t>& documents) {
  const CodecEntry& entry = *codec.entry;
  read_book_for(entry, options, kv);
  info.codec = entry.name;
  info.model = kv.model();
  info.source_dtype = kv.dtype();
  info.storage = kv.dtype() == DType::f32 ? DType::bf16 : kv.dtype();
  if (options.storage) info.storage = *options.storage;
  CodecContext context = context_of(info.model, kv.documents(), info.storage, book_ ? &book_->book : nullptr);
  context.engine = coding_engine(entry, options.common);
  std::optional<Weights> weights;
  if (!options.weights.empty()) weights = read_weights(options.weights, info.model, kv.name());
  if (weights && (!options.goal.given() || !allocates_bits(entry) || entry.capabilities.takes_weights))
    context.weights = weights->by_layer();
  const auto make = [&](const Options& with) {
    return make_codec(entry, with, context, options.rope, options.book);
  };
  const auto layers = options.layers.choose(kv.layers(), kv.name());
  if (options.goal.given())
    found = settle(options.goal,
                   {entry, kv, documents, layers, weights ? &*weights : nullptr, options.common, make},
                   *codec.options);
  made_ = make(*codec.options);
  if (entry.before_rope && !options.rope && !context.book && !context.rope.turns())
    options.common.note("keys go to {} as they are: {}", entry.name,
                        context.rope.known() ? "the model does not turn them" : context.rope.why_not());
  info.parameters = made_->parameters();
  note_first_tokens(entry, info.parameters, book_ ? &book_->book : nullptr, options);
  info.layer_group = made_->layer_group();
  info.joint = made_->joint();
  info.groups = options.layers.given()
                    ? whole_groups(layers, info.layer_group, ErrorKind::usage, "--layers")
                    : whole_groups(layers, info.layer_group, ErrorKind::bad_input, kv.name() + ": layers");
  info.packed = options.pack;
}

Encoding::Encoding(const KvReader& kv, const EncodeOptions& options) : base_(std::in_place, options.append) {
  check_continues(kv, *base_);
  base_codec_.emplace(*base_, options.book, coding_engine(codec_entry(*base_), options.common));
  info = base_->info();
  if (!base_codec_->entry().capabilities.appends)
    throw usage_error("{}: the codec {} cannot append", base_->name(), info.codec);
  if (!base_codec_->entry().capabilities.any_shape)
    check_one_shape(kv.name(), kv.model(), kv.documents(), info.codec.c_str());
  for (const int group : info.groups)
    for (int layer = group; layer < group + info.layer_group; ++layer)
      if (std::find(kv.layers().begin(), kv.layers().end(), layer) == kv.layers().end())
        throw bad_input("{}: there is no layer {}, which {} has; it has layers {}", kv.name(), layer,
                        base_->name(), ranges_text(kv.layers()));
}

std::unique_ptr<CodesWriter> Encoding::make_writer(OutputFile& output, const Job& job, bool embed_book,
                                                   const CodesReader* alike) const {
  if (base_) return std::make_unique<CodesWriter>(output, *base_, info, codec(), job.tokens, job.positions);
  return std::make_unique<CodesWriter>(output, info, codec(), job.tokens, job.positions,
                                       embed_book ? &book_->book : nullptr, alike);
}

std::vector<std::string> Encoding::history(const KvReader& kv) const {
  std::vector<std::vector<std::string>> histories;
  if (base_) histories.push_back(base_->type().history);
  histories.push_back(kv.type().history);
  if (book_) histories.push_back(book_->type.history);
  return merged_history(histories);
}

void Encoding::read_book_for(const CodecEntry& entry, const EncodeOptions& options, const KvReader& kv) {
  if (entry.book_type.empty()) {
    if (!options.book.empty()) throw usage_error("the codec {} takes no book; leave out --book", entry.name);
    if (options.embed_book) throw usage_error("the codec {} has no book to embed", entry.name);
    return;
  }
  if (options.book.empty())
    throw usage_error("the codec {} needs a {} file; name it with --book", entry.name, entry.book_type);
  book_ = read_book(options.book, entry.book_type, false);
  check_same_weights(options.book, book_->model, kv.name(), kv.model());
  info.book_type = entry.book_type;
  info.book_digest = book_->digest;
  info.book_bytes = book_->book.size_bytes();
}

}  // namespace kvcodec::cli
