// A cache in a kv file or a codes file, and options that import and export read in the same way.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/codecs/coding.hpp"
#include "cli/frame/common.hpp"
#include "formats/interop/foreign.hpp"

namespace kvcodec::cli {

/// A kv file, or a codes file that is decoded on the way.
class StoredCache final : public interop::CacheSource {
 public:
  /// coded: it is a codes file. book, engine: as for CodecOfFile; a kv file has no use for them.
  StoredCache(const std::string& file, bool coded, const std::string& book, Engine* engine);

  const std::string& name() const override { return file().name(); }
  const ModelInfo& model() const override { return kv_ ? kv_->model() : codes_->info().model; }
  /// A codes file has that of the cache from which it was made.
  DType dtype() const override { return kv_ ? kv_->dtype() : codes_->info().source_dtype; }
  const std::vector<int>& layers() const override { return layers_; }
  const Documents& documents() const override { return file().documents(); }
  bool has_tokens() const override { return file().has_tokens(); }
  std::vector<uint32_t> tokens(uint64_t first, uint64_t count) const override {
    return file().tokens(first, count);
  }
  std::vector<uint64_t> positions(uint64_t first, uint64_t count) const override {
    return file().positions(first, count);
  }
  /// Decoded values are rounded as a kv file of the cache's type would round them.
  void read(Side side, int layer, size_t document, uint64_t first, MatrixView<float> out) const override;

  /// The same without rounding.
  void decode(Side side, int layer, size_t document, uint64_t first, MatrixView<float> out) const;
  /// Bytes that decode() uses per row besides the row itself.
  uint64_t scratch_bytes_per_row(Side side, int layer) const;

  /// Leaves these of the layers that the file stores.
  void choose(const LayerSelection& layers) { layers_ = layers.choose(layers_, name()); }
  std::vector<std::string> history() const;
  const KvReader* kv() const { return kv_ ? &*kv_ : nullptr; }              ///< nullptr: a codes file
  const CodesReader* codes() const { return codes_ ? &*codes_ : nullptr; }  ///< nullptr: a kv file

 private:
  /// The document of a group that was decoded last, and its rows if others than those asked for were decoded with them: layers and
  /// sides that are coded together request the same ones.
  struct Kept {
    std::pair<int, size_t> of = {};  // group and number of the document
    std::optional<StoredDocument> document = {};
    std::optional<uint64_t> first = {};  // of the rows
    Matrix<float> rows = {};
  };

  const TokenFile& file() const {
    if (kv_) return *kv_;
    return *codes_;
  }
  GroupShape shape_of(Side side, int layer) const;

  std::optional<KvReader> kv_;
  std::optional<CodesReader> codes_;
  std::optional<CodecOfFile> codec_;
  std::vector<int> layers_;
  mutable std::array<Kept, 3> kept_ = {};  // by side
};

/// Opens these layers of a kv file, or of a codes file. book, engine: as for CodecOfFile. Throws Error(bad_input) for files of other
/// types, and Error(usage) for a book that a kv file does not need.
std::unique_ptr<interop::CacheSource> open_cache(const std::string& file, const std::string& book,
                                                 Engine* engine, const LayerSelection& layers);

std::vector<std::string> format_names();

/// "128,64": sizes of Hadamard blocks of keys and values; std::nullopt if the text is empty. Throws Error(usage).
std::optional<std::array<size_t, 2>> parse_rotated(const std::string& text);

/// Throws Error(usage) if an option was given that the format would ignore. options: all options that only some formats use; call
/// it after Command::parse(). format: its name.
void check_taken(const Command& command, const std::vector<OptionField>& options, std::string_view format,
                 const std::vector<std::string_view>& taken);

}  // namespace kvcodec::cli
