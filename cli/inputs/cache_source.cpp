#include "cli/inputs/cache_source.hpp"

#include <algorithm>

#include "cli/codecs/coding.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/half.hpp"

namespace kvcodec::cli {
namespace {

using interop::CacheSource;

/// The part of a source that is the same for both types of files.
template <class Reader>
class SourceOf : public CacheSource {
 public:
  const std::string& name() const override { return reader_.name(); }
  const std::vector<int>& layers() const override { return layers_; }
  bool has_tokens() const override { return reader_.has_tokens(); }
  std::vector<uint32_t> tokens(size_t document) const override {
    return reader_.tokens(documents().offsets[document], documents().length(document));
  }
  std::vector<uint64_t> positions(size_t document) const override {
    return reader_.positions(documents().offsets[document], documents().length(document));
  }

 protected:
  explicit SourceOf(const std::string& file) : reader_(file) {}

  Reader reader_;
  std::vector<int> layers_;
};

class KvSource final : public SourceOf<KvReader> {
 public:
  KvSource(const std::string& file, const LayerSelection& layers) : SourceOf(file) {
    layers_ = layers.choose(reader_.layers(), name());
  }
  const ModelInfo& model() const override { return reader_.model(); }
  DType dtype() const override { return reader_.dtype(); }
  const Documents& documents() const override { return reader_.documents(); }
  void read(Side side, int layer, size_t document, uint64_t first, MatrixView<float> out) const override {
    reader_.read(side, layer, documents().offsets[document] + first, out);
  }
};

class CodesSource final : public SourceOf<CodesReader> {
 public:
  CodesSource(const std::string& file, const std::string& book, Engine* engine, const LayerSelection& layers)
      : SourceOf(file), codec_(reader_, book, engine) {
    layers_ = layers.choose(stored_layers(reader_.info()), name());
  }
  const ModelInfo& model() const override { return reader_.info().model; }
  DType dtype() const override { return reader_.info().source_dtype; }
  const Documents& documents() const override { return reader_.info().documents; }

  void read(Side side, int layer, size_t document, uint64_t first, MatrixView<float> out) const override {
    const CodesInfo& info = reader_.info();
    const int group = info.group_of(layer);
    const Side stored = info.joint ? Side::both : side;
    const GroupShape shape = info.shape(group, stored);
    const MatrixView<float> rows = decoded(
        {group, stored, document, first - documents().left_out_of(layer, document), out.rows()}, shape);
    const auto own = shape.columns(rows, side, shape.place_of(layer));
    // A decoded value is rounded as a kv file of the cache's type would round it.
    for (size_t i = 0; i < out.rows(); ++i)
      std::ranges::transform(own.row(i), out.row(i).begin(),
                             [&](float value) { return round_to(dtype(), value); });
  }

 private:
  /// Identifies rows. Those decoded last are kept, for each side: layers and sides that are coded together request the same ones.
  struct DecodedRows {
    int group;
    Side side;
    size_t document;
    uint64_t first, count;
    bool operator==(const DecodedRows&) const = default;
  };

  MatrixView<float> decoded(const DecodedRows& wanted, const GroupShape& shape) const {
    auto& [last, rows] = kept_[static_cast<size_t>(wanted.side)];
    if (last != wanted) {
      last.reset();
      if (rows.rows() < wanted.count || rows.cols() != shape.width())
        rows = Matrix<float>(static_cast<size_t>(wanted.count), shape.width());
      const MatrixView<float> to = rows;  // clang 14 captures no names of a structured binding
      at_dataset(reader_.name(), wanted.side, wanted.group, [&] {
        const StoredDocument document(reader_, codec_.codec(), shape, wanted.document);
        document->decode(wanted.first, to.rows(0, static_cast<size_t>(wanted.count)));
      });
      last = wanted;
    }
    return rows.view().rows(0, static_cast<size_t>(wanted.count));
  }

  CodecOfFile codec_;
  struct Kept {
    std::optional<DecodedRows> last = {};
    Matrix<float> rows = {};
  };
  mutable std::array<Kept, 3> kept_;
};

}  // namespace

std::unique_ptr<CacheSource> open_cache(const std::string& file, const std::string& book, Engine* engine,
                                        const LayerSelection& layers) {
  const std::string type = identify(file).type;
  if (type == "codes") return std::make_unique<CodesSource>(file, book, engine, layers);
  if (type != "kv") throw bad_input("{}: is of type {}; a kv file or a codes file is wanted", file, type);
  if (!book.empty()) throw usage_error("{}: is a kv file, which needs no book; leave out --book", file);
  return std::make_unique<KvSource>(file, layers);
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
