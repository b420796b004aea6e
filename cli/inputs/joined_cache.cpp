#include "cli/inputs/joined_cache.hpp"

#include <algorithm>
#include <utility>

#include "cli/inputs/cache_source.hpp"
#include "formats/cache/codes_file.hpp"
#include "formats/models/key_rope.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {

/// True for codes that cannot be decoded without a book from another file.
static bool needs_book(const std::string& file) {
  if (identify(file).type != "codes") return false;
  const CodesReader codes(file);
  return !codes.info().book_type.empty() && !codes.embedded_book();
}

std::vector<OptionField> JoinOptions::fields() {
  return {
      {"book", "file of the book that codes were made with; not needed if it is inside", &book},
      {"keep-bos",
       "which documents keep their first token, with which the model's texts begin: all, or the first alone",
       &keep_bos},
      {"at", "position of the first token", &at, 0, 1e9}};
}

std::vector<std::string> history_of(const JoinOptions& options) {
  return merged_history(mapped<std::vector<std::string>>(
      options.files, [](const std::string& file) { return identify(file).history; }));
}

JoinedCache::JoinedCache(const JoinOptions& options, const DocumentSelection& documents, Engine* engine,
                         bool turned)
    : at_(static_cast<uint64_t>(options.at)) {
  Documents all;
  std::vector<Part> places;
  bool book_is_needed = false;
  for (const std::string& file : options.files) {
    const bool needs = !options.book.empty() && needs_book(file);
    book_is_needed |= needs;
    const auto& source = sources_.emplace_back(open_cache(file, needs ? options.book : "", engine, {}));
    check_same_model(file, source->model(), sources_.front()->name(), sources_.front()->model());
    if (source->layers() != layers())
      throw bad_input("{}: has other layers than {}", file, sources_.front()->name());
    for (size_t i = 0; i < source->documents().count(); ++i) {
      all.add(source->documents().names[i], source->documents().length(i));
      places.push_back({.source = sources_.size() - 1, .document = i, .end = source->documents().length(i)});
    }
  }
  if (!options.book.empty() && !book_is_needed)
    throw usage_error("no file needs the book {}; leave out --book", options.book);
  const std::string where = options.files.size() == 1 ? options.files.front() : "the files together";
  for (const size_t i : documents.choose_in_order(all, where))
    if (places[i].end > 0) parts_.push_back(std::move(places[i]));
  if (parts_.empty()) throw bad_input("{}: there are no documents with tokens", where);
  model_ = sources_.front()->model(), dtype_ = sources_.front()->dtype();
  for (Part& part : parts_) {
    const interop::CacheSource& source = *sources_[part.source];
    part.positions = source.positions_of(part.document);
    if (source.dtype() != dtype_) dtype_ = DType::f32;
    if (parts_.size() > 1 && !source.documents().whole())
      throw bad_input(
          "{}: layers with windows lack tokens of its documents; dump it without --window-layers trim",
          source.name());
  }
  if (options.keep_bos == KeepBos::first) keep_one_bos(options.bos);
  for (const Part& part : parts_) {
    const interop::CacheSource& source = *sources_[part.source];
    if ((parts_.size() > 1 || part.skipped > 0) && !source.documents().facts_of(part.document).state.empty())
      throw bad_input(
          "{}: document '{}' has a state of all its tokens, which cannot be joined, nor lack the first one",
          source.name(), source.documents().names[part.document]);
  }
  for (Part& part : parts_) {
    part.place = tokens_;
    tokens_ += part.end - part.skipped;
  }
  settle_rope(turned);
}

void JoinedCache::keep_one_bos(std::optional<uint32_t> bos) {
  bool is_first = true;
  for (Part& part : parts_) {
    const interop::CacheSource& source = *sources_[part.source];
    if (!source.has_tokens())
      throw bad_input("{}: has no token ids, so which first token to keep is not known; use --keep-bos all",
                      source.name());
    const uint32_t first = source.tokens_of(part.document).front();
    if (bos && first != *bos)
      throw bad_input(
          "{}: document '{}' begins with token {}, and not with {}, as texts of the model or the first document do; use "
          "--keep-bos all",
          source.name(), source.documents().names[part.document], first, *bos);
    part.skipped = is_first ? 0 : 1;
    bos = first, is_first = false;
  }
  std::erase_if(parts_, [](const Part& part) { return part.skipped == part.end; });
}

void JoinedCache::settle_rope(bool turned) {
  const bool before = model_.key_state == "pre-rope";
  const auto stays = [&](const Part& part) {
    return part.positions[part.skipped] == at_ + part.place &&
           part.positions.back() - part.positions[part.skipped] + 1 == part.end - part.skipped;
  };
  if (before ? !turned : std::ranges::all_of(parts_, stays)) return;
  ModelInfo model = model_;
  model.key_state = ModelInfo().key_state;
  KeyRope rope = key_rope_of(model);
  if (!rope.known())
    throw bad_input("{}: its keys must be turned: {}", sources_.front()->name(), rope.why_not());
  rope_ = std::move(rope), turns_back_ = !before;
  model_ = model;
}

std::vector<uint32_t> JoinedCache::ids() const {
  std::vector<uint32_t> ids;
  for (const Part& part : parts_) {
    if (!sources_[part.source]->has_tokens()) return {};
    const auto own = sources_[part.source]->tokens_of(part.document);
    ids.insert(ids.end(), own.begin() + static_cast<ptrdiff_t>(part.skipped), own.end());
  }
  return ids;
}

MatrixView<const float> JoinedCache::rows_of(const Part& part, Side side, int layer, uint64_t first,
                                             uint64_t count) const {
  const LayerShape shape = model_.layer_shape(layer);
  const auto width = as_size(shape.heads) * as_size(shape.stored_dim(side));
  if (rows_.rows() < count || rows_.cols() != width) rows_ = Matrix<float>(count, width);
  const MatrixView<float> rows = rows_.view().rows(0, count);
  sources_[part.source]->read(side, layer, part.document, first, rows);
  if (side == Side::value || !rope_) return rows;
  const auto old = std::span(part.positions).subspan(first, count);
  const uint64_t place = at_ + part.place + first - part.skipped;
  // Keys that stay where they are keep every bit.
  if (turns_back_ && old.front() == place && old.back() == place + count - 1) return rows;
  if (turns_back_) rope_->turn(TurnWay::back, {&layer, 1}, old, rows);
  rope_->turn(TurnWay::forward, {&layer, 1}, place, rows);
  return rows;
}

}  // namespace kvcodec::cli
