// A file on a server that is read like one that is here. What was fetched is kept in a temporary file without a name, and is not
// fetched again; what will be read soon is fetched by one request.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "formats/byte_source.hpp"
#include "formats/http.hpp"
#include "formats/output.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {

/// Bytes of a file that belong together.
struct FileRange {
  uint64_t begin = 0, end = 0;
};

class FarFile final : public ByteSource {
 public:
  /// The file of that name: the same object for all who open it, so that they share what was fetched (but that of the 64 names
  /// asked for last; others begin anew). The first one makes the first request. Throws Error.
  static std::shared_ptr<FarFile> open(const std::string& name);
  explicit FarFile(std::unique_ptr<HttpFile> file);

  const std::string& name() const { return file_->name(); }  ///< as messages show it
  uint64_t number() const { return number_; }                ///< tells apart the FarFiles of a process
  uint64_t size() const override { return size_; }
  void read(uint64_t position, std::span<std::byte> out) override;

  /// Says that the whole range will be read soon, if any of it is: the first read there fetches all of it that is not here
  /// yet. Ranges of more than 32 MiB are read as without.
  void expect(const FileRange& range);

  uint64_t requests() const;
  uint64_t bytes() const;  ///< fetched

 private:
  // A page is here or not.
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
