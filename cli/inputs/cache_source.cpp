#include "cli/inputs/cache_source.hpp"

#include <algorithm>

#include "lib/core/checked.hpp"
#include "lib/core/half.hpp"

namespace kvcodec::cli {

StoredCache::StoredCache(const std::string& file, bool coded, const std::string& book, Engine* engine) {
  if (coded) {
    codes_.emplace(file);
    codec_.emplace(*codes_, book, engine);
    layers_ = stored_layers(codes_->info());
  } else {
    kv_.emplace(file);
    layers_ = kv_->layers();
  }
}

std::vector<std::string> StoredCache::history() const {
  return kv_ ? kv_->type().history : merged_history({codes_->type().history, codec_->book_history()});
}

/// The rows that are decoded for those of a layer of a codes file.
GroupShape StoredCache::shape_of(Side side, int layer) const {
  const CodesInfo& info = codes_->info();
  return info.shape(info.group_of(layer), info.joint ? Side::both : side);
}

void StoredCache::read(Side side, int layer, size_t document, uint64_t first, MatrixView<float> out) const {
  decode(side, layer, document, first, out);
  if (kv_) return;
  for (size_t i = 0; i < out.rows(); ++i)
    std::ranges::transform(out.row(i), out.row(i).begin(),
                           [&](float value) { return round_to(dtype(), value); });
}

void StoredCache::decode(Side side, int layer, size_t document, uint64_t first, MatrixView<float> out) const {
  if (kv_) return kv_->read(side, layer, documents().offsets[document] + first, out);
  const GroupShape shape = shape_of(side, layer);
  const int group = shape.first_layer();
  const uint64_t begin = first - documents().left_out_of(layer, document);
  Kept& kept = kept_[static_cast<size_t>(shape.side)];
  at_dataset(name(), shape.side, group, [&] {
    if (!kept.document || kept.of != std::pair(group, document)) {
      kept.first.reset();
      kept.document.emplace(*codes_, codec_->codec(), shape, document);
      kept.of = {group, document};
    }
    if (shape.width() == out.cols()) return (*kept.document)->decode(begin, out);
    if (kept.first != begin || kept.rows.rows() != out.rows()) {
      kept.first.reset();
      if (kept.rows.rows() != out.rows() || kept.rows.cols() != shape.width())
        kept.rows = Matrix<float>(out.rows(), shape.width());
      (*kept.document)->decode(begin, kept.rows);
      kept.first = begin;
    }
    const auto own = shape.columns(kept.rows.view(), side, shape.place_of(layer));
    for (size_t i = 0; i < out.rows(); ++i) std::ranges::copy(own.row(i), out.row(i).begin());
  });
}

uint64_t StoredCache::scratch_bytes_per_row(Side side, int layer) const {
  if (kv_) return 0;
  const GroupShape shape = shape_of(side, layer);
  return shape.width() * sizeof(float) + codec_->codec().scratch_bytes_per_row(shape);
}

std::unique_ptr<interop::CacheSource> open_cache(const std::string& file, const std::string& book,
                                                 Engine* engine, const LayerSelection& layers) {
  const std::string type = identify(file).type;
  if (type != "codes" && type != "kv")
    throw bad_input("{}: is of type {}; a kv file or a codes file is wanted", file, type);
  if (type == "kv" && !book.empty())
    throw usage_error("{}: is a kv file, which needs no book; leave out --book", file);
  auto cache = std::make_unique<StoredCache>(file, type == "codes", book, engine);
  cache->choose(layers);
  return cache;
}

std::vector<std::string> format_names() {
  return mapped<std::string>(interop::foreign_formats(), &interop::ForeignFormat::name);
}

std::optional<std::array<size_t, 2>> parse_rotated(const std::string& text) {
  if (text.empty()) return std::nullopt;
  const auto sizes = split(text, ',');
  const auto keys = number_in<size_t>(sizes.front()), values = number_in<size_t>(sizes.back());
  if (sizes.size() != 2 || !keys || !values)
    throw usage_error("--rotated is '{}'; it must be two sizes of blocks, as 128,64", text);
  return std::array{*keys, *values};
}

void check_taken(const Command& command, const std::vector<OptionField>& options, std::string_view format,
                 const std::vector<std::string_view>& taken) {
  for (const OptionField& option : options)
    if (command.given(option.name) && std::ranges::count(taken, option.name) == 0)
      throw usage_error("--{} is for other formats; {} {}", option.name, format,
                        taken.empty() ? "files say all that is needed"
                                      : fmt::format("takes --{}", fmt::join(taken, ", --")));
}

}  // namespace kvcodec::cli
