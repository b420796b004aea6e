#include "lib/codec/registry.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "lib/codec/kinds.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

class PairCodec final : public Codec {
 public:
  PairCodec(std::unique_ptr<Codec> keys, std::unique_ptr<Codec> values)
      : keys_(std::move(keys)), values_(std::move(values)) {}

  Record parameters() const override {
    Record record;
    for (const Side side : kSides) {
      const Record own = of(side).parameters();
      for (const auto& [name, value] : own.items())
        record.set(name == kErrorScales ? name : std::string(pair_prefix(side)) + name, value);
    }
    return record;
  }

  std::vector<int> group_of(int layer) const override { return keys_->group_of(layer); }
  uint64_t predicts_from() const override {
    const uint64_t keys = keys_->predicts_from(), values = values_->predicts_from();
    return keys == 0 || values == 0 ? std::max(keys, values) : std::min(keys, values);
  }
  bool weighs_tokens() const override { return keys_->weighs_tokens() || values_->weighs_tokens(); }
  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    return of(shape.side).streams(shape);
  }
  size_t scratch_bytes_per_row(const GroupShape& shape) const override {
    return of(shape.side).scratch_bytes_per_row(shape);
  }

  bool rounds() const override { return of(Side::key).rounds(); }
  SurveyScope survey_scope(const GroupShape& shape) const override {
    return of(shape.side).survey_scope(shape);
  }
  GroupShape surveyed(const GroupShape& shape) const override { return of(shape.side).surveyed(shape); }
  bool wants_queries() const override { return keys_->wants_queries() || values_->wants_queries(); }
  std::string without_queries() const override {
    return keys_->wants_queries() ? keys_->without_queries() : values_->without_queries();
  }
  std::string needs_rope() const override {
    if (std::string why = keys_->needs_rope(); !why.empty()) return why;
    return values_->surveyed({.side = Side::value}).side == Side::key ? values_->needs_rope() : std::string();
  }
  uint64_t clipped() const override { return keys_->clipped() + values_->clipped(); }
  std::unique_ptr<Survey> survey(const GroupShape& shape) const override {
    return of(shape.side).survey(shape);
  }

  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    of(shape.side).append(shape, rows, document);
  }

 protected:
  ViewPtr view_of(const GroupShape& shape, const StreamReader& document) const override {
    return Codec::view_of(of(shape.side), shape, document);
  }

 private:
  const Codec& of(Side side) const { return side == Side::value ? *values_ : *keys_; }

  std::unique_ptr<Codec> keys_, values_;
};

std::unique_ptr<Codec> make_side(const CodecEntry& entry, Side side, const PairOptions& options,
                                 CodecContext context) {
  if (entry.book_type.empty()) context.book = nullptr;
  if (!entry.capabilities.takes_weights) context.weights = {};
  if (!entry.capabilities.device_twin) context.engine = nullptr;
  const std::string whose = fmt::format("codec {} of {}s", entry.name, name_of(side));
  auto codec = with_context(whose, [&] { return make_for_kinds(entry, options.of(side), context); });
  if (codec->joint())
    throw usage_error(
        "{}: with this {} it codes keys and values jointly, and cannot serve one side: learn one of sides apart",
        whose, entry.book_type);
  return codec;
}

std::unique_ptr<Codec> make_pair_codec(const CodecEntry& keys, const CodecEntry& values,
                                       const PairOptions& options, const CodecContext& context) {
  if (!keys.book_type.empty() && !values.book_type.empty() && keys.book_type != values.book_type)
    throw usage_error("{} needs a {} file and {} a {} file; codes stand on one book at most", keys.name,
                      keys.book_type, values.name, values.book_type);
  auto of_keys = make_side(keys, Side::key, options, context),
       of_values = make_side(values, Side::value, options, context);
  for (int layer = 0; layer < context.num_layers; ++layer)
    if (const auto key = of_keys->group_of(layer), value = of_values->group_of(layer); key != value)
      throw usage_error(
          "{} codes groups of {} layers together and {} groups of {}; keys and values need groups of the same size",
          keys.name, key.size(), values.name, value.size());
  return std::make_unique<PairCodec>(std::move(of_keys), std::move(of_values));
}

Capabilities capabilities_of_both(const CodecEntry& keys, const CodecEntry& values) {
  const Capabilities &of_keys = keys.capabilities, &of_values = values.capabilities;
  return {.needs_book = of_keys.needs_book || of_values.needs_book,
          .lossless = of_keys.lossless && of_values.lossless,
          .appends = of_keys.appends && of_values.appends,
          .multiplies = of_keys.multiplies && of_values.multiplies,
          .has_index = of_keys.has_index,  // queries are held against keys
          .device_twin = of_keys.device_twin || of_values.device_twin,
          .device_pays = of_keys.device_pays || of_values.device_pays,
          .takes_weights = of_keys.takes_weights || of_values.takes_weights};
}

}  // namespace

std::vector<OptionField> PairOptions::fields() {
  std::vector<OptionField> all;
  for (const Side side : kSides)
    for (OptionField& field : of(side).fields()) {
      field.name = std::string(pair_prefix(side)) + field.name;
      all.push_back(std::move(field));
    }
  return all;
}

CodecEntry pair_of(const CodecEntry& keys, const CodecEntry& values) {
  CodecEntry pair{.name = fmt::format("{}{}{}", keys.name, kPairMark, values.name),
                  .summary = fmt::format("keys by {}, values by {}", keys.name, values.name),
                  .capabilities = capabilities_of_both(keys, values),
                  .book_type = keys.book_type.empty() ? values.book_type : keys.book_type,
                  .make_options =
                      [&keys, &values] {
                        return std::make_unique<PairOptions>(keys.make_options(), values.make_options());
                      },
                  .make =
                      [&keys, &values](const Options& options, const CodecContext& context) {
                        return make_pair_codec(keys, values, dynamic_cast<const PairOptions&>(options),
                                               context);
                      },
                  // An index of keys, which values may have too, is held against queries as they are.
                  .before_rope = keys.before_rope && !values.capabilities.has_index,
                  .sides = {&keys, &values}};
  for (const Side side : kSides)
    for (const auto& [name, value] : pair.of(side).paper)
      pair.paper.emplace_back(std::string(pair_prefix(side)) + name, value);
  return pair;
}

/// The entries of all codecs, from the names of their sources (cmake/lists.cmake).
std::vector<CodecEntry> all_codec_entries();

std::span<const CodecEntry> codecs() {
  static const std::vector<CodecEntry> entries = [] {
    auto all = all_codec_entries();
    std::ranges::sort(all, {}, [](const CodecEntry& entry) { return std::tie(entry.place, entry.name); });
    return all;
  }();
  return entries;
}

static const CodecEntry* single_codec(std::string_view name) {
  const auto all = codecs();
  const auto place = std::ranges::find(all, name, &CodecEntry::name);
  return place == all.end() ? nullptr : &*place;
}

const CodecEntry* known_codec(std::string_view name) {
  const size_t mark = name.find(kPairMark);
  if (mark == std::string_view::npos) return single_codec(name);
  const CodecEntry *keys = single_codec(name.substr(0, mark)), *values = single_codec(name.substr(mark + 1));
  if (!keys || !values) return nullptr;
  static std::mutex mutex;
  static std::map<std::string, CodecEntry, std::less<>> pairs;  // made when they are first asked for
  const std::lock_guard lock(mutex);
  auto pair = pairs.find(name);
  if (pair == pairs.end()) pair = pairs.emplace(name, pair_of(*keys, *values)).first;
  return &pair->second;
}

const CodecEntry& find_codec(std::string_view name) {
  if (const CodecEntry* entry = known_codec(name)) return *entry;
  std::vector<std::string_view> names;
  for (const CodecEntry& entry : codecs()) names.push_back(entry.name);
  throw usage_error("'{}' is not a codec; choose one of: {}", name, fmt::join(names, ", "));
}

}  // namespace kvcodec
