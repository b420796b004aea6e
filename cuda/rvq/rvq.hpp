// CUDA implementation of lib/rvq/residual.hpp: sums of entries, also straight from packed ids, and the searches for
// ids, greedy and with a beam. Sums are those of lib/ bit for bit, and so are ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lib/core/view.hpp"
#include "lib/rvq/residual.hpp"

namespace kvcodec::cuda {

struct RvqBooks;

/// Codebooks in device memory.
class ResidualQuantizer {
 public:
  /// Throws Error(usage) for codebooks wider than 256 dimensions, Error(failed) without device memory.
  explicit ResidualQuantizer(const Codebooks& books);
  ~ResidualQuantizer();
  ResidualQuantizer(ResidualQuantizer&&) noexcept;
  ResidualQuantizer& operator=(ResidualQuantizer&&) noexcept;

  /// As kvcodec::sum_entries. Throws Error(bad_input) for ids that are not below the number of entries.
  void sum_entries(MatrixView<const uint32_t> ids, MatrixView<float> out) const;

  /// The same of ids as pack_bits (lib/entropy/pack.hpp) leaves them, index_bits(entries) bits each: row i
  /// takes ids first_id + i * stages and those behind it. Throws Error(bad_input) if there are fewer, or for
  /// ids that are not below the number of entries.
  void sum_packed_entries(std::span<const uint8_t> packed, uint64_t first_id, MatrixView<float> out) const;

  /// As kvcodec::ResidualEncoder::encode.
  /// Throws Error(bad_input) naming the first row that is not finite or whose scores may not be floats: where
  /// (|row| + the sum of each stage's largest norm) times the largest norm of an entry, or itself where beam
  /// is above 1, is above 2^126. Throws Error(failed) for beams that lib refuses.
  void encode(MatrixView<const float> rows, size_t beam, MatrixView<uint32_t> ids) const;
  void encode(MatrixView<const float> rows, MatrixView<uint32_t> ids) const { encode(rows, 1, ids); }

  /// For launches of rvq.cuh, as long as this lives.
  RvqBooks books() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcodec::cuda
