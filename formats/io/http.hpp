// Names of files on servers, http://, https:// and s3:// (S3 and compatible servers), and HTTP requests that read a part of a file or
// store a whole one. libcurl makes the requests; it is loaded at the first one, so that runs over local files start without it.
//
// A request is repeated up to four times, after a pause that doubles, if the connection breaks or stalls and if the server reports
// that it is busy (429, 500, 502, 503, 504). Errors begin with the shown name (shown_name): bad_input for the server's answer about
// the file, failed for the connection.
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

/// True for the name of a file on a server.
bool is_far(std::string_view name);

/// The name in messages and histories: a URL without user, password and query, which may contain secrets; any other name is
/// unchanged.
std::string shown_name(std::string_view name);

/// A text for people with all its URLs in the form of shown_name(). A URL ends with the word that contains it; punctuation at the end
/// of the word belongs to the text.
std::string shown_text(std::string_view text);

/// The location of a file and the way in which its server expects requests.
struct FarPlace {
  std::string url;    ///< http or https
  std::string shown;  ///< the name in messages
  bool s3 = false;
  std::string certificates = {};  ///< a file of the trusted ones; empty: the system's

  // For s3 with credentials; empty: requests are not signed, as for public buckets.
  std::string signature = {};      ///< what libcurl's CURLOPT_AWS_SIGV4 takes: "aws:amz:REGION:s3"
  std::string key_id = {};         ///< AWS_ACCESS_KEY_ID
  std::string secret = {};         ///< AWS_SECRET_ACCESS_KEY
  std::string session_token = {};  ///< AWS_SESSION_TOKEN; may be empty
};

/// The place that a name means. For s3://BUCKET/KEY the environment gives the rest, in the variables that AWS's own programs use:
/// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION or AWS_DEFAULT_REGION (us-east-1 if neither is set),
/// AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL (that of AWS if neither is set). Certificates are those of CURL_CA_BUNDLE or
/// SSL_CERT_FILE; for s3:// AWS_CA_BUNDLE comes first. Throws Error(usage) for a name without a host, a bucket or a key, and for
/// incomplete credentials.
FarPlace far_place(const std::string& name);

/// Limits of waiting for a server.
struct HttpPatience {
  int attempts = 5;                                                  ///< at each request
  std::chrono::milliseconds pause = std::chrono::milliseconds(200);  ///< before the second attempt
  std::chrono::seconds timeout = std::chrono::seconds(60);  ///< without a connection, or without a byte

  /// Uses the timeout in KVCODEC_TIMEOUT, in seconds. Throws Error(usage) if it is not a number from 1 to 3600.
  static HttpPatience from_environment();
};

/// Throws Error(usage) if this program was built without libcurl, and Error(failed) if the library cannot be loaded, or lacks a
/// feature that the place needs. Makes no request.
void require_http(const FarPlace& place);

/// A file on a server that is read. All reads are of one state of the file, as far as its size and its ETag, or else its date, show:
/// if one of them changes between two requests, that is an error. Not thread-safe.
class HttpFile {
 public:
  /// A server that reports a larger file is not believed, because readers allocate memory by the size.
  static constexpr uint64_t kMaxBytes = uint64_t{1} << 46;

  /// As require_http.
  static std::unique_ptr<HttpFile> at(FarPlace place,
                                      HttpPatience patience = HttpPatience::from_environment());
  virtual ~HttpFile() = default;

  virtual const std::string& name() const = 0;  ///< as messages show it
  /// The first `limit` bytes, or all if there are fewer. This is the first request; afterwards the size is known.
  virtual std::vector<std::byte> begin(uint64_t limit) = 0;
  virtual uint64_t size() const = 0;  ///< bytes; after begin()
  /// `count` bytes from `position` on, in one request; within the size.
  virtual std::vector<std::byte> read(uint64_t position, uint64_t count) = 0;

  virtual uint64_t requests() const = 0;  ///< so far, repeated ones included
  virtual uint64_t bytes() const = 0;     ///< of the file, in their answers
};

/// Stores a local file on a server, whole, by one PUT request, which follows no redirection. overwrite: true if it may replace an existing
/// file; otherwise the server is asked to refuse that (If-None-Match). Returns false if it refused. S3 accepts at most 5 GiB in this way.
bool upload(const FarPlace& place, const std::filesystem::path& file, bool overwrite,
            HttpPatience patience = HttpPatience::from_environment());

}  // namespace kvcodec
