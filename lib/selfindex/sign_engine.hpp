// A device that computes codebooks and indices of sign codes. Threads may share all of it. Results are those
// of sign_codes.hpp and sign_index.hpp, bit for bit. False, std::nullopt, nullptr: declined; the output is
// unspecified, and the caller computes all of it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lib/core/view.hpp"
#include "lib/linalg/topk.hpp"
#include "lib/selfindex/sign_codes.hpp"
#include "lib/selfindex/sign_table.hpp"

namespace kvcodec {

/// The codes of one head: SignIndex.
class SignIndexEngine {
 public:
  virtual ~SignIndexEngine() = default;
  /// Row i of out, (tables.size(), tokens), becomes SignIndex::scores of table i.
  virtual bool scores(std::span<const SignTable> tables, MatrixView<float> out) const = 0;
  virtual std::optional<std::vector<Scored>> top_k(const SignTable& table, size_t k, Order order) const = 0;
};

class SignEngine {
 public:
  /// For Engine::make: the engine owns it.
  using Factory = const SignEngine*();
  virtual ~SignEngine() = default;
  /// The codebooks of rows that are all there, centred: build_codebooks of them and their encode_signs.
  virtual std::optional<std::vector<SignCodebook>> codebooks(MatrixView<const float> rows,
                                                             size_t heads) const = 0;
  /// An index of these codes, (n, sign_row_bytes(dims)), which need not stay.
  virtual std::unique_ptr<SignIndexEngine> index(size_t dims, MatrixView<const uint8_t> codes) const = 0;
};

}  // namespace kvcodec
