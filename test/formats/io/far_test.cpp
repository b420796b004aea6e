// Files on servers: names, requests that fail and are made again or refused, what is fetched and how often, files of HDF5, uploads.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "formats/hdf5/hdf5.hpp"
#include "formats/io/byte_source.hpp"
#include "formats/io/http.hpp"
#include "formats/io/sha256.hpp"
#include "lib/core/rng.hpp"
#include "test/formats/edit.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/io/loopback_server.hpp"
#include "test/formats/samples.hpp"
#include "test/hdf5_blocks.hpp"
#include "test/test.hpp"

namespace far_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

constexpr HttpPatience kHasty = {
    .attempts = 3, .pause = std::chrono::milliseconds(1), .timeout = std::chrono::seconds(1)};
constexpr uint64_t kPage = 65536;

/// Clears the user's environment for servers.
class PlainEnvironment {
 public:
  PlainEnvironment() {
    for (const char* name : {"http_proxy", "https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY",
                             "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION",
                             "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE",
                             "CURL_CA_BUNDLE", "SSL_CERT_FILE", "KVCODEC_TIMEOUT"})
      ::unsetenv(name);
  }
};

constexpr char kNoServers[] = "kvcodec was built without libcurl, or does not find it";

/// True if this program was built with libcurl, and finds it.
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
  constexpr const char* kKinds[] = {"failed", "usage", "bad input", "no device", "internal"};
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

/// The fault of two requests for a file, if the server answers in that way.
std::string fault_of_reading(const LoopbackServer::Answer& answer) {
  const LoopbackServer server(answer);
  const std::string url = server.url("a.h5");
  return fault_of(url, [&] {
    const auto file = HttpFile::at({.url = url, .shown = url}, kHasty);
    (void)file->begin(100);
    (void)file->read(100, 100);
  });
}

std::unique_ptr<HttpFile> open_http(const std::string& url) {
  return HttpFile::at({.url = url, .shown = url}, kHasty);
}

std::string text_at(FarFile& file, uint64_t position, uint64_t size) {
  std::string text(size, '\0');
  file.read(position, std::as_writable_bytes(std::span(text)));
  return text;
}

/// A file of random bytes on a server.
struct Served {
  explicit Served(size_t size) : content(random_text(size)) {}
  FarFile far() const { return FarFile(open_http(server.url("x"))); }

  const PlainEnvironment plain;
  const std::string content;
  const LoopbackServer server{
      [this](const std::string& request, size_t) { return range_answer(request, content); }};
};

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

TEST_CASE("far: names of files on servers, and how messages show them") {
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
  CHECK_EQ(shown_text("https://h/a?X-Amz-SignedHeaders=host;range&X-Amz-Signature=S"), "https://h/a");
  CHECK_EQ(shown_text("https://me:pa,ss@h/x"), "https://h/x");
  CHECK_EQ(shown_text("in (https://me:it's(a)\"secret\"<>@h/x?s=1); 'https://h/y?s=2': no"),
           "in (https://h/x); 'https://h/y': no");
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
  {
    CHECK_EQ(far_place("https://h/x").certificates, "");
    const Environment file("SSL_CERT_FILE", "some"), ours("AWS_CA_BUNDLE", "aws");
    CHECK_EQ(far_place("https://h/x").certificates, "some");
    CHECK_EQ(far_place("s3://bucket/k").certificates, "aws");
    const Environment curl("CURL_CA_BUNDLE", "curl");
    CHECK_EQ(far_place("https://h/x").certificates, "curl");
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
  if (!reaches_servers()) SKIP(kNoServers);
  const PlainEnvironment plain;
  const std::string content = random_text(1000);
  const auto always = [](const std::string& answer) {
    return fault_of_reading([answer](const std::string&, size_t) { return answer; });
  };
  /// Answers the second request in this way.
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
  CHECK_EQ(always("hello\n"), "bad input: URL: the server's answer is not HTTP, or older than HTTP/1.0");
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
  // The size and a page do not fit 64 bits; a bit for each page does not fit the memory.
  for (const char* size : {"18446744073709551615", "70368744177665"})
    CHECK_EQ(
        always(http_answer("206 Partial Content", fmt::format("Content-Range: bytes 0-99/{}\r\n", size),
                           content.substr(0, 100))),
        fmt::format("bad input: URL: the server says that the file has {} bytes; up to 64 TiB are possible",
                    size));

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
  if (!reaches_servers()) SKIP(kNoServers);
  const PlainEnvironment plain;
  const std::string content = random_text(1000);
  for (const char* tag : {"\"one\"", "W/\"one\""}) {
    const LoopbackServer server(
        [&](const std::string& request, size_t) { return range_answer(request, content, tag); });
    const auto file = open_http(server.url("x"));
    (void)file->begin(10);
    const std::vector<std::byte> bytes = file->read(500, 10);
    REQUIRE_EQ(bytes.size(), 10);
    CHECK(std::memcmp(bytes.data(), content.data() + 500, bytes.size()) == 0);
    const auto requests = server.requests();
    CHECK_EQ(requests[0].find("If-Match"), std::string::npos);
    CHECK_EQ(requests[1].find(fmt::format("If-Match: {}\r\n", tag)) != std::string::npos, *tag == '"');
  }
}

TEST_CASE("far: a request that fails on the way is made again, but not without end") {
  if (!reaches_servers()) SKIP(kNoServers);
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

TEST_CASE("far: waiting for a server that does not answer ends") {
  if (!reaches_servers()) SKIP(kNoServers);
  const PlainEnvironment plain;
  const LoopbackServer server([](const std::string&, size_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    return std::string();
  });
  const std::string url = server.url("x");
  HttpPatience once = kHasty;
  once.attempts = 1;
  CHECK(fault_of(url, [&] {
          (void)HttpFile::at({.url = url, .shown = url}, once)->begin(1);
        }).starts_with("failed: URL: the server does not answer in time: "));
  const Environment wrong("KVCODEC_TIMEOUT", "soon");
  CHECK_EQ(fault_of(url, [&] { HttpFile::at({.url = url, .shown = url}); }),
           "usage: KVCODEC_TIMEOUT is 'soon'; it must be seconds, from 1 to 3600");
}

TEST_CASE("far: bytes are those of the file, and hardly any is fetched twice") {
  if (!reaches_servers()) SKIP(kNoServers);
  const Served served(40 * kPage + 1234);
  const std::string& content = served.content;
  FarFile file = served.far();
  CHECK_EQ(file.size(), content.size());
  Rng rng(2);
  for (int i = 0; i < 300; ++i) {
    const uint64_t first = rng.below(content.size()),
                   size = rng.below(std::min<uint64_t>(3 * kPage, content.size() - first)) + 1;
    REQUIRE(text_at(file, first, size) == content.substr(first, size));
  }
  CHECK(text_at(file, 0, content.size()) == content);
  const uint64_t before = file.reads();
  CHECK_EQ(before, served.server.requests().size());
  CHECK(file.bytes() < content.size() + content.size() / 4);
  CHECK(text_at(file, 5, 30 * kPage) == content.substr(5, 30 * kPage));
  CHECK_EQ(file.reads(), before);
  CHECK_EQ(fault_of(served.server.url("x"), [&] { (void)text_at(file, content.size(), 1); }),
           fmt::format("bad input: URL: the file ends before its byte {}", content.size() + 1));
}

TEST_CASE("far: pages after those read in order are read ahead, and an expected range is one request") {
  if (!reaches_servers()) SKIP(kNoServers);
  const Served served(200 * kPage);
  const LoopbackServer& server = served.server;
  FarFile file = served.far();
  for (uint64_t page = 10; page < 40; ++page) (void)text_at(file, page * kPage, 8);
  CHECK_EQ(ranges_of(server), std::vector<std::string>{pages(0, 2), pages(10, 11), pages(11, 13),
                                                       pages(13, 19), pages(19, 37), pages(37, 91)});
  (void)text_at(file, 120 * kPage, 8);  // elsewhere: alone
  CHECK_EQ(ranges_of(server).back(), pages(120, 121));
  file.expect({160 * kPage + 5, 166 * kPage});
  CHECK_EQ(file.reads(), 7);
  (void)text_at(file, 163 * kPage, 8);
  CHECK_EQ(ranges_of(server).back(), pages(160, 166));
  (void)text_at(file, 160 * kPage, 6 * kPage);
  CHECK_EQ(file.reads(), 8);
  file.expect({164 * kPage, 180 * kPage});
  (void)text_at(file, 175 * kPage, 8);
  CHECK_EQ(ranges_of(server).back(), pages(166, 180));  // without pages that were read
}

TEST_CASE("far: the end of a file is one request, unless more is known") {
  if (!reaches_servers()) SKIP(kNoServers);
  const Served served(100 * kPage);
  FarFile file = served.far();
  (void)text_at(file, 99 * kPage, 8);
  FarFile other = served.far();
  other.expect({90 * kPage, 92 * kPage});
  (void)text_at(other, 91 * kPage, 8);
  (void)text_at(other, 99 * kPage, 8);
  CHECK_EQ(ranges_of(served.server),
           std::vector<std::string>{pages(0, 2), pages(84, 100), pages(0, 2), pages(90, 92), pages(84, 100)});
}

TEST_CASE("far: after an error nothing more is asked for") {
  if (!reaches_servers()) SKIP(kNoServers);
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

namespace {

/// A new address of a file on that server: a process knows files by their addresses, which servers may share.
std::string new_url(const LoopbackServer& server) {
  static int number = 0;
  return server.url(fmt::format("{}.h5", ++number));
}

/// The results of reading a local file, and the same file on a server.
struct Faults {
  std::string here, there;
};

Faults faults_of(const std::string& path, const std::function<void(const h5::File&)>& read) {
  const std::string content = file_bytes(path);
  const LoopbackServer server(
      [&](const std::string& request, size_t) { return range_answer(request, content); });
  const auto fault = [&](const std::string& name) {
    return fault_of(name, [&] { read(h5::File::open(name)); });
  };
  return {fault(path), fault(new_url(server))};
}

/// An empty file of HDF5.
std::string new_file(const Folder& folder) {
  const std::string path = folder / "x.h5";
  H5Fclose(Edit::check(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT)));
  return path;
}

}  // namespace

TEST_CASE("far: a child looks at a file of HDF5 first, as at one that is here") {
  if (!reaches_servers()) SKIP(kNoServers);
  const PlainEnvironment plain;
  const Folder folder;
  write_sample_kv(folder / "good.h5");
  const std::string bytes = file_bytes(folder / "good.h5");
  const auto headers = object_headers(bytes);
  REQUIRE_FALSE(headers.empty());
  // HDF5 1.10.8 crashes on about one in twenty headers whose checksums are made right again.
  const std::string crash = "HDF5 crashes on it: its headers are damaged, or made up on purpose";
  Rng rng(1);
  std::optional<Faults> found;
  for (int i = 0; i < 400 && !found; ++i) {
    const std::string bad = folder / std::to_string(i);  // a child looks at each
    std::string damaged = bytes;
    const Hdf5Block& header = headers[rng.below(headers.size())];
    damaged[header.at + 4 + rng.below(header.size - 4)] = static_cast<char>(rng.below(256));
    mend_checksums(damaged, headers);
    std::ofstream(bad, std::ios::binary) << damaged;
    const std::string fault = fault_of(bad, [&] { h5::File::open(bad); });
    if (fault.ends_with(crash)) found = faults_of(bad, [](const h5::File&) {});
  }
  if (!found) SKIP("this HDF5 crashes on none of these files");
  CHECK_EQ(found->here, "bad input: URL: " + crash);
  CHECK_EQ(found->there, found->here);
}

TEST_CASE("far: damage in expected rows does not keep other rows from being read") {
  if (!reaches_servers()) SKIP(kNoServers);
  const PlainEnvironment plain;
  const Folder folder;
  const std::string path = new_file(folder);
  {
    // The second of two chunks, of which only the first row exists, was never written.
    std::vector<int32_t> values(257);
    std::iota(values.begin(), values.end(), 0);
    Edit edit(path);
    edit.put("/x", H5T_STD_I32LE, H5T_NATIVE_INT, {257}, std::vector<int32_t>(),
             {.shape = {256}, .filters = {H5Z_FILTER_FLETCHER32}});
    const hid_t dataset = Edit::check(H5Dopen2(edit.file(), "/x", H5P_DEFAULT));
    const hsize_t first = 0, count = 256;
    const hid_t space = Edit::check(H5Dget_space(dataset)),
                memory = Edit::check(H5Screate_simple(1, &count, nullptr));
    Edit::check(H5Sselect_hyperslab(space, H5S_SELECT_SET, &first, nullptr, &count, nullptr));
    Edit::check(H5Dwrite(dataset, H5T_NATIVE_INT, memory, space, H5P_DEFAULT, values.data()));
    H5Sclose(memory), H5Sclose(space), H5Dclose(dataset);
  }
  const auto read = [](uint64_t first) {
    return [first](const h5::File& file) {
      const h5::Dataset dataset = file.dataset("/x");
      dataset.will_read(std::array{h5::RowRange{0, 257}});
      int32_t value = -1;
      dataset.read(first, 1, std::as_writable_bytes(std::span(&value, 1)));
      CHECK_EQ(value, static_cast<int32_t>(first));
    };
  };
  const Faults good = faults_of(path, read(255)), last = faults_of(path, read(256));
  CHECK_EQ(good.here, "nothing");
  CHECK_EQ(good.there, "nothing");
  CHECK_EQ(last.here, "bad input: URL: /x: rows from 256 on are not stored as they should be");
  CHECK_EQ(last.there, last.here);
}

TEST_CASE("far: rows that are expected come in requests of a bounded size") {
  if (!reaches_servers()) SKIP(kNoServers);
  const PlainEnvironment plain;
  const Folder folder;
  const std::string path = new_file(folder);
  constexpr size_t kRow = size_t{1} << 20, kRows = 40;
  Edit(path).put("/x", H5T_STD_U8LE, H5T_NATIVE_UCHAR, {kRows, kRow},
                 std::vector<unsigned char>(kRows * kRow, 7));
  const std::string content = file_bytes(path);
  const LoopbackServer server(
      [&](const std::string& request, size_t) { return range_answer(request, content); });
  const h5::File file = h5::File::open(new_url(server));
  const h5::Dataset dataset = file.dataset("/x");
  std::vector<h5::RowRange> rows;
  rows.reserve(kRows);
  for (size_t row = 0; row < kRows; ++row) rows.push_back({row, 1});
  dataset.will_read(rows);
  const uint64_t before = file.traffic().reads;
  std::vector<std::byte> row(kRow);
  const std::vector<std::byte> expected(kRow, std::byte{7});
  for (size_t i = 0; i < kRows; ++i) {
    dataset.read(i, 1, row);
    CHECK((row == expected));
  }
  CHECK_EQ(file.traffic().reads, before + 2);
}

TEST_CASE("far: a file is uploaded whole, and replaces another one only if that is wanted") {
  if (!reaches_servers()) SKIP(kNoServers);
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
  // The first attempt may have stored the file.
  CHECK_EQ(send(
               [](const std::string&, size_t before) {
                 return before == 0 ? std::string() : http_answer("412 Precondition Failed", "");
               },
               false, nullptr),
           "failed: URL: is there now; an attempt whose answer was lost may have stored it");
  CHECK_EQ(send(always(http_answer("501 Not Implemented", "")), false, nullptr),
           "failed: URL: the server cannot tell whether the file is there; --overwrite replaces it if it is");
  CHECK_EQ(send(always(http_answer("403 Forbidden", "")), true, nullptr),
           "failed: URL: the server does not let you write it (status 403)");
  CHECK_EQ(send(always(http_answer("405 Method Not Allowed", "")), true, nullptr),
           "failed: URL: the server's answer is not what was asked for (status 405)");
}

TEST_CASE("far: uploads and signed requests go where they are sent, not elsewhere") {
  if (!reaches_servers()) SKIP(kNoServers);
  const PlainEnvironment plain;
  const Folder folder;
  const std::string content = random_text(1000);
  std::ofstream(folder / "a.h5", std::ios::binary) << content;
  const LoopbackServer server([&](const std::string& request, size_t) {
    if (request.find(" /x.h5 ") != std::string::npos)
      return http_answer("303 See Other", "Location: /elsewhere\r\n");
    return request.find("Range: ") != std::string::npos ? range_answer(request, content)
                                                        : http_answer("200 OK", "");
  });
  const std::string url = server.url("x.h5");
  const FarPlace place{.url = url, .shown = url};
  FarPlace signed_place = place;
  signed_place.s3 = true;
  signed_place.signature = "aws:amz:eu-central-1:s3";
  signed_place.key_id = "id";
  signed_place.secret = "secret";
  CHECK_EQ(fault_of(url, [&] { (void)upload(place, folder / "a.h5", true, kHasty); }),
           "failed: URL: the server's answer is not what was asked for (status 303)");
  CHECK_EQ(server.requests().size(), 1);
  CHECK_EQ(fault_of(url, [&] { (void)HttpFile::at(signed_place, kHasty)->begin(10); }),
           "bad input: URL: the server's answer is not what was asked for (status 303)");
  CHECK_EQ(server.requests().size(), 2);
  // A request that is not signed follows the redirection.
  CHECK_EQ(fault_of(url, [&] { (void)HttpFile::at(place, kHasty)->begin(10); }), "nothing");
  CHECK_EQ(server.requests().size(), 4);
}

TEST_CASE("far: what is signed and sent without TLS is signed with its bytes") {
  if (!reaches_servers()) SKIP(kNoServers);
  const PlainEnvironment plain;
  const Folder folder;
  std::ofstream(folder / "a.h5", std::ios::binary) << "abc";
  const LoopbackServer server([](const std::string&, size_t) { return http_answer("200 OK", ""); });
  const std::string url = server.url("x.h5");
  FarPlace place{.url = url, .shown = url, .s3 = true};
  place.signature = "aws:amz:eu-central-1:s3", place.key_id = "id", place.secret = "secret";
  CHECK(upload(place, folder / "a.h5", true, kHasty));
  REQUIRE_EQ(server.requests().size(), 1);
  CHECK(server.requests()[0].find(
            "x-amz-content-sha256: ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\r\n") !=
        std::string::npos);
}

TEST_CASE("far: SHA-256 of any length is that of FIPS 180-4's examples") {
  const auto digest = [](const std::string& text, size_t step) {
    Sha256 sha;
    for (size_t at = 0; at < text.size(); at += step)
      sha.add(std::as_bytes(std::span(text)).subspan(at, std::min(step, text.size() - at)));
    return sha.hexadecimal();
  };
  for (const size_t step : {1, 7, 64, 1000000}) {
    CHECK_EQ(digest("", step), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK_EQ(digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", step),
             "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK_EQ(digest(std::string(1000000, 'a'), step),
             "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  }
}

TEST_CASE("far: while one server does not answer, files of others are opened") {
  if (!reaches_servers()) SKIP(kNoServers);
  const PlainEnvironment plain;
  std::promise<void> asked, released;
  const LoopbackServer dead([&](const std::string&, size_t before) {
    if (before == 0) asked.set_value(), released.get_future().wait();
    return http_answer("404 Not Found", "");
  });
  const LoopbackServer other(
      [](const std::string& request, size_t) { return range_answer(request, "text"); });
  std::atomic<bool> ended = false;
  std::thread waiting([&] {
    CHECK_THROWS_AS(FarFile::open(dead.url("a")), Error);
    ended = true;
  });
  asked.get_future().wait();
  // The dead server answers only once the other file is open.
  CHECK_EQ(FarFile::open(other.url("b"))->size(), 4);
  CHECK_FALSE(ended);
  released.set_value();
  waiting.join();
}

TEST_CASE("far: a local file that cannot be read is named, and not uploaded in part") {
  if (!reaches_servers()) SKIP(kNoServers);
  const PlainEnvironment plain;
  // Linux has files that can be opened and not read: the loopback device has no speed.
  const std::string unreadable = "/sys/class/net/lo/speed";
  std::ifstream file(unreadable);
  if (!file || file.get() != EOF) SKIP("there is no file that can be opened and not read");
  const LoopbackServer server([](const std::string&, size_t) { return http_answer("200 OK", ""); });
  const std::string url = server.url("x.h5");
  const std::string fault =
      fault_of(url, [&] { (void)upload({.url = url, .shown = url}, unreadable, true, kHasty); });
  CHECK(fault.starts_with("failed: /sys/class/net/lo/speed: cannot be mapped: "));
}

}  // namespace far_test
