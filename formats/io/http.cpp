#include "formats/io/http.hpp"

#include <algorithm>
#include <cstdlib>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"

#ifdef KVCODEC_CURL

#include <exception>
#include <functional>
#include <new>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include <curl/curl.h>
#include <dlfcn.h>

#include "formats/io/mapped_file.hpp"
#include "formats/io/sha256.hpp"
#include "kvcodec/version.hpp"

#endif

namespace kvcodec {
HttpPatience HttpPatience::from_environment() {
  HttpPatience patience;
  const char* text = std::getenv("KVCODEC_TIMEOUT");
  if (!text || !*text) return patience;
  const auto seconds = number_in<int>(text);
  if (!seconds || *seconds < 1 || *seconds > 3600)
    throw usage_error("KVCODEC_TIMEOUT is '{}'; it must be seconds, from 1 to 3600", text);
  patience.timeout = std::chrono::seconds(*seconds);
  return patience;
}

#ifndef KVCODEC_CURL

void require_http(const FarPlace& place) {
  throw usage_error(
      "{}: this kvcodec was built without libcurl, so it reaches no servers; build it with -DKVCODEC_CURL=ON, or "
      "download the file",
      place.shown);
}

std::unique_ptr<HttpFile> HttpFile::at(FarPlace place, HttpPatience) {
  require_http(place);
  return nullptr;
}
bool upload(const FarPlace& place, const std::filesystem::path&, bool, HttpPatience) {
  require_http(place);
  return false;
}

#else

namespace {

// The library ---------------------------------------------------------------------------------------

/// The functions of libcurl that are used. They are looked up by name, so that the program is not linked with libcurl and the two
/// dozen libraries that it needs.
struct CurlLibrary {
  std::string missing;  ///< why it cannot be used; empty = it can
  void* library = open();
// NOLINTBEGIN(bugprone-macro-parentheses): it is a member's name
#define KVCODEC_CURL_FUNCTION(name) \
  decltype(&::curl_##name) name = reinterpret_cast<decltype(&::curl_##name)>(find("curl_" #name))
  // NOLINTEND(bugprone-macro-parentheses)
  KVCODEC_CURL_FUNCTION(global_init);
  KVCODEC_CURL_FUNCTION(easy_init);
  KVCODEC_CURL_FUNCTION(easy_setopt);
  KVCODEC_CURL_FUNCTION(easy_perform);
  KVCODEC_CURL_FUNCTION(easy_getinfo);
  KVCODEC_CURL_FUNCTION(easy_header);
  KVCODEC_CURL_FUNCTION(easy_strerror);
  KVCODEC_CURL_FUNCTION(easy_cleanup);
  KVCODEC_CURL_FUNCTION(slist_append);
  KVCODEC_CURL_FUNCTION(slist_free_all);
#undef KVCODEC_CURL_FUNCTION

  CurlLibrary() {
    if (missing.empty() && global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) missing = "libcurl cannot begin";
  }

 private:
  void* open() {
    // Debian's build with OpenSSL, and the one with GnuTLS, which has the same interface.
    for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4"})
      if (void* found = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return found;
    missing = "libcurl.so.4 is not installed (Debian's package libcurl4)";
    return nullptr;
  }
  void* find(const char* name) {
    void* function = library ? ::dlsym(library, name) : nullptr;
    if (library && !function) missing = fmt::format("libcurl has no function {}", name);
    return function;
  }
};

const CurlLibrary& curl() {
  static const CurlLibrary& library = *new CurlLibrary;  // lives as long as anything that could call it
  return library;
}

// One request ---------------------------------------------------------------------------------------

/// "bytes FIRST-LAST/SIZE"
struct ContentRange {
  uint64_t first = 0, last = 0, size = 0;
};

std::optional<ContentRange> content_range(std::string_view text) {
  constexpr std::string_view kUnit = "bytes ";
  if (!text.starts_with(kUnit)) return std::nullopt;
  text.remove_prefix(kUnit.size());
  const size_t dash = std::min(text.find('-'), text.size()), slash = std::min(text.find('/'), text.size());
  if (dash >= slash || slash == text.size()) return std::nullopt;
  const auto first = number_in<uint64_t>(text.substr(0, dash)),
             last = number_in<uint64_t>(text.substr(dash + 1, slash - dash - 1)),
             size = number_in<uint64_t>(text.substr(slash + 1));
  if (!first || !last || !size || *first > *last || *last >= *size) return std::nullopt;
  return ContentRange{*first, *last, *size};
}

/// An error that may disappear when the request is repeated.
struct Transient {
  Error error;
  std::chrono::milliseconds wait{0};  // requested by the server
};

constexpr CURLcode kTransient[] = {CURLE_OPERATION_TIMEDOUT, CURLE_PARTIAL_FILE, CURLE_GOT_NOTHING,
                                   CURLE_SEND_ERROR,         CURLE_RECV_ERROR,   CURLE_HTTP2,
                                   CURLE_HTTP2_STREAM};
constexpr CURLcode kUnsafe[] = {CURLE_PEER_FAILED_VERIFICATION, CURLE_SSL_CONNECT_ERROR,
                                CURLE_SSL_CERTPROBLEM, CURLE_SSL_CACERT_BADFILE, CURLE_SSL_ISSUER_ERROR};
constexpr long kBusy[] = {429, 500, 502, 503, 504};

constexpr auto is_among = [](const auto& list, auto value) {
  return std::ranges::find(list, value) != std::end(list);
};

/// A handle of libcurl for one place; its requests share a connection.
class HttpConnection {
 public:
  HttpConnection(FarPlace place, HttpPatience patience)
      : place_(std::move(place)), patience_(patience), error_text_(CURL_ERROR_SIZE, '\0') {
    if (!curl().missing.empty()) throw failed("{}: cannot be reached: {}", place_.shown, curl().missing);
    handle_.reset(curl().easy_init());
    if (!handle_) throw failed("{}: libcurl cannot begin", place_.shown);
    prepare_common();
  }
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  const FarPlace& place() const { return place_; }
  uint64_t requests() const { return requests_; }

  template <class Value>
  void set(CURLoption option, Value value) {
    if (const CURLcode code = curl().easy_setopt(handle_.get(), option, value); code != CURLE_OK)
      throw failed("{}: libcurl is too old, or built without what is needed here: {}", place_.shown,
                   curl().easy_strerror(code));
  }

  /// Takes bytes of a good answer; false aborts it.
  using Take = std::function<bool(long status, std::span<const std::byte> bytes)>;

  /// Returns once(), which is repeated if it throws Transient.
  template <class Once>
  auto with_retries(const Once& once) {
    constexpr auto kLongestWait = std::chrono::milliseconds(20000);
    auto pause = patience_.pause;
    for (int attempt = 1;; ++attempt) try {
        return once();
      } catch (const Transient& transient) {
        if (attempt >= patience_.attempts)
          throw Error(transient.error.kind(),
                      fmt::format("{} (tried {} times)", transient.error.what(), attempt));
        std::this_thread::sleep_for(std::max(pause, std::min(transient.wait, kLongestWait)));
        pause *= 2;
      }
  }

  /// Makes a request with the options that prepare() sets and these headers, and returns the status of the answer. Bodies of good
  /// answers go to take(). Throws Transient, or Error.
  long perform(const std::vector<std::string>& headers, const Take& take,
               const std::function<void()>& prepare) {
    error_body_.clear();
    Listener listener{this, take};
    set(CURLOPT_WRITEFUNCTION, &Listener::on_body);
    set(CURLOPT_WRITEDATA, static_cast<void*>(&listener));
    prepare();
    std::unique_ptr<curl_slist, Closer> list;
    for (const std::string& header : headers) {
      curl_slist* const longer = curl().slist_append(list.get(), header.c_str());
      if (!longer) throw std::bad_alloc();
      (void)list.release();  // it is now the beginning of the longer list
      list.reset(longer);
    }
    set(CURLOPT_HTTPHEADER, list.get());
    ++requests_;
    error_text_.front() = '\0';
    const CURLcode code = curl().easy_perform(handle_.get());
    curl().easy_setopt(handle_.get(), CURLOPT_HTTPHEADER, static_cast<curl_slist*>(nullptr));
    curl().easy_getinfo(handle_.get(), CURLINFO_RESPONSE_CODE, &listener.status);
    if (listener.thrown) std::rethrow_exception(listener.thrown);
    if (code != CURLE_OK && !listener.broken_off) refuse(code);
    if (is_among(kBusy, listener.status))
      throw Transient{
          failed("{}: the server is busy or out of order ({})", place_.shown, status_text(listener.status)),
          std::chrono::seconds(std::min(number_in<unsigned>(field("retry-after")).value_or(0), 3600U))};
    return listener.status;
  }

  /// A header of the last answer; empty if there is none.
  std::string field(const char* name) const {
    curl_header* found = nullptr;
    const bool is_there = curl().easy_header(handle_.get(), name, 0, CURLH_HEADER, -1, &found) == CURLHE_OK;
    return is_there ? found->value : "";
  }

  /// The message for an answer that the caller does not handle. action: "read" or "write".
  std::string unwanted(long code, const char* action) const {
    const std::string& name = place_.shown;
    const std::string status = status_text(code);
    if (code == 401 || code == 403) {
      if (place_.s3 && place_.key_id.empty())
        return fmt::format(
            "{}: the server does not let everybody {} it ({}); AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY say "
            "who asks",
            name, action, status);
      return fmt::format("{}: the server does not let you {} it ({})", name, action, status);
    }
    if (code == 404 || code == 410)
      return fmt::format("{}: there is no such file on the server ({})", name, status);
    const std::string region = field("x-amz-bucket-region");
    if (place_.s3 && !region.empty())
      return fmt::format("{}: the bucket lies in the region {} ({}); set AWS_REGION", name, region, status);
    return fmt::format("{}: the server's answer is not what was asked for ({})", name, status);
  }

 private:
  struct Closer {
    void operator()(CURL* handle) const { curl().easy_cleanup(handle); }
    void operator()(curl_slist* list) const { curl().slist_free_all(list); }
  };

  /// libcurl, a C library, calls on_body(): no exception may pass through it.
  struct Listener {
    HttpConnection* connection;
    const Take& take;
    long status = 0;
    bool broken_off = false;
    std::exception_ptr thrown = nullptr;

    /// Returns the number of bytes, or 0 to abort the answer.
    static size_t on_body(char* bytes, size_t size, size_t count, void* self) noexcept {
      auto& own = *static_cast<Listener*>(self);
      try {
        own.take_body({bytes, size * count});
      } catch (...) {
        own.thrown = std::current_exception();
        own.broken_off = true;
      }
      return own.broken_off ? 0 : size * count;
    }

    void take_body(std::string_view bytes) {
      curl().easy_getinfo(connection->handle_.get(), CURLINFO_RESPONSE_CODE, &status);
      constexpr size_t kMaxErrorBytes = 4096;
      std::string& body = connection->error_body_;
      if (status < 300) {
        broken_off = !take(status, std::as_bytes(std::span(bytes)));
      } else {
        body.append(bytes.substr(0, kMaxErrorBytes - body.size()));
        broken_off = body.size() == kMaxErrorBytes;
      }
    }
  };

  void prepare_common() {
    set(CURLOPT_URL, place_.url.c_str());
    static const std::string agent = std::string("kvcodec/") + kVersion;
    set(CURLOPT_USERAGENT, agent.c_str());
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_ERRORBUFFER, error_text_.data());
    const auto seconds = static_cast<long>(patience_.timeout.count());
    set(CURLOPT_CONNECTTIMEOUT, std::min(seconds, 30L));
    set(CURLOPT_LOW_SPEED_LIMIT, 1L);  // bytes per second
    set(CURLOPT_LOW_SPEED_TIME, seconds);
    // A server may redirect, as the hubs of models do, but from https only to https. Signed requests are valid for one place.
    const char* protocols = place_.url.starts_with("https://") ? "https" : "http,https";
    set(CURLOPT_PROTOCOLS_STR, protocols);
    set(CURLOPT_REDIR_PROTOCOLS_STR, protocols);
    set(CURLOPT_FOLLOWLOCATION, place_.s3 ? 0L : 1L);
    set(CURLOPT_MAXREDIRS, 5L);
    if (!place_.certificates.empty()) set(CURLOPT_CAINFO, place_.certificates.c_str());
    if (!place_.s3) return;
    set(CURLOPT_PATH_AS_IS, 1L);
    if (place_.signature.empty()) return;
    set(CURLOPT_AWS_SIGV4, place_.signature.c_str());
    set(CURLOPT_USERNAME, place_.key_id.c_str());
    set(CURLOPT_PASSWORD, place_.secret.c_str());
  }

  /// "status 403, AccessDenied", with S3's name of an error: it says "<Error><Code>AccessDenied</Code>…".
  std::string status_text(long status) const {
    constexpr std::string_view kBegin = "<Code>", kEnd = "</Code>";
    const size_t begin = error_body_.find(kBegin), end = error_body_.find(kEnd, begin);
    if (end == std::string::npos || end == begin + kBegin.size()) return fmt::format("status {}", status);
    const size_t code = begin + kBegin.size();
    return fmt::format("status {}, {}", status, error_body_.substr(code, std::min<size_t>(64, end - code)));
  }

  [[noreturn]] void refuse(CURLcode code) const {
    const char* own = error_text_.c_str();
    const std::string& name = place_.shown;
    const std::string reason = *own ? own : curl().easy_strerror(code);
    if (is_among(kTransient, code)) {
      const char* what = code == CURLE_OPERATION_TIMEDOUT ? "the server does not answer in time"
                                                          : "the connection broke off";
      throw Transient{failed("{}: {}: {}", name, what, reason)};
    }
    if (code == CURLE_URL_MALFORMAT) throw usage_error("{}: is no URL: {}", name, reason);
    if (reason.find("HTTP/0.9") != std::string::npos)
      throw bad_input("{}: the server's answer is not HTTP, or older than HTTP/1.0", name);
    if (code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_TOO_MANY_REDIRECTS)
      throw bad_input("{}: the server sends elsewhere, where it is not followed: {}", name, reason);
    if (is_among(kUnsafe, code))
      throw failed("{}: there is no safe connection to the server: {}", name, reason);
    throw failed("{}: the server cannot be reached: {}", name, reason);
  }

  FarPlace place_;
  HttpPatience patience_;
  std::string error_text_, error_body_;
  std::unique_ptr<CURL, Closer> handle_;  // has the address of error_text_
  uint64_t requests_ = 0;
};

/// Headers that go with signed requests. content: the SHA-256 of the body, which is signed too.
std::vector<std::string> s3_headers(const FarPlace& place, const std::string& content) {
  std::vector<std::string> headers;
  if (place.signature.empty()) return headers;
  headers.push_back("x-amz-content-sha256: " + content);
  if (!place.session_token.empty()) headers.push_back("x-amz-security-token: " + place.session_token);
  return headers;
}

}  // namespace

void require_http(const FarPlace& place) { const HttpConnection connection(place, {}); }

// Reading -------------------------------------------------------------------------------------------

class HttpReader final : public HttpFile {
 public:
  HttpReader(FarPlace place, HttpPatience patience) : connection_(std::move(place), patience) {}

  const std::string& name() const override { return connection_.place().shown; }
  uint64_t size() const override { return size_; }
  uint64_t requests() const override { return connection_.requests(); }
  uint64_t bytes() const override { return bytes_; }
  std::vector<std::byte> begin(uint64_t limit) override {
    return connection_.with_retries([&] { return get(0, limit); });
  }
  std::vector<std::byte> read(uint64_t position, uint64_t count) override {
    if (count == 0) return {};
    return connection_.with_retries([&] { return get(position, count); });
  }

 private:
  Error changed() const {
    return bad_input("{}: changed on the server between two requests; run the command again", name());
  }

  /// True for a strong ETag: servers never treat weak ones as matching.
  bool can_match() const { return !etag_.empty() && !etag_.starts_with("W/"); }

  /// True if the answer is of the same file state as earlier reads.
  bool same(const ContentRange& range) const {
    return range.size == size_ && connection_.field("etag") == etag_ &&
           (!etag_.empty() || connection_.field("last-modified") == modified_);
  }

  /// SHA-256 of an empty body.
  static constexpr char kDigestOfNothing[] =
      "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

  /// Bytes [first, first + count), or as many of them as exist. One attempt.
  std::vector<std::byte> get(uint64_t first, uint64_t count) {
    std::vector<std::byte> body;
    body.reserve(count);
    bool too_many = false;
    const auto take = [&](long status, std::span<const std::byte> more) {
      if (status != 206) return false;
      too_many = more.size() > count - body.size();
      if (too_many) return false;
      body.insert(body.end(), more.begin(), more.end());
      bytes_ += more.size();
      return true;
    };
    const std::string wanted = fmt::format("{}-{}", first, first + count - 1);
    std::vector<std::string> headers = s3_headers(connection_.place(), kDigestOfNothing);
    if (begun_ && can_match()) headers.push_back("If-Match: " + etag_);
    const long status = connection_.perform(headers, take, [&] {
      connection_.set(CURLOPT_HTTPGET, 1L);
      connection_.set(CURLOPT_RANGE, wanted.c_str());
    });
    check(status, first, count, body.size(), too_many);
    return body;
  }

  void check(long status, uint64_t first, uint64_t count, uint64_t got, bool too_many) {
    if (begun_ && (status == 412 || status == 416 || status == 404)) throw changed();
    if (status == 200)
      throw bad_input("{}: the server gives only the whole file, no parts of it; download it first", name());
    if (status == 416) throw bad_input("{}: is empty", name());
    if (status != 206) throw bad_input("{}", connection_.unwanted(status, "read"));
    const auto range = content_range(connection_.field("content-range"));
    if (!range)
      throw bad_input("{}: the server does not say which part of the file it sent (Content-Range: '{}')",
                      name(), connection_.field("content-range"));
    if (range->size > HttpFile::kMaxBytes)
      throw bad_input("{}: the server says that the file has {} bytes; up to {} TiB are possible", name(),
                      range->size, HttpFile::kMaxBytes >> 40);
    if (begun_ && !same(*range)) throw changed();
    const uint64_t last = std::min(first + count, range->size) - 1;
    if (range->first != first || range->last != last || too_many)
      throw bad_input("{}: the server sent other bytes than were asked for ({} to {}, not {} to {})", name(),
                      range->first, range->last, first, last);
    if (got != last - first + 1)
      throw Transient{
          failed("{}: the connection broke off: {} of {} bytes came", name(), got, last - first + 1)};
    if (begun_) return;
    begun_ = true;
    size_ = range->size;
    etag_ = connection_.field("etag");
    modified_ = connection_.field("last-modified");
  }

  HttpConnection connection_;
  bool begun_ = false;
  uint64_t size_ = 0, bytes_ = 0;
  std::string etag_, modified_;
};

std::unique_ptr<HttpFile> HttpFile::at(FarPlace place, HttpPatience patience) {
  return std::make_unique<HttpReader>(std::move(place), patience);
}

// Writing -------------------------------------------------------------------------------------------

bool upload(const FarPlace& place, const std::filesystem::path& file, bool overwrite, HttpPatience patience) {
  constexpr uint64_t kMaxOfS3 = uint64_t{5} << 30;
  const MappedFile sent(file);
  const auto bytes = sent.bytes();
  if (place.s3 && bytes.size() > kMaxOfS3)
    throw failed("{}: S3 takes at most 5 GiB at once, and {} has {} bytes; upload it by a program of AWS's",
                 place.shown, file.string(), bytes.size());
  HttpConnection connection(place, patience);
  connection.set(CURLOPT_FOLLOWLOCATION, 0L);  // a redirected PUT may become a GET
  // TLS protects the bytes in transit. Without it they are part of the signature.
  std::string content = "UNSIGNED-PAYLOAD";
  if (!place.signature.empty() && !place.url.starts_with("https://")) {
    Sha256 digest;
    digest.add(bytes);
    content = digest.hexadecimal();
  }
  std::vector<std::string> headers = s3_headers(place, content);
  headers.emplace_back("Content-Type: application/octet-stream");
  if (!overwrite) headers.emplace_back("If-None-Match: *");
  bool again = false;
  return connection.with_retries([&] {
    const bool may_be_there = std::exchange(again, true);
    const auto ignore = [](long, std::span<const std::byte>) { return true; };
    const long status = connection.perform(headers, ignore, [&] {
      connection.set(CURLOPT_CUSTOMREQUEST, "PUT");
      connection.set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(bytes.size()));
      connection.set(CURLOPT_POSTFIELDS, bytes.empty() ? "" : reinterpret_cast<const char*>(bytes.data()));
    });
    if (status >= 200 && status < 300) return true;
    if (!overwrite && status == 412 && may_be_there)
      throw failed("{}: is there now; an attempt whose answer was lost may have stored it", place.shown);
    if (!overwrite && status == 412) return false;
    if (!overwrite && status == 501)
      throw failed("{}: the server cannot tell whether the file is there; --overwrite replaces it if it is",
                   place.shown);
    throw failed("{}", connection.unwanted(status, "write"));
  });
}

#endif

}  // namespace kvcodec
