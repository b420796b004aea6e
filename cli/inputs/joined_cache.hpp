// Documents of kv and codes files that become one document: their tokens lie one behind the other, and keys are turned to their new positions.
// A key after the rotary embedding depends on its position by that rotation alone, so a document's cache can stand anywhere. Beyond its first
// layer it still has not seen the documents before it: that is lost (EPIC: Efficient Position-Independent Caching, 2024; CacheBlend, 2024).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/frame/common.hpp"
#include "formats/interop/foreign.hpp"
#include "lib/core/names.hpp"
#include "lib/core/progress.hpp"
#include "lib/model/rope.hpp"

namespace kvcodec::cli {

/// Which documents keep the first token, with which the model's texts begin.
enum class KeepBos : uint8_t { first, all };
constexpr auto names_of(KeepBos) { return std::to_array<std::string_view>({"first", "all"}); }

struct JoinOptions final : Options {
  std::vector<std::string> files;
  std::string book;
  KeepBos keep_bos = KeepBos::all;
  int64_t at = 0;
  std::optional<uint32_t> bos =
      {};  ///< the token with which the model's texts begin, where the model is known

  std::vector<OptionField> fields() override;
};

/// The histories of its files, merged.
std::vector<std::string> history_of(const JoinOptions& options);

class JoinedCache {
 public:
  /// The chosen documents in the order of their naming, or, without a choice, all in the files' order; empty ones are left out. engine: decodes; may be nullptr.
  /// turned: keys come after the rotary embedding, whatever the files have. Throws Error(bad_input) for files of different models or
  /// layers, for a rotary embedding that is not known where keys must be turned, for several documents of which one lacks tokens that
  /// its layers' windows do not need, and, to keep one first token, for documents that begin differently.
  JoinedCache(const JoinOptions& options, const DocumentSelection& documents, Engine* engine, bool turned);

  const ModelInfo& model() const { return model_; }
  DType dtype() const { return dtype_; }
  const std::vector<int>& layers() const { return sources_.front()->layers(); }
  uint64_t tokens() const { return tokens_; }
  size_t count() const { return parts_.size(); }  ///< of documents
  /// If the result is one document of the first file, unchanged and from position 0 on, its number there; else std::nullopt.
  std::optional<size_t> unchanged() const {
    if (sources_.size() > 1 || parts_.size() > 1 || rope_ || parts_.front().skipped > 0 || at_ > 0 ||
        parts_.front().positions.front() > 0)
      return std::nullopt;
    return parts_.front().document;
  }
  /// Names, with + between them.
  std::string name() const {
    std::string name;
    for (const Part& part : parts_)
      name +=
          (name.empty() ? "" : "+") + std::string(sources_[part.source]->documents().names[part.document]);
    return name;
  }
  /// Ids of all tokens; empty if a file does not know them.
  std::vector<uint32_t> ids() const;
  /// Tokens that documents left out because one first token was kept.
  uint64_t dropped() const {
    return std::transform_reduce(parts_.begin(), parts_.end(), uint64_t{0}, std::plus<>(),
                                 [](const Part& part) { return part.skipped; });
  }
  /// The state behind the last token.
  std::vector<StateTensor> state() const {
    return sources_[parts_.back().source]->documents().facts_of(parts_.back().document).state;
  }
  /// For each layer of the model, the first tokens of the result that it does not hold; empty: none.
  std::vector<uint64_t> left_out() const {
    const Documents& documents = sources_[parts_.front().source]->documents();
    if (documents.whole()) return {};
    return documents.left_out[parts_.front().document];
  }

  /// Calls take(side, layer, first token of the result, rows) for all tokens that layers hold, some at a time; those of a layer's side come
  /// in order. Documents come one behind the other, so that layers that are coded together are decoded once.
  template <class Take>
  void read(const Take& take) const {
    for (const Part& part : parts_)
      for (uint64_t begin = part.skipped; begin < part.end; begin += kRows)
        for (const int layer : layers()) {
          const uint64_t left_out = sources_[part.source]->documents().left_out_of(layer, part.document);
          const uint64_t first = std::max(begin, left_out), end = std::min(begin + kRows, part.end);
          if (first >= end) continue;  // the layer holds none of these tokens
          for (const Side side : kSides)
            if (model_.layer_shape(layer).width(side) > 0)
              take(side, layer, part.place + first - part.skipped,
                   rows_of(part, side, layer, first, end - first));
        }
  }

 private:
  static constexpr uint64_t kRows = 4096;
  struct Part {
    size_t source = 0, document = 0;
    uint64_t skipped = 0, end = 0;         ///< its tokens [skipped, end)
    uint64_t place = 0;                    ///< of the first of these in the result
    std::vector<uint64_t> positions = {};  ///< of all its tokens
  };

  MatrixView<const float> rows_of(const Part& part, Side side, int layer, uint64_t first,
                                  uint64_t count) const;
  void keep_one_bos(std::optional<uint32_t> bos);
  void settle_rope(bool turned);

  std::vector<std::unique_ptr<interop::CacheSource>> sources_;
  std::vector<Part> parts_;
  ModelInfo model_;
  DType dtype_{};
  uint64_t at_ = 0, tokens_ = 0;
  std::optional<KeyRope> rope_;  ///< of keys that are turned
  bool turns_back_ = false;      ///< they come after the embedding
  mutable Matrix<float> rows_;
};

}  // namespace kvcodec::cli
