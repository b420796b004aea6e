// Copies of documents of kv and codes files into another file of the same type. Rows and streams are copied unchanged; nothing is
// encoded again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/cache/header.hpp"
#include "formats/io/output.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {

class KvReader;
class CodesReader;

/// Properties of a kv or codes file and its documents.
struct DocumentList {
  FileType type;
  ModelInfo model;
  Documents documents;
  std::vector<uint64_t> bytes = {};   ///< of each document: keys and values, or parts of codes
  std::vector<uint64_t> values = {};  ///< of each document: how many numbers of it the file's layers hold
  uint64_t file_bytes = 0;            ///< on disk
  uint64_t needed_bytes = 0;  ///< of these, what a copy of all documents needs, without HDF5's overhead

  /// About how many bytes a copy of all documents saves.
  uint64_t spare_bytes() const {
    // Headers, tables of chunks and of digests, and chunks that are not full, of a file that was written at once.
    const uint64_t of_format = (uint64_t{256} << 10) + needed_bytes / 16;
    return file_bytes - std::min(file_bytes, needed_bytes + of_format);
  }
};
/// Throws Error(bad_input) for files of other types.
DocumentList list_documents(const std::string& file);
DocumentList list_documents(const KvReader& kv);
DocumentList list_documents(const CodesReader& codes);

/// Documents of a file, in the order in which they are copied.
struct DocumentsOf {
  std::string file;
  std::vector<size_t> numbers;
};

/// Writes documents of files that were made alike, file by file; only one file is open at a time. Throws Error(bad_input) naming the first
/// file that differs from those before, and the difference: in the model, the layers or the element type, or in the codec of codes, its
/// parameters, its book, or the streams that all documents share. Throws Error(failed) if a file no longer has the documents that it had
/// when they were chosen. from: at least one file, all of one type; lists: list_documents() of each.
void copy_documents(std::span<const DocumentsOf> from, std::span<const DocumentList> lists,
                    OutputFile& output, const Provenance& provenance);

/// A kv or codes file that stays open while its documents are copied into several others.
class DocumentSource {
 public:
  /// Throws Error(bad_input) for files of other types.
  explicit DocumentSource(const std::string& file);

  const DocumentList& list() const { return list_; }
  /// Reads all that copy() takes of each of these documents, one by one: checked(number, its Error(bad_input) if it is damaged).
  void check(std::span<const size_t> numbers,
             const std::function<void(size_t number, const std::optional<Error>& damage)>& checked) const;
  /// copy_documents() of the documents with these numbers.
  void copy(std::span<const size_t> numbers, OutputFile& output, const Provenance& provenance) const;

 private:
  std::string file_;
  std::shared_ptr<const KvReader> kv_;  // one of the two is open
  std::shared_ptr<const CodesReader> codes_;
  DocumentList list_;
};

}  // namespace kvcodec
