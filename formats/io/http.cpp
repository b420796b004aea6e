#include "formats/io/http.hpp"

#include <cstdlib>

#include "lib/core/error.hpp"
#include "lib/core/number_text.hpp"

#ifdef KVCODEC_CURL

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include <curl/curl.h>
#include <dlfcn.h>

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

struct HttpFile::Impl {};

void require_http(const FarPlace& place) {
  throw usage_error(
      "{}: this kvcodec was built without libcurl, so it reaches no servers; build it with -DKVCODEC_CURL=ON, or "
      "download the file",
      place.shown);
}

HttpFile::HttpFile(FarPlace place, HttpPatience) { require_http(place); }
HttpFile::~HttpFile() = default;
const std::string& HttpFile::name() const { throw failed("no libcurl"); }
std::vector<std::byte> HttpFile::begin(uint64_t) { throw failed("no libcurl"); }
std::vector<std::byte> HttpFile::read(uint64_t, uint64_t) { throw failed("no libcurl"); }
uint64_t HttpFile::size() const { return 0; }
uint64_t HttpFile::requests() const { return 0; }
uint64_t HttpFile::bytes() const { return 0; }
bool upload(const FarPlace& place, const std::filesystem::path&, bool, HttpPatience) {
  require_http(place);
  return false;
}

#else

namespace {

// The library ---------------------------------------------------------------------------------------

/// What is called of libcurl. Its functions are looked up by name, so that the program is not linked with it and with the
/// two dozen libraries that it needs.
struct CurlLibrary {
  decltype(&::curl_global_init) global_init = nullptr;
  decltype(&::curl_easy_init) easy_init = nullptr;
  decltype(&::curl_easy_setopt) easy_setopt = nullptr;
  decltype(&::curl_easy_perform) easy_perform = nullptr;
  decltype(&::curl_easy_getinfo) easy_getinfo = nullptr;
  decltype(&::curl_easy_strerror) easy_strerror = nullptr;
  decltype(&::curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&::curl_slist_append) slist_append = nullptr;
  decltype(&::curl_slist_free_all) slist_free_all = nullptr;
  std::string missing;  ///< why it cannot be used; empty = it can

  CurlLibrary() {
    void* library = nullptr;
    // Debian's build with OpenSSL, and that with GnuTLS, which has the same interface.
    for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4"})
      if (!library) library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      missing = "libcurl.so.4 is not installed (Debian's package libcurl4)";
      return;
    }
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)> >(::dlsym(library, name));
      if (!function) missing = fmt::format("libcurl has no function {}", name);
    };
    find(global_init, "curl_global_init");
    find(easy_init, "curl_easy_init");
    find(easy_setopt, "curl_easy_setopt");
    find(easy_perform, "curl_easy_perform");
    find(easy_getinfo, "curl_easy_getinfo");
    find(easy_strerror, "curl_easy_strerror");
    find(easy_cleanup, "curl_easy_cleanup");
    find(slist_append, "curl_slist_append");
    find(slist_free_all, "curl_slist_free_all");
    if (missing.empty() && global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) missing = "libcurl cannot begin";
  }
};

const CurlLibrary& curl() {
  static const CurlLibrary& library = *new CurlLibrary;  // as long as anything that could call it
  return library;
}

// One request ---------------------------------------------------------------------------------------

/// What a server said before the body.
struct AnswerHead {
  long status = 0;
  std::string etag, modified, range, wait, region;

  void take(std::string_view line) {
    if (line.starts_with("HTTP/")) *this = {};  // that of a redirection, or of "100 Continue", is over
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return;
    std::string name(line.substr(0, colon));
    std::ranges::transform(name, name.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    const size_t first = line.find_first_not_of(" \t", colon + 1);
    if (first == std::string_view::npos) return;
    const std::string value(line.substr(first, line.find_last_not_of(" \t\r\n") - first + 1));
    if (name == "etag") etag = value;
    if (name == "last-modified") modified = value;
    if (name == "content-range") range = value;
    if (name == "retry-after") wait = value;
    if (name == "x-amz-bucket-region") region = value;
  }
};

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

/// An error that may be gone when the request is made again.
struct Transient {
  Error error;
  std::chrono::milliseconds wait{0};  // that the server asked for
};

bool is_transient(CURLcode code) {
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
      return true;
    default:
      return false;
  }
}

bool is_busy(long status) {
  return status == 429 || status == 500 || status == 502 || status == 503 || status == 504;
}

/// What S3 calls an error: "NoSuchKey" of "<Error><Code>NoSuchKey</Code>…".
std::string code_in(const std::string& body) {
  constexpr std::string_view kBegin = "<Code>", kEnd = "</Code>";
  const size_t begin = body.find(kBegin), end = body.find(kEnd, begin);
  if (begin == std::string::npos || end == std::string::npos) return "";
  return body.substr(begin + kBegin.size(), std::min<size_t>(64, end - begin - kBegin.size()));
}

/// A handle of libcurl, set up for a place; requests of one handle share its connection.
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

  /// Takes bytes of a good answer; false breaks it off.
  using Take = std::function<bool(const AnswerHead& head, std::span<const std::byte> bytes)>;

  /// What once() returns, which is called again where it throws Transient.
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

  /// Makes a request with what prepare() sets and these headers, and returns what came before the body. Bodies of good answers go to
  /// take(). Throws Transient, or Error.
  AnswerHead perform(const std::vector<std::string>& headers, const Take& take,
                     const std::function<void()>& prepare) {
    Listener listener{this, take};
    set(CURLOPT_HEADERFUNCTION, &Listener::on_header);
    set(CURLOPT_HEADERDATA, static_cast<void*>(&listener));
    set(CURLOPT_WRITEFUNCTION, &Listener::on_body);
    set(CURLOPT_WRITEDATA, static_cast<void*>(&listener));
    prepare();
    const HeaderList list(headers);
    set(CURLOPT_HTTPHEADER, list.get());
    ++requests_;
    error_text_.front() = '\0';
    const CURLcode code = curl().easy_perform(handle_.get());
    curl().easy_setopt(handle_.get(), CURLOPT_HTTPHEADER, static_cast<curl_slist*>(nullptr));
    curl().easy_getinfo(handle_.get(), CURLINFO_RESPONSE_CODE, &listener.head.status);
    if (listener.thrown) std::rethrow_exception(listener.thrown);
    if (code != CURLE_OK && !listener.broken_off) refuse(code);
    if (is_busy(listener.head.status))
      throw Transient{failed("{}: the server is busy or out of order ({})", place_.shown,
                             status_text(listener.head, listener.error_body)),
                      wait_of(listener.head)};
    error_body_ = std::move(listener.error_body);
    return std::move(listener.head);
  }

  /// "403, AccessDenied"
  std::string status_text(const AnswerHead& head) const { return status_text(head, error_body_); }

  /// What an answer says that is none of those that the caller knows. action: "read" or "write".
  std::string unwanted(const AnswerHead& head, const char* action) const {
    const std::string& name = place_.shown;
    const std::string status = status_text(head);
    if (head.status == 401 || head.status == 403) {
      if (place_.s3 && place_.key_id.empty())
        return fmt::format(
            "{}: the server does not let everybody {} it ({}); AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY say "
            "who asks",
            name, action, status);
      return fmt::format("{}: the server does not let you {} it ({})", name, action, status);
    }
    if (head.status == 404 || head.status == 410)
      return fmt::format("{}: there is no such file on the server ({})", name, status);
    if (place_.s3 && !head.region.empty())
      return fmt::format("{}: the bucket lies in the region {} ({}); set AWS_REGION", name, head.region,
                         status);
    return fmt::format("{}: the server's answer is not what was asked for ({})", name, status);
  }

 private:
  /// A list of headers as libcurl wants it.
  class HeaderList {
   public:
    explicit HeaderList(const std::vector<std::string>& lines) {
      for (const std::string& line : lines) {
        curl_slist* longer = curl().slist_append(list_, line.c_str());
        if (!longer) {
          curl().slist_free_all(list_);
          throw std::bad_alloc();
        }
        list_ = longer;
      }
    }
    ~HeaderList() { curl().slist_free_all(list_); }
    HeaderList(const HeaderList&) = delete;
    HeaderList& operator=(const HeaderList&) = delete;
    curl_slist* get() const { return list_; }

   private:
    curl_slist* list_ = nullptr;
  };

  struct Closer {
    void operator()(CURL* handle) const { curl().easy_cleanup(handle); }
  };

  /// libcurl, which is C, calls these functions: no exception may pass through it.
  struct Listener {
    HttpConnection* connection;
    const Take& take;
    AnswerHead head = {};
    std::string error_body = {};
    bool broken_off = false;
    std::exception_ptr thrown = nullptr;

    static size_t on_header(char* bytes, size_t size, size_t count, void* self) {
      return static_cast<Listener*>(self)->listen(size * count, [&](Listener& own) {
        own.head.take({bytes, size * count});
      });
    }
    static size_t on_body(char* bytes, size_t size, size_t count, void* self) {
      return static_cast<Listener*>(self)->listen(
          size * count, [&](Listener& own) { own.take_body(std::string_view(bytes, size * count)); });
    }

    /// Returns `all`, or 0 to break the answer off.
    template <class Body>
    size_t listen(size_t all, const Body& body) noexcept {
      try {
        body(*this);
      } catch (...) {
        thrown = std::current_exception();
        broken_off = true;
      }
      return broken_off ? 0 : all;
    }

    void take_body(std::string_view bytes) {
      curl().easy_getinfo(connection->handle_.get(), CURLINFO_RESPONSE_CODE, &head.status);
      constexpr size_t kMaxErrorBytes = 4096;
      if (head.status >= 300) {
        error_body.append(bytes.substr(0, kMaxErrorBytes - error_body.size()));
        broken_off = error_body.size() == kMaxErrorBytes;
      } else {
        broken_off = !take(head, std::as_bytes(std::span(bytes)));
      }
    }
  };

  /// What is the same for all requests.
  void prepare_common() {
    set(CURLOPT_URL, place_.url.c_str());
    static const std::string agent = std::string("kvcodec/") + kVersion;
    set(CURLOPT_USERAGENT, agent.c_str());
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_ERRORBUFFER, error_text_.data());
    const auto seconds = static_cast<long>(patience_.timeout.count());
    set(CURLOPT_CONNECTTIMEOUT, std::min(seconds, 30L));
    set(CURLOPT_LOW_SPEED_LIMIT, 1L);  // bytes in a second
    set(CURLOPT_LOW_SPEED_TIME, seconds);
    // A server may send elsewhere, as the hubs of models do, but from https only to https. Signed requests are of one place.
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

  static std::chrono::milliseconds wait_of(const AnswerHead& head) {
    return std::chrono::seconds(std::min(number_in<unsigned>(head.wait).value_or(0), 3600U));
  }

  static std::string status_text(const AnswerHead& head, const std::string& body) {
    const std::string code = code_in(body);
    return code.empty() ? fmt::format("status {}", head.status)
                        : fmt::format("status {}, {}", head.status, code);
  }

  [[noreturn]] void refuse(CURLcode code) const {
    const char* own = error_text_.c_str();
    const std::string reason = *own ? own : curl().easy_strerror(code);
    if (is_transient(code)) {
      const char* what = code == CURLE_OPERATION_TIMEDOUT ? "the server does not answer in time"
                                                          : "the connection broke off";
      throw Transient{failed("{}: {}: {}", place_.shown, what, reason)};
    }
    switch (code) {
      case CURLE_URL_MALFORMAT:
        throw usage_error("{}: is no URL: {}", place_.shown, reason);
      case CURLE_UNSUPPORTED_PROTOCOL:
      case CURLE_TOO_MANY_REDIRECTS:
        throw bad_input("{}: the server sends elsewhere, where it is not followed: {}", place_.shown, reason);
      case CURLE_PEER_FAILED_VERIFICATION:
      case CURLE_SSL_CONNECT_ERROR:
      case CURLE_SSL_CERTPROBLEM:
      case CURLE_SSL_CACERT_BADFILE:
      case CURLE_SSL_ISSUER_ERROR:
        throw failed("{}: there is no safe connection to the server: {}", place_.shown, reason);
      default:
        throw failed("{}: the server cannot be reached: {}", place_.shown, reason);
    }
  }

  FarPlace place_;
  HttpPatience patience_;
  std::string error_text_, error_body_;
  std::unique_ptr<CURL, Closer> handle_;  // has the address of error_text_
  uint64_t requests_ = 0;
};

/// Headers that go with signed requests. content: its SHA-256, which is signed too.
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

struct HttpFile::Impl {
  HttpConnection connection;
  bool begun = false;
  uint64_t size = 0, bytes = 0;
  std::string etag, modified;

  Impl(FarPlace place, HttpPatience patience) : connection(std::move(place), patience) {}

  const std::string& name() const { return connection.place().shown; }

  Error changed() const {
    return bad_input("{}: changed on the server between two requests; run the command again", name());
  }

  /// A strong one: servers compare others as if they never matched.
  bool can_match() const { return !etag.empty() && !etag.starts_with("W/"); }

  /// Whether the answer is of what was read before.
  bool same(const AnswerHead& head, const ContentRange& range) const {
    return range.size == size && head.etag == etag && (!etag.empty() || head.modified == modified);
  }

  /// Bytes [first, first + count), or as many of them as there are. One attempt.
  std::vector<std::byte> get(uint64_t first, uint64_t count) {
    std::vector<std::byte> body;
    body.reserve(count);
    bool too_many = false;
    const auto take = [&](const AnswerHead& head, std::span<const std::byte> more) {
      if (head.status != 206) return false;
      too_many = more.size() > count - body.size();
      if (too_many) return false;
      body.insert(body.end(), more.begin(), more.end());
      bytes += more.size();
      return true;
    };
    const std::string wanted = fmt::format("{}-{}", first, first + count - 1);
    std::vector<std::string> headers = s3_headers(connection.place(), Sha256().hexadecimal());
    if (begun && can_match()) headers.push_back("If-Match: " + etag);
    const AnswerHead head = connection.perform(headers, take, [&] {
      connection.set(CURLOPT_HTTPGET, 1L);
      connection.set(CURLOPT_RANGE, wanted.c_str());
    });
    check(head, first, count, body.size(), too_many);
    return body;
  }

  void check(const AnswerHead& head, uint64_t first, uint64_t count, uint64_t got, bool too_many) {
    if (begun && (head.status == 412 || head.status == 416 || head.status == 404)) throw changed();
    if (head.status == 200)
      throw bad_input("{}: the server gives only the whole file, no parts of it; download it first", name());
    if (head.status == 416) throw bad_input("{}: is empty", name());
    if (head.status != 206) throw bad_input("{}", connection.unwanted(head, "read"));
    const auto range = content_range(head.range);
    if (!range)
      throw bad_input("{}: the server does not say which part of the file it sent (Content-Range: '{}')",
                      name(), head.range);
    if (range->size > HttpFile::kMostBytes)
      throw bad_input("{}: the server says that the file has {} bytes; up to {} TiB are possible", name(),
                      range->size, HttpFile::kMostBytes >> 40);
    if (begun && !same(head, *range)) throw changed();
    const uint64_t last = std::min(first + count, range->size) - 1;
    if (range->first != first || range->last != last || too_many)
      throw bad_input("{}: the server sent other bytes than were asked for ({} to {}, not {} to {})", name(),
                      range->first, range->last, first, last);
    if (got != last - first + 1)
      throw Transient{
          failed("{}: the connection broke off: {} of {} bytes came", name(), got, last - first + 1)};
    if (begun) return;
    begun = true;
    size = range->size;
    etag = head.etag;
    modified = head.modified;
  }
};

HttpFile::HttpFile(FarPlace place, HttpPatience patience)
    : impl_(std::make_unique<Impl>(std::move(place), patience)) {}
HttpFile::~HttpFile() = default;

const std::string& HttpFile::name() const { return impl_->name(); }
uint64_t HttpFile::size() const { return impl_->size; }
uint64_t HttpFile::requests() const { return impl_->connection.requests(); }
uint64_t HttpFile::bytes() const { return impl_->bytes; }

std::vector<std::byte> HttpFile::begin(uint64_t most) {
  return impl_->connection.with_retries([&] { return impl_->get(0, most); });
}

std::vector<std::byte> HttpFile::read(uint64_t position, uint64_t count) {
  if (count == 0) return {};
  return impl_->connection.with_retries([&] { return impl_->get(position, count); });
}

// Writing -------------------------------------------------------------------------------------------

namespace {

/// The file that is uploaded.
struct SentFile {
  explicit SentFile(const std::filesystem::path& file_path)
      : path(file_path), file(std::fopen(path.c_str(), "rbe")) {
    if (!file) throw failed("{}: {}", path.string(), std::strerror(errno));
  }
  ~SentFile() { std::fclose(file); }
  SentFile(const SentFile&) = delete;
  SentFile& operator=(const SentFile&) = delete;

  /// What body() returns. Throws an Error about this file in the place of one that came of it.
  template <class Body>
  auto checked(const Body& body) const {
    try {
      return body();
    } catch (const Error&) {
      if (error != 0) throw failed("{}: cannot be read: {}", path.string(), std::strerror(error));
      throw;
    }
  }

  std::string sha256() {
    Sha256 digest;
    std::vector<std::byte> block(size_t{1} << 20);
    while (const size_t got = std::fread(block.data(), 1, block.size(), file))
      digest.add(std::span(block).first(got));
    if (std::ferror(file)) throw failed("{}: cannot be read: {}", path.string(), std::strerror(errno));
    return digest.hexadecimal();
  }

  static size_t on_read(char* out, size_t size, size_t count, void* self) {
    auto& sent = *static_cast<SentFile*>(self);
    const size_t got = std::fread(out, 1, size * count, sent.file);
    if (!std::ferror(sent.file)) return got;
    sent.error = errno;
    return CURL_READFUNC_ABORT;
  }
  static int on_seek(void* self, curl_off_t offset, int origin) {
    return ::fseeko(static_cast<SentFile*>(self)->file, offset, origin) == 0 ? CURL_SEEKFUNC_OK
                                                                             : CURL_SEEKFUNC_FAIL;
  }

  std::filesystem::path path;
  std::FILE* file;
  int error = 0;  // errno of a read that failed
};

}  // namespace

bool upload(const FarPlace& place, const std::filesystem::path& file, bool overwrite, HttpPatience patience) {
  constexpr uint64_t kMostOfS3 = uint64_t{5} << 30;
  SentFile sent(file);
  const uint64_t size = std::filesystem::file_size(file);
  if (place.s3 && size > kMostOfS3)
    throw failed("{}: S3 takes at most 5 GiB at once, and {} has {} bytes; upload it by a program of AWS's",
                 place.shown, file.string(), size);
  HttpConnection connection(place, patience);
  connection.set(CURLOPT_FOLLOWLOCATION, 0L);  // a PUT that is sent elsewhere may become a GET
  // TLS guards the bytes on their way. Without it they are read twice, to be part of the signature.
  const bool open = !place.signature.empty() && !place.url.starts_with("https://");
  const std::string content = open ? sent.sha256() : "UNSIGNED-PAYLOAD";
  bool again = false;
  return connection.with_retries([&] {
    const bool may_be_there = std::exchange(again, true);
    std::rewind(sent.file);
    std::vector<std::string> headers = s3_headers(place, content);
    headers.emplace_back("Content-Type: application/octet-stream");
    if (!overwrite) headers.emplace_back("If-None-Match: *");
    const auto ignore = [](const AnswerHead&, std::span<const std::byte>) { return true; };
    const auto put = [&] {
      connection.set(CURLOPT_UPLOAD, 1L);
      connection.set(CURLOPT_READFUNCTION, &SentFile::on_read);
      connection.set(CURLOPT_READDATA, static_cast<void*>(&sent));
      connection.set(CURLOPT_SEEKFUNCTION, &SentFile::on_seek);
      connection.set(CURLOPT_SEEKDATA, static_cast<void*>(&sent));
      connection.set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(size));
    };
    const AnswerHead head = sent.checked([&] { return connection.perform(headers, ignore, put); });
    if (head.status >= 200 && head.status < 300) return true;
    if (!overwrite && head.status == 412 && may_be_there)
      throw failed("{}: is there now; an attempt whose answer was lost may have stored it", place.shown);
    if (!overwrite && head.status == 412) return false;
    if (!overwrite && head.status == 501)
      throw failed("{}: the server cannot tell whether the file is there; --overwrite replaces it if it is",
                   place.shown);
    throw failed("{}", connection.unwanted(head, "write"));
  });
}

#endif

}  // namespace kvcodec
