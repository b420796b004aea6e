#include "lib/codec/kinds.hpp"

#include <algorithm>
#include <set>
#include <sstream>

#include <fmt/ranges.h>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

constexpr std::string_view kKinds = "kinds";

/// The name of a kind's own array or parameter.
std::string kind_name(size_t kind, std::string_view name) {
  std::string_view training = Book::kTrainingPrefix;
  training = training.substr(0, name.starts_with(training) ? training.size() : 0);
  return fmt::format("{}{}/{}", training, kind, name.substr(training.size()));
}

/// The inverse: name without its kind, if it is that kind's; nothing for another kind's.
std::optional<std::string> name_in_kind(size_t kind, const std::string& name) {
  const size_t begin = name.starts_with(Book::kTrainingPrefix) ? Book::kTrainingPrefix.size() : 0,
               end = name.find('/', begin);
  if (end == std::string::npos) return name;
  const auto number = number_in<size_t>(name.substr(begin, end - begin));
  if (!number) return name;
  if (*number != kind) return std::nullopt;
  return name.substr(0, begin) + name.substr(end + 1);
}

bool same_array(const Array* other, const Array& array) {
  return other && other->type == array.type && other->shape == array.shape && other->bytes == array.bytes;
}

struct KindCodec {
  std::vector<int> layers;
  std::unique_ptr<Codec> codec;
};

class KindsCodec final : public Codec {
 public:
  KindsCodec(std::vector<KindCodec> kinds, std::string book)
      : kinds_(std::move(kinds)), book_(std::move(book)) {}

  Record parameters() const override { return first().parameters(); }
  std::vector<int> group_of(int layer) const override {
    for (const KindCodec& kind : kinds_)
      if (const auto place = std::ranges::find(kind.layers, layer); place != kind.layers.end()) {
        std::vector<int> group = kind.codec->group_of(static_cast<int>(place - kind.layers.begin()));
        for (int& one : group) one = kind.layers[as_size(one)];
        return group;
      }
    return {layer};
  }
  bool joint() const override { return first().joint(); }
  std::optional<LearnedRate> learned_rate() const override { return first().learned_rate(); }
  uint64_t predicts_from() const override { return first().predicts_from(); }
  bool weighs_tokens() const override { return first().weighs_tokens(); }
  std::vector<StreamSpec> streams(const GroupShape& shape) const override {
    return of(shape).streams(renumbered(shape));
  }
  size_t scratch_bytes_per_row(const GroupShape& shape) const override {
    return of(shape).scratch_bytes_per_row(renumbered(shape));
  }
  SurveyScope survey_scope(const GroupShape& shape) const override {
    return of(shape).survey_scope(renumbered(shape));
  }
  GroupShape surveyed(const GroupShape& shape) const override {
    return of_side(shape, of(shape).surveyed(renumbered(shape)).side);
  }
  bool rounds() const override { return first().rounds(); }
  std::unique_ptr<Survey> survey(const GroupShape& shape) const override {
    return of(shape).survey(renumbered(shape));
  }
  void append(const GroupShape& shape, MatrixView<const float> rows, StreamStore& document) const override {
    of(shape).append(renumbered(shape), rows, document);
  }

 protected:
  ViewPtr view_of(const GroupShape& shape, const StreamReader& document) const override {
    // A view with the model's numbers of layers.
    return std::make_unique<OuterView>(Codec::view_of(of(shape), renumbered(shape), document), shape,
                                       document);
  }

 private:
  const Codec& first() const { return *kinds_.front().codec; }
  const KindCodec& kind_of(int layer) const {
    for (const KindCodec& kind : kinds_)
      if (std::ranges::count(kind.layers, layer) > 0) return kind;
    throw bad_input("{} has nothing for layer {}; it was trained without", book_, layer);
  }
  const Codec& of(const GroupShape& shape) const { return *kind_of(shape.first_layer()).codec; }
  GroupShape renumbered(GroupShape shape) const {
    const std::vector<int>& layers = kind_of(shape.first_layer()).layers;
    for (int& layer : shape.layers)
      layer = static_cast<int>(std::ranges::find(layers, layer) - layers.begin());
    return shape;
  }

  std::vector<KindCodec> kinds_;
  std::string book_;  // for messages
};

}  // namespace

Book join_kinds(const LayerKinds& kinds, std::vector<Book> books, int num_layers) {
  if (kinds.size() == 1 && kinds.front().size() == as_size(num_layers)) return std::move(books.front());
  Book joined{.type = books.front().type, .parameters = {}, .arrays = {}};
  std::vector<std::string> lists;
  for (const auto& layers : kinds) lists.push_back(fmt::format("{}", fmt::join(layers, ",")));
  joined.parameters.set(kKinds, fmt::format("{}", fmt::join(lists, ";")));
  std::set<std::string> shared;  // arrays that all kinds have alike
  for (size_t kind = 0; kind < books.size(); ++kind) {
    for (const auto& [name, value] : books[kind].parameters.items())
      if (std::ranges::all_of(books, [&name = name, &value = value](const Book& book) {
            const Scalar* other = book.parameters.find(name);
            return other && *other == value;
          }))
        joined.parameters.set(name, value);
      else
        joined.parameters.set(kind_name(kind, name), value);
    for (const Array& array : books[kind].arrays)
      if (kind == 0 && std::ranges::all_of(
                           books, [&](const Book& book) { return same_array(book.find(array.name), array); }))
        shared.insert(array.name);
  }
  joined.program = books.front().program;
  for (size_t kind = 0; kind < books.size(); ++kind)
    for (Array& array : books[kind].arrays) {
      const bool is_shared = shared.contains(array.name);
      if (is_shared && kind > 0) continue;
      if (!is_shared) array.name = kind_name(kind, array.name);
      joined.arrays.push_back(std::move(array));
    }
  return joined;
}

LayerKinds kinds_in(const Book& book) {
  LayerKinds kinds;
  if (!book.parameters.find(kKinds)) return kinds;
  const std::string text = book.parameters.get_string(kKinds);
  std::set<int> seen;
  std::istringstream lists(text);
  for (std::string list; std::getline(lists, list, ';');) {
    std::istringstream numbers(list);
    auto& layers = kinds.emplace_back();
    for (std::string number; std::getline(numbers, number, ',');) {
      const auto layer = number_in<int>(number);
      if (!layer || *layer < 0 || !seen.insert(*layer).second || (!layers.empty() && *layer < layers.back()))
        throw bad_input("{} is '{}': '{}' is no layer, or out of place", kKinds, text, number);
      layers.push_back(*layer);
    }
    if (layers.empty()) throw bad_input("{} is '{}': a kind without layers", kKinds, text);
  }
  if (kinds.empty()) throw bad_input("{} is '{}'; it must name layers", kKinds, text);
  return kinds;
}

Book book_of_kind(const Book& book, size_t kind) {
  if (!book.parameters.find(kKinds)) return book;
  Book own{.type = book.type, .parameters = {}, .arrays = {}, .program = book.program};
  for (const auto& [name, value] : book.parameters.items())
    if (const auto plain = name_in_kind(kind, name); plain && *plain != kKinds)
      own.parameters.set(*plain, value);
  for (const Array& array : book.arrays)
    if (const auto plain = name_in_kind(kind, array.name)) {
      own.arrays.push_back(array);
      own.arrays.back().name = *plain;
    }
  return own;
}

std::unique_ptr<Codec> make_for_kinds(const CodecEntry& entry, const Options& options,
                                      const CodecContext& context) {
  // A pair asks for each of its codecs.
  if (entry.book_type.empty() || !context.book || entry.is_pair()) return entry.make(options, context);
  const LayerKinds kinds = kinds_in(*context.book);
  const std::string book = fmt::format("this book ({})", entry.book_type);
  if (kinds.empty()) {
    for (const LayerShape& shape : context.layer_shapes)
      if (!context.book->program && (shape.heads == 0 || shape != context.layer_shapes.front()))
        throw bad_input(
            "{} is for caches whose layers have the same heads, keys and values; here they differ: train one "
            "on such a cache",
            book);
    return entry.make(options, context);
  }
  std::vector<KindCodec> made;
  for (size_t i = 0; i < kinds.size(); ++i) {
    const std::vector<int>& layers = kinds[i];
    if (layers.back() >= context.num_layers)
      throw bad_input("{} is for layer {}; the cache has {} layers", book, layers.back(), context.num_layers);
    const LayerShape shape = context.layer_shape(layers.front());
    for (const int layer : layers)
      if (context.layer_shape(layer) != shape || shape.heads == 0)
        throw bad_input("{} is for layers {}, of one kind; in the cache layer {} has {}", book,
                        fmt::join(layers, ","), layer,
                        shape.heads == 0 ? "no keys and values" : "other heads than the first of them");
    const Book own = book_of_kind(*context.book, i);
    CodecContext alone = context;
    alone.num_layers = static_cast<int>(layers.size());
    alone.heads = shape.heads, alone.head_dim = shape.key_dim;
    alone.layer_shapes.assign(layers.size(), shape);
    alone.book = &own;
    made.push_back({layers, entry.make(options, alone)});
  }
  return std::make_unique<KindsCodec>(std::move(made), book);
}

}  // namespace kvcodec
