// Files on servers: names, requests that fail and are made again or refused, what is fetched and how often, uploads.
#include <numeric>
#include <set>

#include "formats/far_file.hpp"
#include "formats/far_place.hpp"
#include "formats/http.hpp"
#include "lib/core/rng.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/loopback_server.hpp"
#include "test/test.hpp"

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

constexpr HttpPatience kHasty = {
    .attempts = 3, .pause = std::chrono::milliseconds(1), .timeout = std::chrono::seconds(1)};
constexpr uint64_t kPage = 65536;

/// Without what a user's environment says of servers.
class PlainEnvironment {
 public:
  PlainEnvironment() {
    for (const char* name :
         {"http_proxy", "https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY", "AWS_ACCESS_KEY_ID",
          "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION",
          "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "KVCODEC_TIMEOUT"})
      ::unsetenv(name);
  }
};

/// Whether this program was built with libcurl, and finds it.
bool reaches_servers() {
  try {
    require_http({.url = "http://localhost/", .shown = "x"});
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::string random_text(size_t size) {
  Rng rng(1);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(rng.below(256));
  return text;
}

/// Kind and message of the error that an action throws, the server's address in it as URL.
std::string fault_of(const std::string& url, const std::function<void()>& action) {
  constexpr const char* kKinds[] = {"failed", "usage", "bad input", "no device"};
  try {
    action();
  } catch (const Error& error) {
    std::string message = error.what();
    for (size_t at = 0; (at = message.find(url)) != std::string::npos;)
      message.replace(at, url.size(), "URL");
    CHECK_EQ(message.find('\n'), std::string::npos);
    return fmt::format("{}: {}", kKinds[static_cast<size_t>(error.kind())], message);
  }
  return "nothing";
}

/// The first and the second request for a file.
std::string fault_of_reading(const LoopbackServer::Answer& answer) {
  const LoopbackServer server(answer);
  const std::string url = server.url("a.h5");
  return fault_of(url, [&] {
    HttpFile file({.url = url, .shown = url}, kHasty);
    std::vector<std::byte> bytes = file.begin(100);
    file.read(100, bytes);
  });
}

std::unique_ptr<HttpFile> open_http(const std::string& url) {
  return std::make_unique<HttpFile>(FarPlace{.url = url, .shown = url}, kHasty);
}

std::string text_at(FarFile& file, uint64_t position, uint64_t size) {
  std::string text(size, '\0');
  file.read(position, std::as_writable_bytes(std::span(text)));
  return text;
}

/// "0-99" of each request.
std::vector<std::string> ranges_of(const LoopbackServer& server) {
  std::vector<std::string> ranges;
  for (const std::string& request : server.requests()) {
    const size_t begin = request.find("bytes=") + 6;
    ranges.push_back(request.substr(begin, request.find('\r', begin) - begin));
  }
  return ranges;
}

std::string pages(uint64_t first, uint64_t end) {
  return fmt::format("{}-{}", first * kPage, end * kPage - 1);
}

}  // namespace

TEST_CASE("far: what is the name of a file on a server, and what messages show of it") {
  for (const char* name : {"http://a/b", "https://a/b", "s3://a/b"}) CHECK(is_far(name));
  for (const char* name : {"", "-", "a.h5", "http:/a", "ftp://a/b", "./http://a"}) CHECK_FALSE(is_far(name));
  CHECK_EQ(shown_name("https://me:word@host:1/a@b.h5?X-Amz-Signature=1#x"), "https://host:1/a@b.h5");
  CHECK_EQ(shown_name("https://host/a.h5"), "https://host/a.h5");
  CHECK_EQ(shown_name("s3://bucket/a?b"), "s3://bucket/a?b");
  CHECK_EQ(shown_name("a?b"), "a?b");
}

TEST_CASE("far: texts show URLs without secrets") {
  CHECK_EQ(shown_text("https://u:p@h/a.h5?s=1: no such document 'https://h/b?s=2', nor c?d"),
           "https://h/a.h5: no such document 'https://h/b', nor c?d");
  CHECK_EQ(shown_text("http://h:1/a.h5: http://"), "http://h:1/a.h5: http://");
  CHECK_EQ(shown_text(""), "");
}

TEST_CASE("far: what names of S3 mean") {
  const PlainEnvironment plain;
  FarPlace place = far_place("s3://bucket/a folder/\xc3\xbc+1~.h5");
  CHECK_EQ(place.url, "https://bucket.s3.us-east-1.amazonaws.com/a%20folder/%C3%BC%2B1~.h5");
  CHECK(place.signature.empty());
  CHECK_EQ(far_place("s3://with.dots/k").url, "https://s3.us-east-1.amazonaws.com/with.dots/k");
  {
    const Environment region("AWS_DEFAULT_REGION", "eu-central-1"), id("AWS_ACCESS_KEY_ID", "id"),
        secret("AWS_SECRET_ACCESS_KEY", "secret"), token("AWS_SESSION_TOKEN", "token");
    place = far_place("s3://bucket/k");
    CHECK_EQ(place.url, "https://bucket.s3.eu-central-1.amazonaws.com/k");
    CHECK_EQ(place.signature, "aws:amz:eu-central-1:s3");
    CHECK_EQ(place.session_token, "token");
    const Environment endpoint("AWS_ENDPOINT_URL", "http://localhost:9000/");
    CHECK_EQ(far_place("s3://bucket/k").url, "http://localhost:9000/bucket/k");
  }
  const auto fault = [](const std::string& name) { return fault_of("-", [&] { (void)far_place(name); }); };
  CHECK_EQ(fault("s3://bucket"), "usage: 's3://bucket' names no object; it must be s3://BUCKET/KEY");
  CHECK_EQ(fault("s3:///key"), "usage: 's3:///key' names no object; it must be s3://BUCKET/KEY");
  CHECK_EQ(fault("s3://bu?cket/k"), "usage: 's3://bu?cket/k' names no object; it must be s3://BUCKET/KEY");
  CHECK_EQ(fault("https:///x"), "usage: 'https:///x' names no server; it must be https://HOST/PATH");
  const Environment id("AWS_ACCESS_KEY_ID", "id");
  CHECK_EQ(fault("s3://bucket/k"),
           "usage: s3://bucket/k: of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY only one is set");
}

TEST_CASE("far: what servers say of a file is one sentence") {
  if (!reaches_servers()) return;
  const PlainEnvironment plain;
  const std::string content = random_text(1000);
  const auto always = [](const std::string& answer) {
    return fault_of_reading([answer](const std::string&, size_t) { return answer; });
  };
  /// The second request is answered so.
  const auto then = [&](const LoopbackServer::Answer& answer) {
    return fault_of_reading([&content, answer](const std::string& request, size_t before) {
      return before == 0 ? range_answer(request, content) : answer(request, before);
    });
  };
  CHECK_EQ(always(http_answer("404 Not Found", "")),
           "bad input: URL: there is no such file on the server (status 404)");
  CHECK_EQ(always(http_answer("403 Forbidden", "", "<Error><Code>AccessDenied</Code></Error>")),
           "bad input: URL: the server does not let you read it (status 403, AccessDenied)");
  CHECK_EQ(always(http_answer("200 OK", "", content)),
           "bad input: URL: the server gives only the whole file, no parts of it; download it first");
  CHECK_EQ(always(http_answer("416 Range Not Satisfiable", "Content-Range: bytes */0\r\n")),
           "bad input: URL: is empty");
  CHECK_EQ(always(http_answer("418 I'm a teapot", "")),
           "bad input: URL: the server's answer is not what was asked for (status 418)");
  CHECK_EQ(always(http_answer("206 Partial Content", "", content)),
           "bad input: URL: the server does not say which part of the file it sent (Content-Range: '')");
  CHECK_EQ(
      always(http_answer("206 Partial Content", "Content-Range: bytes 0-99/*\r\n", content.substr(0, 100))),
      "bad input: URL: the server does not say which part of the file it sent (Content-Range: 'bytes 0-99/*')");
  CHECK_EQ(always(http_answer("206 Partial Content", "Content-Range: bytes 1-100/1000\r\n",
                              content.substr(1, 100))),
           "bad input: URL: the server sent other bytes than were asked for (1 to 100, not 0 to 99)");
  CHECK_EQ(always(http_answer("206 Partial Content", "Content-Range: bytes 0-99/1000\r\n", content)),
           "bad input: URL: the server sent other bytes than were asked for (0 to 99, not 0 to 99)");

  const std::string changed =
      "bad input: URL: changed on the server between two requests; run the command again";
  CHECK_EQ(
      then([&](const std::string& request, size_t) { return range_answer(request, content, "\"two\""); }),
      changed);
  CHECK_EQ(then([&](const std::string& request, size_t) { return range_answer(request, content.substr(1)); }),
           changed);
  CHECK_EQ(then([](const std::string&, size_t) { return http_answer("412 Precondition Failed", ""); }),
           changed);
  CHECK_EQ(then([](const std::string&, size_t) { return http_answer("404 Not Found", ""); }), changed);
  CHECK_EQ(then([&](const std::string& request, size_t) { return range_answer(request, content); }),
           "nothing");
}

TEST_CASE("far: a strong ETag is asked for again, a weak one compared") {
  if (!reaches_servers()) return;
  const PlainEnvironment plain;
  const std::string content = random_text(1000);
  for (const char* tag : {"\"one\"", "W/\"one\""}) {
    const LoopbackServer server(
        [&](const std::string& request, size_t) { return range_answer(request, content, tag); });
    const auto file = open_http(server.url("x"));
    (void)file->begin(10);
    std::vector<std::byte> bytes(10);
    file->read(500, bytes);
    CHECK(std::memcmp(bytes.data(), content.data() + 500, bytes.size()) == 0);
    const auto requests = server.requests();
    CHECK_EQ(requests[0].find("If-Match"), std::string::npos);
    CHECK_EQ(requests[1].find(fmt::format("If-Match: {}\r\n", tag)) != std::string::npos, *tag == '"');
  }
}

TEST_CASE("far: a request that fails on the way is made again, and not for ever") {
  if (!reaches_servers()) return;
  const PlainEnvironment plain;
  const std::string content = random_text(1000);
  const auto with_faults = [&](size_t faults, const std::string& fault) {
    return fault_of_reading([&content, faults, fault](const std::string& request, size_t before) {
      return before < faults ? fault : range_answer(request, content);
    });
  };
  const std::string busy = http_answer("503 Slow Down", "Retry-After: 0\r\n"), none,
                    half =
                        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-99/1000\r\n"
                        "Content-Length: 100\r\nConnection: close\r\n\r\nabc";
  for (const std::string& fault : {busy, none, half}) {
    CHECK_EQ(with_faults(2, fault), "nothing");
    CHECK_NE(with_faults(3, fault), "nothing");
  }
  CHECK_EQ(with_faults(3, busy),
           "failed: URL: the server is busy or out of order (status 503) (tried 3 times)");
  CHECK(with_faults(3, none).starts_with("failed: URL: the connection broke off: "));
  CHECK(with_faults(3, half).starts_with("failed: URL: the connection broke off: "));
  CHECK(with_faults(3, half).ends_with("(tried 3 times)"));

  std::string closed;
  {
    const LoopbackServer server([](const std::string&, size_t) { return std::string(); });
    closed = server.url("x");
  }
  CHECK(fault_of(closed, [&] {
          (void)open_http(closed)->begin(1);
        }).starts_with("failed: URL: the server cannot be reached: "));
}

TEST_CASE("far: a server that does not answer is not waited for for ever") {
  if (!reaches_servers()) return;
  const PlainEnvironment plain;
  const LoopbackServer server([](const std::string&, size_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    return std::string();
  });
  const std::string url = server.url("x");
  HttpPatience once = kHasty;
  once.attempts = 1;
  CHECK(fault_of(url, [&] {
          (void)HttpFile({.url = url, .shown = url}, once).begin(1);
        }).starts_with("failed: URL: the server does not answer in time: "));
  const Environment wrong("KVCODEC_TIMEOUT", "soon");
  CHECK_EQ(fault_of(url, [&] { HttpFile({.url = url, .shown = url}); }),
           "usage: KVCODEC_TIMEOUT is 'soon'; it must be seconds, from 1 to 3600");
}

TEST_CASE("far: bytes are those of the file, and hardly any is fetched twice") {
  if (!reaches_servers()) return;
  const PlainEnvironment plain;
  const std::string content = random_text(40 * kPage + 1234);
  const LoopbackServer server(
      [&](const std::string& request, size_t) { return range_answer(request, content); });
  FarFile file(open_http(server.url("x")));
  CHECK_EQ(file.size(), content.size());
  Rng rng(2);
  for (int i = 0; i < 300; ++i) {
    const uint64_t first = rng.below(content.size()),
                   size = rng.below(std::min<uint64_t>(3 * kPage, content.size() - first)) + 1;
    REQUIRE(text_at(file, first, size) == content.substr(first, size));
  }
  CHECK(text_at(file, 0, content.size()) == content);
  CHECK_EQ(file.requests(), server.requests().size());
  CHECK(file.bytes() < content.size() + content.size() / 4);
  CHECK(text_at(file, 5, 30 * kPage) == content.substr(5, 30 * kPage));
  CHECK_EQ(file.requests(), server.requests().size());
  CHECK_EQ(fault_of(server.url("x"), [&] { (void)text_at(file, content.size(), 1); }),
           fmt::format("bad input: URL: the file ends before its byte {}", content.size() + 1));
}

TEST_CASE("far: what is read in a row is read ahead, what is expected is one request") {
  if (!reaches_servers()) return;
  const PlainEnvironment plain;
  const std::string content = random_text(200 * kPage);
  const LoopbackServer server(
      [&](const std::string& request, size_t) { return range_answer(request, content); });
  FarFile file(open_http(server.url("x")));
  for (uint64_t page = 10; page < 40; ++page) (void)text_at(file, page * kPage, 8);
  CHECK_EQ(ranges_of(server), std::vector<std::string>{pages(0, 2), pages(10, 11), pages(11, 13),
                                                       pages(13, 19), pages(19, 37), pages(37, 91)});
  (void)text_at(file, 120 * kPage, 8);  // elsewhere: alone
  CHECK_EQ(ranges_of(server).back(), pages(120, 121));
  file.expect({160 * kPage + 5, 166 * kPage});
  CHECK_EQ(file.requests(), 7);
  (void)text_at(file, 163 * kPage, 8);
  CHECK_EQ(ranges_of(server).back(), pages(160, 166));
  (void)text_at(file, 160 * kPage, 6 * kPage);
  CHECK_EQ(file.requests(), 8);
  file.expect({164 * kPage, 180 * kPage});
  (void)text_at(file, 175 * kPage, 8);
  CHECK_EQ(ranges_of(server).back(), pages(166, 180));  // of the rest
}

TEST_CASE("far: the end of a file is one request, unless more is known") {
  if (!reaches_servers()) return;
  const PlainEnvironment plain;
  const std::string content = random_text(100 * kPage);
  const LoopbackServer server(
      [&](const std::string& request, size_t) { return range_answer(request, content); });
  FarFile file(open_http(server.url("x")));
  (void)text_at(file, 99 * kPage, 8);
  FarFile other(open_http(server.url("x")));
  other.expect({90 * kPage, 92 * kPage});
  (void)text_at(other, 91 * kPage, 8);
  (void)text_at(other, 99 * kPage, 8);
  CHECK_EQ(ranges_of(server),
           std::vector<std::string>{pages(0, 2), pages(84, 100), pages(0, 2), pages(90, 92), pages(84, 100)});
}

TEST_CASE("far: after an error nothing more is asked for") {
  if (!reaches_servers()) return;
  const PlainEnvironment plain;
  const std::string content = random_text(100 * kPage);
  const LoopbackServer server([&](const std::string& request, size_t before) {
    return before == 0 ? range_answer(request, content) : http_answer("403 Forbidden", "");
  });
  FarFile file(open_http(server.url("x")));
  const auto fault = [&] { return fault_of(server.url("x"), [&] { (void)text_at(file, 50 * kPage, 1); }); };
  CHECK_EQ(fault(), "bad input: URL: the server does not let you read it (status 403)");
  CHECK_EQ(fault(), "bad input: URL: the server does not let you read it (status 403)");
  CHECK_EQ(server.requests().size(), 2);
}

TEST_CASE("far: a file is uploaded whole, over another one only if that is wanted") {
  if (!reaches_servers()) return;
  const PlainEnvironment plain;
  const Folder folder;
  const std::string content = random_text(300000);
  std::ofstream(folder / "a.h5", std::ios::binary) << content;
  const auto send = [&](const LoopbackServer::Answer& answer, bool overwrite,
                        std::vector<std::string>* requests) {
    const LoopbackServer server(answer);
    const std::string url = server.url("x.h5");
    bool stored = false;
    const std::string fault = fault_of(
        url, [&] { stored = upload({.url = url, .shown = url}, folder / "a.h5", overwrite, kHasty); });
    if (requests) *requests = server.requests();
    return fault == "nothing" && !stored ? "it is there" : fault;
  };
  const auto always = [](const std::string& answer) {
    return [answer](const std::string&, size_t) { return answer; };
  };
  for (const bool overwrite : {false, true}) {
    std::vector<std::string> requests;
    CHECK_EQ(send(
                 [](const std::string&, size_t before) {
                   return before == 0 ? http_answer("503 Later", "") : http_answer("200 OK", "");
                 },
                 overwrite, &requests),
             "nothing");
    REQUIRE_EQ(requests.size(), 2);
    CHECK(requests.back().starts_with("PUT /x.h5 HTTP/1.1\r\n"));
    CHECK(requests.back().ends_with("\r\n\r\n" + content));
    CHECK_EQ(requests.back().find("If-None-Match: *\r\n") == std::string::npos, overwrite);
  }
  CHECK_EQ(send(always(http_answer("412 Precondition Failed", "")), false, nullptr), "it is there");
  CHECK_EQ(send(always(http_answer("501 Not Implemented", "")), false, nullptr),
           "failed: URL: the server cannot tell whether the file is there; --overwrite replaces it if it is");
  CHECK_EQ(send(always(http_answer("403 Forbidden", "")), true, nullptr),
           "failed: URL: the server does not let you write it (status 403)");
  CHECK_EQ(send(always(http_answer("405 Method Not Allowed", "")), true, nullptr),
           "failed: URL: the server's answer is not what was asked for (status 405)");
}
