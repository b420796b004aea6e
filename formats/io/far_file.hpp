// A file on a server that is read like one that is here. What was fetched is kept in a temporary file without a name, and is not
// fetched again; what will be read soon is fetched by one request.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "formats/io/byte_source.hpp"
#include "formats/io/http.hpp"
#include "formats/io/temporary.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {

class FarFile final : public ByteSource {
 public:
  /// The file of that name. All callers get the same object, and share what was fetched, as long as the name is among the 64
  /// asked for last; then it begins anew. The first call makes the first request. Throws Error.
  static std::shared_ptr<FarFile> open(const std::string& name);
  /// Makes the first request.
  explicit FarFile(std::unique_ptr<HttpFile> file);

  const std::string& name() const { return file_->name(); }  ///< as messages show it
  uint64_t number() const { return number_; }                ///< tells apart the FarFiles of a process
  uint64_t size() const override { return size_; }
  void read(uint64_t position, std::span<std::byte> out) override;

  /// The first read there fetches all of it that is not here yet.
  void expect(const FileRange& range) override;
  Joining joining(ReadPlan) const override { return {.gap = uint64_t{1} << 17, .most = kMostRequestBytes}; }

  uint64_t requests() const;
  uint64_t reads() const override { return requests(); }
  uint64_t bytes() const override;  ///< fetched

 private:
  // More is fetched neither at once nor because it is expected.
  static constexpr uint64_t kMostRequestBytes = uint64_t{1} << 25;
  // A page is here or not: a bit each, 128 MiB of them for the largest file.
  static constexpr uint64_t kPageBytes = uint64_t{1} << 16;

  void fetch_missing(uint64_t first, uint64_t end);
  void fetch(uint64_t first, uint64_t end);
  void keep(uint64_t first_page, std::span<const std::byte> bytes);
  uint64_t read_ahead(uint64_t first, uint64_t end) const;

  mutable std::mutex mutex_;
  std::unique_ptr<HttpFile> file_;
  UnnamedFile kept_;
  std::vector<bool> here_;  // by page
  std::vector<FileRange> expected_;
  uint64_t number_ = 0, size_ = 0;
  std::optional<Error> broken_;  // what went wrong at a request; nothing is asked for any more
};

}  // namespace kvcodec
