#include "cli/inputs/cache_source.hpp"

#include <algorithm>
#include <optional>

#include "cli/codecs/coding.hpp"
#include "formats/cache/kv_file.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/half.hpp"

namespace kvcodec::cli {
namespace {

using interop::CacheSource;

class KvSource final : public CacheSource {
 public:
  explicit KvSource(const std::string& file) : kv_(file) {}
  const std::string& name() const override { return kv_.name(); }
  const ModelInfo& model() const override { return kv_.model(); }
  DType dtype() const override { return kv_.dtype(); }
  const std::vector<int>& layers() const override { return kv_.layers(); }
  const Documents& documents() const override { return kv_.documents(); }
  bool has_tokens() const override { return kv_.has_tokens(); }
  std::vector<uint32_t> tokens(size_t document) const override {
    return kv_.tokens(documents().offsets[document], documents().length(document));
  }
  std::vector<uint64_t> positions(size_t document) const override {
    return kv_.positions(documents().offsets[document], documents().length(document));
  }
  void read(Side side, int layer, size_t document, uint64_t first, MatrixView<float> out) const override {
    kv_.read(side, layer, documents().offsets[document] + first, out);
  }

 private:
  KvReader kv_;
};

class CodesSource final : public CacheSource {
 public:
  CodesSource(const std::string& file, const std::string& book, Engine* engine)
      : codes_(file), codec_(codes_, book, engine), layers_(stored_layers(codes_.info())) {}
  const std::string& name() const override { return codes_.name(); }
  const ModelInfo& model() const override { return codes_.info().model; }
  DType dtype() const override { return codes_.info().source_dtype; }
  const std::vector<int>& layers() const override { return layers_; }
  const Documents& documents() const override { return codes_.info().documents; }
  bool has_tokens() const override { return codes_.has_tokens(); }
  std::vector<uint32_t> tokens(size_t document) const override {
    return codes_.tokens(documents().offsets[document], documents().length(document));
  }
  std::vector<uint64_t> positions(size_t document) const override {
    return codes_.positions(documents().offsets[document], documents().length(document));
  }

  void read(Side side, int layer, size_t document, uint64_t first, MatrixView<float> out) const override {
    const CodesInfo& info = codes_.info();
    const int group = layer - layer % info.layer_group;
    const Side stored = info.joint ? Side::both : side;
    const GroupShape shape = group_shape(info.model, group, info.layer_group, stored);
    const MatrixView<float> rows = decoded(
        {group, stored, document, first - documents().left_out_of(layer, document), out.rows()}, shape);
    const size_t width = shape.side_width() / as_size(shape.layers),
                 column = shape.column_of(side) + as_size(layer - group) * width;
    for (size_t i = 0; i < out.rows(); ++i) {
      const auto row = rows.row(i).subspan(column, width);
      std::copy(row.begin(), row.end(), out.row(i).begin());
    }
    // A decoded value is rounded as a kv file of the cache's type would round it.
    for (size_t i = 0; i < out.rows(); ++i)
      for (float& value : out.row(i)) value = round_to(dtype(), value);
  }

 private:
  /// Which rows were decoded last: layers and sides that are coded together ask for the same ones.
  struct DecodedRows {
    int group;
    Side side;
    size_t document;
    uint64_t first, count;
    bool operator==(const DecodedRows&) const = default;
  };

  MatrixView<float> decoded(const DecodedRows& wanted, const GroupShape& shape) const {
    if (last_ != wanted) {
      last_.reset();
      if (rows_.rows() < wanted.count || rows_.cols() != shape.width())
        rows_ = Matrix<float>(static_cast<size_t>(wanted.count), shape.width());
      at_dataset(codes_.name(), wanted.side, wanted.group, [&] {
        const StoredDocument document(codes_, codec_.codec(), shape, wanted.document);
        document->decode(wanted.first, rows_.view().rows(0, static_cast<size_t>(wanted.count)));
      });
      last_ = wanted;
    }
    return rows_.view().rows(0, static_cast<size_t>(wanted.count));
  }

  CodesReader codes_;
  CodecOfFile codec_;
  std::vector<int> layers_;
  mutable Matrix<float> rows_;
  mutable std::optional<DecodedRows> last_;
};

class ChosenLayers final : public CacheSource {
 public:
  ChosenLayers(std::unique_ptr<CacheSource> source, std::vector<int> layers)
      : source_(std::move(source)), layers_(std::move(layers)) {}
  const std::string& name() const override { return source_->name(); }
  const ModelInfo& model() const override { return source_->model(); }
  DType dtype() const override { return source_->dtype(); }
  const std::vector<int>& layers() const override { return layers_; }
  const Documents& documents() const override { return source_->documents(); }
  bool has_tokens() const override { return source_->has_tokens(); }
  std::vector<uint32_t> tokens(size_t document) const override { return source_->tokens(document); }
  std::vector<uint64_t> positions(size_t document) const override { return source_->positions(document); }
  void read(Side side, int layer, size_t document, uint64_t first, MatrixView<float> out) const override {
    source_->read(side, layer, document, first, out);
  }

 private:
  std::unique_ptr<CacheSource> source_;
  std::vector<int> layers_;
};

}  // namespace

std::unique_ptr<CacheSource> open_cache(const std::string& file, const std::string& book, Engine* engine) {
  const std::string type = identify(file).type;
  if (type == "codes") return std::make_unique<CodesSource>(file, book, engine);
  if (type != "kv") throw bad_input("{}: is of type {}; a kv file or a codes file is wanted", file, type);
  if (!book.empty()) throw usage_error("{}: is a kv file, which needs no book; leave out --book", file);
  return std::make_unique<KvSource>(file);
}

std::unique_ptr<CacheSource> with_layers(std::unique_ptr<CacheSource> source, std::vector<int> layers) {
  return std::make_unique<ChosenLayers>(std::move(source), std::move(layers));
}

}  // namespace kvcodec::cli
