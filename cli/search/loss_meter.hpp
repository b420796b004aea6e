// What a codec costs a model on texts: the closed loop (lib/pipeline/closed_loop.hpp) on a few documents, for searches
// that ask often.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cli/frame/common.hpp"
#include "formats/cache/kv_file.hpp"
#include "formats/models/model_files.hpp"
#include "lib/codec/codec.hpp"
#include "lib/model/llama.hpp"
#include "lib/pipeline/continuation.hpp"

namespace kvcodec::cli {

/// In nats per judged token.
struct Loss {
  double rise = 0;        ///< of the NLL
  double divergence = 0;  ///< from the predictions with the model's own cache
  double exact = 0;  ///< the share of the values behind which it was measured that the codec keeps exactly
  /// Whichever is more: of few tokens the rise may come out below 0 by chance, and the divergence does not.
  double worst() const { return std::max(rise, divergence); }
};

class LossMeter {
 public:
  /// model: a directory or a GGUF file, the one that made the cache. Throws Error(bad_input) for models of another shape, and
  /// with other weights where the cache says which its model has.
  /// kv and common outlive this.
  LossMeter(const std::string& model, const std::vector<std::string>& texts, const KvReader& kv,
            const CommonOptions& common);

  /// Throws Error(usage) for a codec that keeps nearly all values of these documents exactly: hardly anything would be lost,
  /// whatever else its options are.
  Loss loss(const Codec& codec) const;

  /// Notes a loss that says little of longer documents, because the codec keeps much of these exactly.
  void note_exact(const Loss& loss, const std::string& codec) const;

 private:
  const KvReader& kv_;
  const CommonOptions& common_;
  std::unique_ptr<ModelFiles> files_;
  LlamaModel model_;
  std::vector<LoopDocument> documents_;
};

}  // namespace kvcodec::cli
