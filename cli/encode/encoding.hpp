// What kvcodec encode writes with: the codec, its book, and the codes that it adds to.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/codecs/coding.hpp"
#include "cli/encode/encode_job.hpp"
#include "cli/encode/encode_options.hpp"
#include "formats/cache/book_file.hpp"
#include "formats/cache/codes_file.hpp"
#include "formats/cache/kv_file.hpp"
#include "formats/io/output.hpp"

namespace kvcodec::cli {

/// The codes to be written: their CodesInfo, the codec, and the book or codes that it needs. Not copied or moved, as the
/// codec points to the book.
class Encoding {
 public:
  /// New codes of chosen layers and documents, by the codec named, with its options, or with those that reach the goal.
  Encoding(const KvReader& kv, const EncodeOptions& options, const NamedCodec& codec,
           const std::vector<size_t>& documents);
  /// Codes that exist and grow.
  Encoding(const KvReader& kv, const EncodeOptions& options);

  Encoding(const Encoding&) = delete;
  Encoding& operator=(const Encoding&) = delete;

  CodesInfo info;
  std::string found;  ///< options that reach the goal, as they could be typed
  const CodesReader* base() const { return base_ ? &*base_ : nullptr; }
  /// Closes the codes that grow: base() is null afterwards, and their codec() is gone.
  void close_base() {
    base_codec_.reset();
    base_.reset();
  }
  const Codec& codec() const { return made_ ? *made_ : base_codec_->codec(); }

  /// alike: see CodesWriter.
  std::unique_ptr<CodesWriter> make_writer(OutputFile& output, const Job& job, bool embed_book,
                                           const CodesReader* alike) const;
  std::vector<std::string> history(const KvReader& kv) const;

 private:
  void read_book_for(const CodecEntry& entry, const EncodeOptions& options, const KvReader& kv);

  std::optional<BookFile> book_;
  std::unique_ptr<Codec> made_;
  std::optional<CodesReader> base_;
  std::optional<CodecOfFile> base_codec_;
};

}  // namespace kvcodec::cli
