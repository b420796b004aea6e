// What is known of documents besides their tokens: digests, the user's metadata, times (FORMAT.md, "What is known of
// documents").
#include <algorithm>
#include <array>
#include <cstring>

#include "formats/header_io.hpp"

namespace kvcodec {
namespace {

constexpr char kDigest[] = "/documents/digest", kTime[] = "/documents/time",
               kMetadata[] = "/documents/metadata", kMetadataEnd[] = "/documents/metadata_end";

void read_digests(const h5::File& file, std::vector<DocumentFacts>& facts) {
  const h5::Dataset dataset = file.dataset(kDigest);
  dataset.expect(DType::u8, std::array{uint64_t{facts.size()}, uint64_t{sizeof(Digest128)}});
  std::vector<Digest128> digests(facts.size());
  dataset.read(0, facts.size(), std::as_writable_bytes(std::span(digests)));
  for (size_t i = 0; i < facts.size(); ++i)
    if (digests[i] != Digest128{}) facts[i].digest = digests[i];
}

void read_times(const h5::File& file, std::vector<DocumentFacts>& facts) {
  const h5::Dataset dataset = file.dataset(kTime);
  dataset.expect(DType::u64, std::array{uint64_t{facts.size()}});
  const auto times = dataset.integers(0, facts.size(), kMaxNumber);
  for (size_t i = 0; i < facts.size(); ++i) facts[i].time = times[i];
}

void read_metadata(const h5::File& file, std::vector<DocumentFacts>& facts) {
  const h5::Dataset text = file.dataset(kMetadata), ends = file.dataset(kMetadataEnd);
  text.expect(DType::u8, std::array{text.rows()});
  ends.expect(DType::u64, std::array{uint64_t{facts.size()}});
  std::string all(text.rows(), '\0');
  text.read(0, text.rows(), std::as_writable_bytes(std::span(all)));
  uint64_t begin = 0;
  for (size_t i = 0; const uint64_t end : ends.integers(0, facts.size(), all.size())) {
    if (end < begin)
      throw ends.error("falls from {} to {} before document {}; ends never fall", begin, end, i);
    facts[i++].metadata = all.substr(begin, end - begin);
    begin = end;
  }
  if (begin != all.size()) throw ends.error("ends with {}; {} has {} bytes", begin, kMetadata, all.size());
}

/// One number or row of numbers for each document.
template <class T>
uint64_t write_rows(h5::File& file, const char* path, DType type, std::vector<uint64_t> row,
                    const std::vector<T>& rows) {
  h5::DatasetWriter writer(file, path, type, std::move(row), rows.size());
  writer.append(std::as_bytes(std::span(rows)));
  writer.finish();
  return rows.size() * sizeof(T);
}

}  // namespace

std::vector<DocumentFacts> read_facts(const h5::File& file, size_t documents) {
  std::vector<DocumentFacts> facts(documents);
  if (file.has(kDigest)) read_digests(file, facts);
  if (file.has(kTime)) read_times(file, facts);
  if (file.has(kMetadata)) read_metadata(file, facts);
  if (std::ranges::none_of(facts, &DocumentFacts::any)) facts.clear();
  return facts;
}

uint64_t write_facts(h5::File& file, std::span<const DocumentFacts> facts) {
  std::vector<Digest128> digests;
  std::vector<uint64_t> times, ends;
  std::string metadata;
  for (const DocumentFacts& of_document : facts) {
    digests.push_back(of_document.digest.value_or(Digest128{}));
    times.push_back(of_document.time);
    metadata += of_document.metadata;
    ends.push_back(metadata.size());
  }
  uint64_t bytes = 0;
  if (std::ranges::any_of(digests, [](const Digest128& digest) { return digest != Digest128{}; }))
    bytes += write_rows(file, kDigest, DType::u8, {sizeof(Digest128)}, digests);
  if (std::ranges::any_of(times, [](uint64_t time) { return time > 0; }))
    bytes += write_rows(file, kTime, DType::u64, {}, times);
  if (metadata.empty()) return bytes;
  bytes += write_rows(file, kMetadata, DType::u8, {}, std::vector<char>(metadata.begin(), metadata.end()));
  return bytes + write_rows(file, kMetadataEnd, DType::u64, {}, ends);
}

uint64_t facts_bytes(const h5::File& file) {
  uint64_t bytes = 0;
  for (const char* path : {kDigest, kTime, kMetadata, kMetadataEnd})
    if (file.has(path)) bytes += file.dataset(path).size_bytes();
  return bytes;
}

}  // namespace kvcodec
