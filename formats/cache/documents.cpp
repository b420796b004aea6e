// Documents of a file: names, lengths, tokens that layers leave out, and facts (FORMAT.md, "What is known of documents").
#include <algorithm>
#include <functional>

#include "formats/cache/header_io.hpp"

namespace kvcodec {

constexpr char kNames[] = "/documents/name", kOffsets[] = "/documents/offset",
               kLeftOut[] = "/documents/left_out";

/// A row of the dataset for each document, with a number for each layer.
static std::vector<std::vector<uint64_t>> read_left_out(const h5::File& file, const Documents& documents,
                                                        const ModelInfo& model) {
  const auto layers = static_cast<uint64_t>(model.num_layers);
  const h5::Dataset dataset = open_dataset(file, kLeftOut, DType::u64, {documents.count(), layers});
  const std::vector<uint64_t> numbers = dataset.read_as<uint64_t>(0, documents.count());
  std::vector<std::vector<uint64_t>> left_out;
  for (size_t i = 0; i < documents.count(); ++i) {
    const auto of_layers = std::span(numbers).subspan(i * layers, layers);
    const auto& row = left_out.emplace_back(of_layers.begin(), of_layers.end());
    for (size_t layer = 0; layer < row.size(); ++layer) {
      const uint64_t limit = model.layer_shape(static_cast<int>(layer)).heads == 0 ? 0 : documents.length(i);
      if (row[layer] > limit)
        throw dataset.error("leaves out {} tokens of document {} in layer {}; that has {}", row[layer], i,
                            layer, limit);
    }
  }
  return left_out;
}

constexpr char kDigest[] = "/documents/digest", kTime[] = "/documents/time",
               kMetadata[] = "/documents/metadata", kMetadataEnd[] = "/documents/metadata_end";

static FactsTable read_facts(const h5::File& file, size_t documents) {
  FactsTable facts;
  if (file.has(kDigest))
    facts.digests = open_dataset(file, kDigest, DType::u8, {documents, sizeof(Digest128)})
                        .read_as<Digest128>(0, documents);
  if (file.has(kTime))
    facts.times = open_dataset(file, kTime, DType::u64, {documents}).integers(0, documents, kMaxNumber);
  if (file.has(kMetadata)) facts.metadata = read_document_texts(file, {kMetadata, kMetadataEnd}, documents);
  return facts;
}

static uint64_t write_facts(h5::File& file, const FactsTable& facts) {
  uint64_t bytes = 0;
  if (std::ranges::any_of(facts.digests, [](const Digest128& digest) { return digest != Digest128{}; }))
    bytes +=
        write_dataset(file, kDigest, DType::u8, std::as_bytes(std::span(facts.digests)), {sizeof(Digest128)});
  if (std::ranges::any_of(facts.times, [](uint64_t time) { return time > 0; }))
    bytes += write_dataset<uint64_t>(file, kTime, DType::u64, facts.times);
  return facts.metadata.bytes().empty()
             ? bytes
             : bytes + write_document_texts(file, {kMetadata, kMetadataEnd}, facts.metadata);
}

uint64_t Documents::held(int layer) const {
  uint64_t total = tokens();
  for (size_t i = 0; i < left_out.size(); ++i) total -= left_out_of(layer, i);
  return total;
}

std::vector<std::pair<uint64_t, uint64_t>> Documents::held_runs(int layer) const {
  if (whole()) return {{0, tokens()}};
  std::vector<std::pair<uint64_t, uint64_t>> runs;
  runs.reserve(count());
  for (size_t i = 0; i < count(); ++i) runs.emplace_back(offsets[i] + left_out_of(layer, i), offsets[i + 1]);
  return runs;
}

DocumentFacts FactsTable::of(size_t i) const {
  DocumentFacts facts;
  if (!digests.empty() && digests[i] != Digest128{}) facts.digest = digests[i];
  if (!metadata.empty()) facts.metadata = metadata[i];
  if (!times.empty()) facts.time = times[i];
  if (!states.empty()) facts.state = states[i];
  return facts;
}

void FactsTable::add(size_t count, const DocumentFacts& facts) {
  const auto put = [&](auto& column, bool known, const auto& value) {
    if (column.empty() && !known) return;
    column.resize(count);
    column.push_back(value);
  };
  put(digests, facts.digest.has_value(), facts.digest.value_or(Digest128{}));
  put(times, facts.time > 0, facts.time);
  put(metadata, !facts.metadata.empty(), facts.metadata);
  put(states, !facts.state.empty(), facts.state);
}

void Documents::add(std::string_view name, uint64_t length, std::span<const uint64_t> left_out_of_layers,
                    const DocumentFacts& known) {
  const bool some = std::ranges::any_of(left_out_of_layers, [](uint64_t n) { return n > 0; });
  if (some && whole()) left_out.assign(count(), std::vector<uint64_t>(left_out_of_layers.size()));
  if (!whole() || some) {
    auto& own = left_out.emplace_back(left_out_of_layers.begin(), left_out_of_layers.end());
    if (own.empty()) own.resize(left_out.front().size());
  }
  facts.add(count(), known);
  names.push_back(name);
  offsets.push_back(offsets.back() + length);
}

void Documents::extend_last(uint64_t length, const DocumentFacts& known) {
  offsets.back() += length;
  const auto cut = [&](auto& column) {
    if (!column.empty()) column.resize(count() - 1);
  };
  cut(facts.digests), cut(facts.times), cut(facts.metadata), cut(facts.states);
  facts.add(count() - 1, known);
}

TextList read_document_texts(const h5::File& file, const TextPaths& paths, size_t documents) {
  const h5::Dataset text = file.dataset(paths.text),
                    ends_dataset = open_dataset(file, paths.ends, DType::u64, {documents});
  text.expect(DType::u8, {&text.shape().front(), 1});
  std::string all(text.rows(), '\0');
  text.read(0, text.rows(), std::as_writable_bytes(std::span(all)));
  std::vector<uint64_t> ends = ends_dataset.integers(0, documents, all.size());
  const auto fall = std::ranges::adjacent_find(ends, std::greater());
  if (fall != ends.end())
    throw ends_dataset.error("falls from {} to {} before document {}; ends never fall", fall[0], fall[1],
                             fall - ends.begin() + 1);
  if (const uint64_t end = ends.empty() ? 0 : ends.back(); end != all.size())
    throw ends_dataset.error("ends with {}; {} has {} bytes", end, paths.text, all.size());
  return {std::move(all), std::move(ends)};
}

uint64_t write_document_texts(h5::File& file, const TextPaths& paths, const TextList& texts) {
  return write_dataset<char>(file, paths.text, DType::u8, texts.bytes()) +
         write_dataset<uint64_t>(file, paths.ends, DType::u64, texts.ends());
}

Documents read_documents(const h5::File& file) {
  Documents documents;
  documents.names = file.dataset(kNames).texts();
  const h5::Dataset offsets = file.dataset(kOffsets);
  documents.offsets = offsets.integers(0, offsets.rows(), kMaxNumber);
  const auto& o = documents.offsets;
  if (o.size() != documents.names.size() + 1)
    throw offsets.error("has {} elements; {} documents have {}", o.size(), documents.names.size(),
                        documents.names.size() + 1);
  if (o.front() != 0) throw offsets.error("begins with {}; documents begin at 0", o.front());
  const auto fall = std::ranges::adjacent_find(o, std::greater());
  if (fall != o.end())
    throw offsets.error("falls from {} to {} after document {}; offsets never fall", fall[0], fall[1],
                        fall - o.begin());
  return documents;
}

void check_rising(const Documents& documents, uint64_t first, std::span<const uint64_t> positions,
                  std::optional<uint64_t> before, const std::string& where) {
  const auto& offsets = documents.offsets;
  auto next = std::upper_bound(offsets.begin(), offsets.end(), first);  // the beginning of the next document
  for (size_t i = 0; i < positions.size(); ++i) {
    const uint64_t token = first + i;
    while (next != offsets.end() && *next <= token) ++next;
    const uint64_t begin = *std::prev(next);
    if (token > begin && before && positions[i] <= *before)
      throw bad_input(
          "{}: document {} ('{}'): position {} is followed by {} (its tokens {} and {}); positions rise within a "
          "document. A cache that was padded on the left has such positions: leave out the rows of the padding",
          where, next - offsets.begin() - 1, documents.names[static_cast<size_t>(next - offsets.begin() - 1)],
          *before, positions[i], token - begin - 1, token - begin);
    before = positions[i];
  }
}

void check_positions(const h5::Dataset& positions, const Documents& documents) {
  constexpr uint64_t kBlock = uint64_t{1} << 17;  // 1 MiB of numbers
  std::optional<uint64_t> before;
  for (uint64_t first = 0; first < positions.rows(); first += kBlock) {
    const auto values = positions.integers(first, std::min(kBlock, positions.rows() - first), kMaxNumber);
    check_rising(documents, first, values, before, positions.where());
    before = values.back();
  }
}

Documents read_documents(const h5::File& file, const ModelInfo& model, StateData& state) {
  Documents documents = read_documents(file);
  if (file.has(kLeftOut)) documents.left_out = read_left_out(file, documents, model);
  documents.facts = read_facts(file, documents.count());
  documents.facts.states = read_states(file, documents.count(), state);
  return documents;
}

uint64_t write_documents(h5::File& file, const Documents& documents) {
  const uint64_t name_bytes = h5::write_texts(file, kNames, documents.names);
  return name_bytes + write_dataset<uint64_t>(file, kOffsets, DType::u64, documents.offsets);
}

uint64_t write_documents(h5::File& file, const Documents& documents, const ModelInfo& model) {
  const uint64_t bytes = write_documents(file, documents) + write_facts(file, documents.facts);
  if (documents.whole()) return bytes;
  const auto layers = static_cast<uint64_t>(model.num_layers);
  std::vector<uint64_t> left_out;
  for (const auto& row : documents.left_out) left_out.insert(left_out.end(), row.begin(), row.end());
  return bytes + write_dataset<uint64_t>(file, kLeftOut, DType::u64, left_out, {layers});
}

uint64_t documents_bytes(const h5::File& file) {
  uint64_t bytes = 0;
  for (const char* path : {kNames, kOffsets, kLeftOut, kDigest, kTime, kMetadata, kMetadataEnd})
    if (file.has(path)) bytes += file.dataset(path).size_bytes();
  return bytes;
}

DType position_type(uint64_t largest) {
  return largest <= std::numeric_limits<uint32_t>::max() ? DType::u32 : DType::u64;
}

void write_positions(h5::File& file, const std::string& path, std::span<const uint64_t> numbers) {
  if (position_type(numbers.empty() ? 0 : std::ranges::max(numbers)) == DType::u64)
    write_dataset(file, path, DType::u64, numbers);
  else
    write_dataset<uint32_t>(file, path, DType::u32, std::vector<uint32_t>(numbers.begin(), numbers.end()));
}

}  // namespace kvcodec
