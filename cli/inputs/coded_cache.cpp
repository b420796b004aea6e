#include "cli/inputs/coded_cache.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "lib/core/checked.hpp"

namespace kvcodec::cli {
namespace {

std::vector<size_t> left_out_of(const CodedLayout& layout, const Documents& documents, size_t document) {
  std::vector<size_t> result;
  result.reserve(layout.parts());
  for (size_t part = 0; part < layout.parts(); ++part)
    result.push_back(documents.left_out_of(layout.shape(part).first_layer(), document));
  return result;
}

std::vector<uint32_t> ids_of(const CodesReader& reader, size_t document) {
  if (!reader.has_tokens()) return {};
  const Documents& documents = reader.info().documents;
  return reader.tokens(documents.offsets[document], documents.length(document));
}

}  // namespace

CodedCache::CodedCache(const std::string& file, const std::string& book, Engine* engine, size_t document,
                       const ModelConfig& config)
    : reader_(file),
      codec_(reader_, book, engine),
      number_(document),
      layout_(codec_.codec(), config, reader_.info().source_dtype),
      document_(layout_, ids_of(reader_, document),
                left_out_of(layout_, reader_.info().documents, document)) {
  reader_.check_streams(codec_.codec());
  for (size_t part = 0; part < layout_.parts(); ++part) {
    const GroupShape& shape = layout_.shape(part);
    if (std::ranges::find(reader_.info().groups, shape.first_layer()) == reader_.info().groups.end())
      throw bad_input("{}: has no codes of layer {}", file, shape.first_layer());
    at_dataset(file, shape.side, shape.first_layer(),
               [&] { document_.copy(part, *reader_.document(shape.side, shape.first_layer(), document)); });
  }
}

double CodedCache::bits_per_value() const { return document_.stored(document_.tokens()).bits_per_value(); }

void CodedCache::write(OutputFile& output, std::span<const uint32_t> ids, std::vector<StateTensor> state,
                       const Provenance& provenance) const {
  const uint64_t tokens = document_.tokens();
  CodesInfo info = reader_.info();
  DocumentFacts facts = info.documents.facts_of(number_);
  facts.state = std::move(state);
  facts.digest.reset();
  if (!ids.empty()) facts.digest = token_digest(ids);
  Documents documents;
  documents.add(info.documents.names[number_], tokens,
                info.documents.whole() ? std::span<const uint64_t>() : info.documents.left_out[number_],
                facts);
  info.documents = std::move(documents);
  std::vector<uint64_t> positions(tokens);
  std::iota(positions.begin(), positions.end(), uint64_t{0});
  const std::optional<Book> embedded = reader_.embedded_book();
  CodesWriter writer(output, info, codec_.codec(), {ids, positions}, embedded ? &*embedded : nullptr,
                     &reader_);
  for (size_t part = 0; part < layout_.parts(); ++part) {
    const GroupShape& shape = layout_.shape(part);
    StreamStore& streams = writer.document(shape.side, shape.first_layer(), 0);
    for (const StreamSpec& spec : document_.encoded(part).specs())
      if (!spec.shared) streams.append(spec.name, document_.encoded(part).bytes(spec.name));
  }
  writer.finish(provenance);
}

}  // namespace kvcodec::cli
