// A document of a codes file as codes in memory, for text that a model writes behind it, and the way to write it back.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/codecs/coding.hpp"
#include "formats/io/output.hpp"
#include "lib/pipeline/coded_document.hpp"

namespace kvcodec::cli {

class CodedCache {
 public:
  /// Reads all its codes. book: as of CodecOfFile; engine: multiplies, may be nullptr. config: of the model that goes on, which has the shapes of the
  /// file's; outlives this. Throws Error(bad_input) for codes without all of its layers, or damaged ones.
  CodedCache(const std::string& file, const std::string& book, Engine* engine, size_t document,
             const ModelConfig& config);

  /// True if the codec multiplies keys and values of a layer without decoding them.
  bool pays() const { return codec_.multiplies() && document_.multiplies(); }
  bool appends() const { return codec_.entry().capabilities.appends; }
  CodedDocument& document() { return document_; }
  /// What it takes, without the codec's book.
  double bits_per_value() const;
  std::string_view codec_name() const { return codec_.entry().name; }

  /// Writes a codes file of this document with what was added to it. ids: of all its tokens; empty where they are not known. state: behind
  /// them, of models that have one.
  void write(OutputFile& output, std::span<const uint32_t> ids, std::vector<StateTensor> state,
             const Provenance& provenance) const;

 private:
  CodesReader reader_;
  CodecOfFile codec_;
  size_t number_;
  CodedLayout layout_;
  CodedDocument document_;
};

}  // namespace kvcodec::cli
