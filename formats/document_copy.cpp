#include "formats/document_copy.hpp"

#include "formats/document_copy_io.hpp"

namespace kvcodec {

DocumentList list_documents(const std::string& file) {
  const std::string type = identify(file).type;
  if (type == "kv") return list_kv_documents(file);
  if (type == "codes") return list_codes_documents(file);
  throw bad_input("{}: is of type {}; a kv or codes file is wanted here", file, type);
}

void copy_documents(std::span<const DocumentsOf> from, std::span<const DocumentList> lists,
                    OutputFile& output, const Provenance& provenance) {
  if (lists.front().type.type == "kv")
    copy_kv_documents(from, lists, output, provenance);
  else
    copy_codes_documents(from, lists, output, provenance);
}

void merge_model(ModelInfo& model, const ModelInfo& other) {
  if (model.imported != other.imported) model.imported.clear();
  if (model.source != other.source) model.source.clear();
}

void add_documents(Documents& documents, const Documents& from, std::span<const size_t> numbers) {
  for (const size_t number : numbers) documents.add(from, number);
}

void check_unchanged(const std::string& file, const Documents& now, const Documents& listed,
                     std::span<const size_t> numbers) {
  for (const size_t number : numbers)
    if (number >= now.count() || now.names[number] != listed.names[number] ||
        now.length(number) != listed.length(number) || now.facts_of(number) != listed.facts_of(number))
      throw failed(
          "{}: another run changed it while this one read it; nothing is written. Run the command again",
          file);
}

}  // namespace kvcodec
