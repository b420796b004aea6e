// What is known of documents besides their tokens: digests, the user's metadata, times (FORMAT.md, "What is known of
// documents").
#include <algorithm>
#include <functional>

#include "formats/cache/header_io.hpp"

namespace kvcodec {
namespace {

constexpr char kDigest[] = "/documents/digest", kTime[] = "/documents/time",
               kMetadata[] = "/documents/metadata", kMetadataEnd[] = "/documents/metadata_end";

std::vector<Digest128> read_digests(const h5::File& file, size_t documents) {
  const h5::Dataset dataset = open_dataset(file, kDigest, DType::u8, {documents, sizeof(Digest128)});
  std::vector<Digest128> digests(documents);
  dataset.read(0, documents, std::as_writable_bytes(std::span(digests)));
  return digests;
}

std::vector<uint64_t> read_times(const h5::File& file, size_t documents) {
  return open_dataset(file, kTime, DType::u64, {documents}).integers(0, documents, kMaxNumber);
}

TextList read_metadata(const h5::File& file, size_t documents) {
  const h5::Dataset text = file.dataset(kMetadata),
                    ends_dataset = open_dataset(file, kMetadataEnd, DType::u64, {documents});
  text.expect(DType::u8, {&text.shape().front(), 1});
  std::string all(text.rows(), '\0');
  text.read(0, text.rows(), std::as_writable_bytes(std::span(all)));
  std::vector<uint64_t> ends = ends_dataset.integers(0, documents, all.size());
  const auto fall = std::ranges::adjacent_find(ends, std::greater());
  if (fall != ends.end())
    throw ends_dataset.error("falls from {} to {} before document {}; ends never fall", fall[0], fall[1],
                             fall - ends.begin() + 1);
  if (const uint64_t end = ends.empty() ? 0 : ends.back(); end != all.size())
    throw ends_dataset.error("ends with {}; {} has {} bytes", end, kMetadata, all.size());
  return {std::move(all), std::move(ends)};
}

}  // namespace

FactsTable read_facts(const h5::File& file, size_t documents) {
  FactsTable facts;
  if (file.has(kDigest)) facts.digests = read_digests(file, documents);
  if (file.has(kTime)) facts.times = read_times(file, documents);
  if (file.has(kMetadata)) facts.metadata = read_metadata(file, documents);
  return facts;
}

uint64_t write_facts(h5::File& file, const FactsTable& facts) {
  uint64_t bytes = 0;
  if (std::ranges::any_of(facts.digests, [](const Digest128& digest) { return digest != Digest128{}; }))
    bytes +=
        write_dataset(file, kDigest, DType::u8, std::as_bytes(std::span(facts.digests)), {sizeof(Digest128)});
  if (std::ranges::any_of(facts.times, [](uint64_t time) { return time > 0; }))
    bytes += write_dataset<uint64_t>(file, kTime, DType::u64, facts.times);
  const std::string& metadata = facts.metadata.bytes();
  if (metadata.empty()) return bytes;
  bytes += write_dataset<char>(file, kMetadata, DType::u8, metadata);
  return bytes + write_dataset<uint64_t>(file, kMetadataEnd, DType::u64, facts.metadata.ends());
}

uint64_t facts_bytes(const h5::File& file) {
  uint64_t bytes = 0;
  for (const char* path : {kDigest, kTime, kMetadata, kMetadataEnd})
    if (file.has(path)) bytes += file.dataset(path).size_bytes();
  return bytes;
}

}  // namespace kvcodec
