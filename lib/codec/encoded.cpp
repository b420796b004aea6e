#include "lib/codec/encoded.hpp"

#include <algorithm>

#include "lib/core/error.hpp"
#include "lib/core/view.hpp"

namespace kvcodec {

struct Encoded::State {
  std::vector<StreamSpec> specs;
  std::vector<std::vector<std::byte>> bytes;  // of each stream, one document's rows after the other's
  std::vector<std::unique_ptr<Document>> documents;

  size_t index_of(std::string_view name) const {
    const auto found = std::ranges::find(specs, name, &StreamSpec::name);
    if (found == specs.end()) throw bad_input("there is no stream '{}'", name);
    return static_cast<size_t>(found - specs.begin());
  }
  uint64_t rows(size_t stream) const { return bytes[stream].size() / specs[stream].row_bytes(); }
};

struct Encoded::Document final : StreamStore {
  Document(State& state_of_all, std::vector<uint32_t> own_ids)
      : state(state_of_all), index(state.documents.size()), ids(std::move(own_ids)) {
    for (size_t i = 0; i < state.specs.size(); ++i)
      first_rows.push_back(state.specs[i].shared ? 0 : state.rows(i));
  }

  uint64_t rows_of(size_t stream) const {
    const bool last = index + 1 == state.documents.size() || state.specs[stream].shared;
    return (last ? state.rows(stream) : state.documents[index + 1]->first_rows[stream]) - first_rows[stream];
  }

  uint64_t rows(std::string_view name) const override { return rows_of(state.index_of(name)); }

  std::vector<uint32_t> token_ids(uint64_t first, uint64_t count) const override {
    if (ids.empty()) return StreamReader::token_ids(first, count);
    return ids_within(ids, first, count);
  }

  void read(std::string_view name, uint64_t first, uint64_t count, std::span<std::byte> out) const override {
    const size_t i = state.index_of(name);
    const uint64_t there = rows_of(i), row_bytes = state.specs[i].row_bytes();
    if (first > there || count > there - first)
      throw bad_input("stream '{}' has {} rows; {} rows from row {} on are not all there", name, there, count,
                      first);
    if (out.size() != count * row_bytes)
      throw failed("{} rows of stream '{}' are {} bytes, not {}", count, name, count * row_bytes, out.size());
    std::ranges::copy(std::span(state.bytes[i]).subspan((first_rows[i] + first) * row_bytes, out.size()),
                      out.begin());
  }

  void append(std::string_view name, std::span<const std::byte> bytes) override {
    const size_t i = changed(name);
    if (const uint64_t row_bytes = state.specs[i].row_bytes(); bytes.size() % row_bytes != 0)
      throw failed("stream '{}' has rows of {} bytes; {} bytes are not a whole number of rows", name,
                   row_bytes, bytes.size());
    state.bytes[i].insert(state.bytes[i].end(), bytes.begin(), bytes.end());
  }

  void add_token_ids(std::span<const uint32_t> more) override {
    if (!ids.empty()) append_to(ids, more);
  }

  void truncate(std::string_view name, uint64_t rows_left) override {
    const size_t i = changed(name);
    const StreamSpec& spec = state.specs[i];
    if (spec.shared) throw failed("stream '{}' is shared by all documents and cannot be cut", name);
    if (rows_left > rows_of(i))
      throw failed("stream '{}' has {} rows and cannot be cut to {}", name, rows_of(i), rows_left);
    state.bytes[i].resize((first_rows[i] + rows_left) * spec.row_bytes());
  }

  /// The index of a stream that is about to change.
  size_t changed(std::string_view name) const {
    if (index + 1 != state.documents.size())
      throw failed("document {} is closed; only the newest of {} can be changed", index,
                   state.documents.size());
    return state.index_of(name);
  }

  State& state;
  size_t index;
  std::vector<uint32_t> ids;
  std::vector<uint64_t> first_rows;  // of the document, in each stream
};

Encoded::Encoded(std::vector<StreamSpec> specs) : state_(std::make_shared<State>()) {
  for (const StreamSpec& spec : specs) {
    if (std::ranges::count(specs, spec.name, &StreamSpec::name) > 1)
      throw failed("there are two streams '{}'", spec.name);
    if (spec.row_bytes() == 0) throw failed("stream '{}' has rows of no bytes", spec.name);
  }
  state_->bytes.resize(specs.size());
  state_->specs = std::move(specs);
}

StreamStore& Encoded::add_document(std::vector<uint32_t> token_ids) {
  return *state_->documents.emplace_back(std::make_unique<Document>(*state_, std::move(token_ids)));
}

size_t Encoded::documents() const { return state_->documents.size(); }

const StreamReader& Encoded::document(size_t index) const {
  if (index >= documents()) throw failed("there is no document {}, only {}", index, documents());
  return *state_->documents[index];
}

const std::vector<StreamSpec>& Encoded::specs() const { return state_->specs; }

std::span<const std::byte> Encoded::bytes(std::string_view stream) const {
  return state_->bytes[state_->index_of(stream)];
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
    document.weigh_tokens(documents[i].weights);
    codec.append(shape, documents[i].rows, document);
  }
  return encoded;
}

}  // namespace kvcodec
