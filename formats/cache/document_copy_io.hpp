// What copying documents of kv and of codes files shares. Inside formats/ only.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

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

inline const Documents& documents_of(const KvReader& kv) { return kv.documents(); }
inline const Documents& documents_of(const CodesReader& codes) { return codes.info().documents; }

/// Throws Error(failed) if the file has not the documents with these numbers that it had when it was listed.
void check_unchanged(const std::string& file, const Documents& now, const Documents& listed,
                     std::span<const size_t> numbers);

/// Calls body(number, reader) for the files of a copy one by one, each held against what was listed of it: another run may have
/// replaced it.
template <class Reader, class Body>
void for_each_file(std::span<const DocumentsOf> from, std::span<const DocumentList> lists,
                   const Opener<Reader>& open, const Body& body) {
  for (size_t i = 0; i < from.size(); ++i) {
    const std::shared_ptr<const Reader> reader = open(i);
    check_unchanged(reader->name(), documents_of(*reader), lists[i].documents, from[i].numbers);
    body(i, *reader);
  }
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
  void expect_there(const char* what, bool wanted, bool found) const {
    const auto words = [](bool there) { return std::string_view(there ? "there" : "not there"); };
    expect(what, words(wanted), words(found));
  }

 private:
  const std::string &first_, &file_;
};

/// What is kept of the model of several files: where the caches came from, and what they were imported with, if all say the same.
void merge_model(ModelInfo& model, const ModelInfo& other);

/// Documents with these numbers, behind `documents`.
void add_documents(Documents& documents, const Documents& from, std::span<const size_t> numbers);

}  // namespace kvcodec
