#include "formats/cache/document_copy.hpp"

#include "formats/cache/document_copy_io.hpp"

namespace kvcodec {

/// One of the two is open.
struct DocumentSource::Impl {
  std::string file;
  std::shared_ptr<const KvReader> kv = {};
  std::shared_ptr<const CodesReader> codes = {};
  DocumentList list = {};
};

DocumentSource::DocumentSource(const std::string& file) : impl_(std::make_unique<Impl>(Impl{file})) {
  const std::string type = identify(file).type;
  if (type == "kv") {
    impl_->kv = std::make_shared<const KvReader>(file);
    impl_->list = list_kv_documents(*impl_->kv);
  } else if (type == "codes") {
    impl_->codes = std::make_shared<const CodesReader>(file);
    impl_->list = list_codes_documents(*impl_->codes);
  } else {
    throw bad_input("{}: is of type {}; a kv or codes file is wanted here", file, type);
  }
}

DocumentSource::~DocumentSource() = default;

const DocumentList& DocumentSource::list() const { return impl_->list; }

void DocumentSource::copy(std::span<const size_t> numbers, OutputFile& output,
                          const Provenance& provenance) const {
  const DocumentsOf from{impl_->file, {numbers.begin(), numbers.end()}};
  const std::span<const DocumentsOf> all(&from, 1);
  const std::span<const DocumentList> lists(&impl_->list, 1);
  if (impl_->kv)
    copy_kv_documents(
        all, lists, [&](size_t) { return impl_->kv; }, output, provenance);
  else
    copy_codes_documents(
        all, lists, [&](size_t) { return impl_->codes; }, output, provenance);
}

DocumentList list_documents(const std::string& file) { return DocumentSource(file).list(); }

void copy_documents(std::span<const DocumentsOf> from, std::span<const DocumentList> lists,
                    OutputFile& output, const Provenance& provenance) {
  if (lists.front().type.type == "kv")
    copy_kv_documents(from, lists, opener_of<KvReader>(from), output, provenance);
  else
    copy_codes_documents(from, lists, opener_of<CodesReader>(from), output, provenance);
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
