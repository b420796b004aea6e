// Files on servers: their names, http://, https:// and s3:// (S3 and what speaks its protocol); and requests by HTTP for a part of a
// file, and to store a whole one. libcurl makes these; it is loaded at the first request: a run over local files starts without it.
//
// A request is made again, up to four times and after a pause that doubles, where the connection breaks or stalls and where
// the server says that it is busy (429, 500, 502, 503, 504). Errors begin with the shown name (shown_name):
// bad_input for what the server says of the file, failed for the way there.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvcodec {

/// Whether it is the name of a file on a server.
bool is_far(std::string_view name);

/// The name as messages and histories show it: of a URL without user, password and query, which may hold secrets. Of
/// anything else the name itself.
std::string shown_name(std::string_view name);

/// A text for people with all its URLs as shown_name has them. A URL ends with the word that it stands in; marks at the word's end are
/// the text's.
std::string shown_text(std::string_view text);

/// The place of a file, and how its server wants to be asked for it.
struct FarPlace {
  std::string url;    ///< http or https
  std::string shown;  ///< the name in messages
  bool s3 = false;
  std::string certificates = {};  ///< a file of those that are trusted; empty: the system's

  // For s3 with credentials; empty: requests are not signed, as for buckets that everybody may read.
  std::string signature = {};      ///< what libcurl's CURLOPT_AWS_SIGV4 takes: "aws:amz:REGION:s3"
  std::string key_id = {};         ///< AWS_ACCESS_KEY_ID
  std::string secret = {};         ///< AWS_SECRET_ACCESS_KEY
  std::string session_token = {};  ///< AWS_SESSION_TOKEN; may be empty
};

/// The place that a name means. For s3://BUCKET/KEY the environment says the rest, by the names that AWS's own programs know:
/// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION or AWS_DEFAULT_REGION (us-east-1 if neither is set),
/// AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL (that of AWS if neither is set). Certificates are those of CURL_CA_BUNDLE or
/// SSL_CERT_FILE, of s3:// before them AWS_CA_BUNDLE. Throws Error(usage) for a name without a host, a bucket or a key, and for one
/// half of the credentials.
FarPlace far_place(const std::string& name);

/// Limits of waiting for a server.
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
  static constexpr uint64_t kMaxBytes = uint64_t{1} << 46;

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
