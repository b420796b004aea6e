// What copying documents of kv and of codes files shares. Inside formats/ only.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "formats/cache/codes_file.hpp"
#include "formats/cache/document_copy.hpp"
#include "formats/cache/kv_file.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {

/// Opens the files of a copy by their numbers, or gives the one that is open. Copying holds one at a time.
template <class Reader>
using Opener = std::function<std::shared_ptr<const Reader>(size_t file)>;

/// One that opens each file by its name.
template <class Reader>
Opener<Reader> opener_of(std::span<const DocumentsOf> from) {
  return [from](size_t file) { return std::make_shared<const Reader>(from[file].file); };
}

DocumentList list_kv_documents(const KvReader& kv);
DocumentList list_codes_documents(const CodesReader& codes);
void copy_kv_documents(std::span<const DocumentsOf> from, std::span<const DocumentList> lists,
                       const Opener<KvReader>& open, OutputFile& output, const Provenance& provenance);
void copy_codes_documents(std::span<const DocumentsOf> from, std::span<const DocumentList> lists,
                          const Opener<CodesReader>& open, OutputFile& output, const Provenance& provenance);

/// Holds files against the first one, and says what differs.
class Alike {
 public:
  Alike(const std::string& first, const std::string& file) : first_(first), file_(file) {}

  template <class T>
  void expect(const char* what, const T& wanted, const T& found) const {
    if (!(found == wanted))
      throw bad_input("{}: {} is {}; {} has {}: only files made alike can be joined", file_, what, found,
                      first_, wanted);
  }

 private:
  const std::string &first_, &file_;
};

/// What is kept of the model of several files: where the caches came from, and what they were imported with, if all say the same.
void merge_model(ModelInfo& model, const ModelInfo& other);

/// Documents with these numbers, behind `documents`.
void add_documents(Documents& documents, const Documents& from, std::span<const size_t> numbers);

/// Throws Error(failed) if the file has not the documents with these numbers that it had when it was listed.
void check_unchanged(const std::string& file, const Documents& now, const Documents& listed,
                     std::span<const size_t> numbers);

}  // namespace kvcodec
