// The cache that dump-kv --append adds documents to.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/frame/common.hpp"
#include "cli/inputs/documents.hpp"
#include "formats/cache/kv_file.hpp"
#include "formats/io/output.hpp"
#include "lib/core/digest.hpp"

namespace kvcodec::cli {

/// A kv file that other runs are kept from changing, and what is in it.
class GrowingCache {
 public:
  /// Waits for another run that changes it. Throws Error(bad_input) for what dump-kv cannot add to: a file without token ids, one
  /// that was imported, or that cannot be changed in place.
  GrowingCache(const OutputOptions& output, const CommonOptions& common);

  const KvReader& kv() const { return *kv_; }
  const HeldFile& held() const { return *held_; }
  /// Whether its keys are those from before the rotary embedding.
  bool before_rope() const { return kv().model().key_state == "pre-rope"; }
  /// Takes out the documents that it has, and returns their names. whatever_name: those too whose token ids it has under another
  /// name.
  std::vector<std::string> take_out(std::vector<Document>& documents, bool whatever_name) const;
  /// For when all is written: kv() is gone.
  void close() { kv_.reset(); }

 private:
  std::unique_ptr<HeldFile> held_;
  std::optional<KvReader> kv_;
  std::multimap<Digest128, std::string> names_;  // of its documents, by the digests of their ids
};

}  // namespace kvcodec::cli
