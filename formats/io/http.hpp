// Requests to servers by HTTP: a part of a file, and a whole file stored there. Done by libcurl, which is loaded when the
// first request is made: a run over local files starts without it.
//
// A request is made again, up to four times and after a pause that doubles, where the connection breaks or stalls and where
// the server says that it is busy (429, 500, 502, 503, 504). Errors begin with the shown name (formats/io/far_place.hpp):
// bad_input for what the server says of the file, failed for the way there.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "formats/io/far_place.hpp"

namespace kvcodec {

/// How long a server is waited for.
struct HttpPatience {
  int attempts = 5;                                                  ///< at each request
  std::chrono::milliseconds pause = std::chrono::milliseconds(200);  ///< before the second one
  std::chrono::seconds timeout = std::chrono::seconds(60);  ///< without a connection, or without a byte

  /// With the timeout that KVCODEC_TIMEOUT says, in seconds. Throws Error(usage) for what is not a number from 1 to 3600.
  static HttpPatience from_environment();
};

/// Throws Error(usage) if this program was built without libcurl, and Error(failed) if the library cannot be loaded, or cannot
/// do what the place needs. Makes no request.
void require_http(const FarPlace& place);

/// A file on a server, to read. All parts are of one state of it, as far as its ETag, or else its date, and its size tell: if one of
/// them changes between two requests, that is an error. Not for several threads at once.
class HttpFile {
 public:
  /// A server that says that a file is larger is not believed: readers set up memory by that.
  static constexpr uint64_t kMostBytes = uint64_t{1} << 46;

  /// As require_http.
  explicit HttpFile(FarPlace place, HttpPatience patience = HttpPatience::from_environment());
  ~HttpFile();
  HttpFile(const HttpFile&) = delete;
  HttpFile& operator=(const HttpFile&) = delete;

  const std::string& name() const;  ///< as messages show it
  /// The first `most` bytes, or all if there are fewer. The first request: from then on the size is known.
  std::vector<std::byte> begin(uint64_t most);
  uint64_t size() const;  ///< bytes; after begin()
  /// `count` bytes from `position` on, in one request; within the size.
  std::vector<std::byte> read(uint64_t position, uint64_t count);

  uint64_t requests() const;  ///< so far, those that were made again too
  uint64_t bytes() const;     ///< of files that they brought

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Stores a local file on a server, whole, by one PUT request, which follows no redirection. overwrite: whether it may replace
/// what is there; without it the server is asked to refuse that (If-None-Match). Returns false if it did. S3 takes at most 5 GiB so.
bool upload(const FarPlace& place, const std::filesystem::path& file, bool overwrite,
            HttpPatience patience = HttpPatience::from_environment());

}  // namespace kvcodec
