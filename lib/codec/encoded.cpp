#include "lib/codec/encoded.hpp"

#include <algorithm>
#include <cstring>

#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

/// One stream of all documents, one document's rows after the other's.
struct Stream {
  StreamSpec spec;
  uint64_t row_bytes = 0;
  std::vector<std::byte> bytes;

  uint64_t rows() const { return bytes.size() / row_bytes; }
};

}  // namespace

struct Encoded::Impl {
  struct Document;

  std::vector<StreamSpec> specs;
  std::vector<Stream> streams;
  std::vector<std::unique_ptr<Document>> documents;

  size_t index_of(std::string_view name) const {
    for (size_t i = 0; i < streams.size(); ++i)
      if (streams[i].spec.name == name) return i;
    throw bad_input("there is no stream '{}'", name);
  }
};

struct Encoded::Impl::Document final : StreamStore {
  Document(Impl& impl_of_all, size_t own_index, std::vector<uint32_t> own_ids)
      : impl(impl_of_all), index(own_index), ids(std::move(own_ids)) {
    for (const Stream& stream : impl.streams) first_rows.push_back(stream.spec.shared ? 0 : stream.rows());
  }

  /// One past the document's last row of that stream, counted over all documents.
  uint64_t end_row(size_t stream) const {
    const bool last = index + 1 == impl.documents.size() || impl.streams[stream].spec.shared;
    return last ? impl.streams[stream].rows() : impl.documents[index + 1]->first_rows[stream];
  }

  uint64_t rows(std::string_view name) const override {
    const size_t stream = impl.index_of(name);
    return end_row(stream) - first_rows[stream];
  }

  std::vector<uint32_t> token_ids(uint64_t first, uint64_t count) const override {
    if (ids.empty()) return StreamReader::token_ids(first, count);
    return ids_within(ids, first, count);
  }

  void read(std::string_view name, uint64_t first, uint64_t count, std::span<std::byte> out) const override {
    const size_t i = impl.index_of(name);
    const Stream& stream = impl.streams[i];
    const uint64_t there = end_row(i) - first_rows[i];
    if (first > there || count > there - first)
      throw bad_input("stream '{}' has {} rows; {} rows from row {} on are not all there", name, there, count,
                      first);
    if (out.size() != count * stream.row_bytes)
      throw failed("{} rows of stream '{}' are {} bytes, not {}", count, name, count * stream.row_bytes,
                   out.size());
    if (!out.empty())
      std::memcpy(out.data(), stream.bytes.data() + (first_rows[i] + first) * stream.row_bytes, out.size());
  }

  void append(std::string_view name, std::span<const std::byte> bytes) override {
    check_newest();
    Stream& stream = impl.streams[impl.index_of(name)];
    if (bytes.size() % stream.row_bytes != 0)
      throw failed("stream '{}' has rows of {} bytes; {} bytes are not a whole number of rows", name,
                   stream.row_bytes, bytes.size());
    stream.bytes.insert(stream.bytes.end(), bytes.begin(), bytes.end());
  }

  void truncate(std::string_view name, uint64_t rows_left) override {
    check_newest();
    const size_t i = impl.index_of(name);
    Stream& stream = impl.streams[i];
    if (stream.spec.shared) throw failed("stream '{}' is shared by all documents and cannot be cut", name);
    const uint64_t there = end_row(i) - first_rows[i];
    if (rows_left > there)
      throw failed("stream '{}' has {} rows and cannot be cut to {}", name, there, rows_left);
    stream.bytes.resize((first_rows[i] + rows_left) * stream.row_bytes);
  }

  void check_newest() const {
    if (index + 1 != impl.documents.size())
      throw failed("document {} is closed; only the newest of {} can be changed", index,
                   impl.documents.size());
  }

  Impl& impl;
  size_t index;
  std::vector<uint32_t> ids;
  std::vector<uint64_t> first_rows;  // where the document starts, per stream
};

Encoded::Encoded(std::vector<StreamSpec> specs) : impl_(std::make_unique<Impl>()) {
  for (const StreamSpec& spec : specs) {
    const auto same_name = [&](const Stream& stream) { return stream.spec.name == spec.name; };
    if (std::any_of(impl_->streams.begin(), impl_->streams.end(), same_name))
      throw failed("there are two streams '{}'", spec.name);
    const uint64_t row_bytes = spec.row_bytes();
    if (row_bytes == 0) throw failed("stream '{}' has rows of no bytes", spec.name);
    impl_->streams.push_back({spec, row_bytes, {}});
  }
  impl_->specs = std::move(specs);
}

Encoded::~Encoded() = default;
Encoded::Encoded(Encoded&&) noexcept = default;
Encoded& Encoded::operator=(Encoded&&) noexcept = default;

StreamStore& Encoded::add_document(std::vector<uint32_t> token_ids) {
  impl_->documents.push_back(
      std::make_unique<Impl::Document>(*impl_, impl_->documents.size(), std::move(token_ids)));
  return *impl_->documents.back();
}

size_t Encoded::documents() const { return impl_->documents.size(); }

const StreamReader& Encoded::document(size_t index) const {
  if (index >= documents()) throw failed("there is no document {}, only {}", index, documents());
  return *impl_->documents[index];
}

const std::vector<StreamSpec>& Encoded::specs() const { return impl_->specs; }

std::span<const std::byte> Encoded::bytes(std::string_view stream) const {
  return impl_->streams[impl_->index_of(stream)].bytes;
}

uint64_t Encoded::size_bytes(Category category) const {
  uint64_t total = 0;
  for (const Stream& stream : impl_->streams)
    if (stream.spec.category == category) total += stream.bytes.size();
  return total;
}

void run_survey(Survey& survey, std::span<const DocumentRows> documents, StreamStore& document) {
  run_survey(
      survey, documents.size(), [&](size_t i) { return documents[i]; }, document);
}

void run_survey(Survey& survey, size_t documents, const std::function<DocumentRows(size_t)>& document_rows,
                StreamStore& document) {
  for (int pass = 0; pass < survey.passes(); ++pass) {
    for (size_t i = 0; i < documents; ++i) {
      const DocumentRows each = document_rows(i);
      if (each.queries.rows() > 0) survey.observe_queries(each.query_tokens, each.queries);
      survey.observe_ids(each.token_ids);
      survey.observe(each.surveyed);
      survey.end_document();
    }
    survey.end_pass();
  }
  survey.finish(document);
}

Encoded encode_in_memory(const Codec& codec, const GroupShape& shape,
                         std::span<const DocumentRows> documents) {
  Encoded encoded(codec.streams(shape));
  const SurveyScope scope = codec.survey_scope(shape);
  for (size_t i = 0; i < documents.size(); ++i) {
    StreamStore& document = encoded.add_document(documents[i].token_ids);
    if (scope == SurveyScope::document || (scope == SurveyScope::file && i == 0))
      run_survey(*codec.survey(shape),
                 documents.subspan(i, scope == SurveyScope::file ? documents.size() : 1), document);
    codec.append(shape, documents[i].rows, document);
  }
  return encoded;
}

}  // namespace kvcodec
