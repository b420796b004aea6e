// Encoded documents of one group side in memory: for tests, benchmarks and programs that use lib/ without
// files.
#pragma once

#include <memory>
#include <vector>

#include "lib/codec/codec.hpp"
#include "lib/codec/stream.hpp"

namespace kvcodec {

class Encoded {
 public:
  explicit Encoded(std::vector<StreamSpec> specs);
  ~Encoded();
  Encoded(Encoded&&) noexcept;
  Encoded& operator=(Encoded&&) noexcept;

  /// Starts the next document; the one before it is closed for good. The reference lives as long as the
  /// Encoded.
  StreamStore& add_document();
  size_t documents() const;
  const StreamReader& document(size_t index) const;

  const std::vector<StreamSpec>& specs() const;
  /// All bytes of one stream over all documents, as a file would store them, unpacked.
  std::span<const std::byte> bytes(std::string_view stream) const;
  /// Bytes stored, per category; index streams count as they are, unpacked.
  uint64_t size_bytes(Category category) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Documents of one side of one group, each (tokens, shape.width()), surveyed and encoded as a new file would
/// be.
Encoded encode_in_memory(const Codec& codec, const GroupShape& shape,
                         std::span<const MatrixView<const float>> documents);

}  // namespace kvcodec
