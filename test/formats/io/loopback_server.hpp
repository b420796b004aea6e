// A server on the loopback address that answers as a test says, one request for each connection.
#pragma once

#include <algorithm>
#include <charconv>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace kvcodec::test {

/// A number behind a word in a text; -1 if the word is not there.
inline long number_behind(std::string_view text, std::string_view word) {
  const size_t place = text.find(word);
  long number = -1;
  if (place != std::string_view::npos)
    std::from_chars(text.data() + place + word.size(), text.data() + text.size(), number);
  return number;
}

class LoopbackServer {
 public:
  /// The whole answer to a request, of which there were `before` others; empty: the connection breaks off.
  using Answer = std::function<std::string(const std::string& request, size_t before)>;

  explicit LoopbackServer(Answer answer) : answer_(std::move(answer)) {
    listening_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (listening_ < 0 || ::bind(listening_, generic, size) != 0 || ::listen(listening_, 16) != 0 ||
        ::getsockname(listening_, generic, &size) != 0)
      throw std::runtime_error("no server on the loopback address");
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~LoopbackServer() {
    ::shutdown(listening_, SHUT_RDWR);
    thread_.join();
    ::close(listening_);
  }
  LoopbackServer(const LoopbackServer&) = delete;
  LoopbackServer& operator=(const LoopbackServer&) = delete;

  std::string url(const std::string& path) const {
    return fmt::format("http://127.0.0.1:{}/{}", port_, path);
  }
  std::vector<std::string> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void serve() {
    for (int socket = 0; (socket = ::accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;
         ::close(socket)) {
      const std::string request = receive(socket);
      size_t before = 0;
      {
        const std::lock_guard lock(mutex_);
        before = requests_.size();
        requests_.push_back(request);
      }
      const std::string answer = answer_(request, before);
      for (size_t sent = 0; sent < answer.size();) {
        const ssize_t put = ::send(socket, answer.data() + sent, answer.size() - sent, MSG_NOSIGNAL);
        if (put <= 0) break;
        sent += static_cast<size_t>(put);
      }
    }
  }

  static std::string receive(int socket) {
    std::string request;
    size_t wanted = std::string::npos;
    char bytes[4096];
    while (request.size() < wanted) {
      const ssize_t got = ::recv(socket, bytes, sizeof bytes, 0);
      if (got <= 0) break;
      request.append(bytes, static_cast<size_t>(got));
      const size_t end = request.find("\r\n\r\n");
      if (end == std::string::npos || wanted != std::string::npos) continue;
      constexpr std::string_view kGoOn = "HTTP/1.1 100 Continue\r\n\r\n";
      if (request.find("Expect: 100-continue") < end)
        ::send(socket, kGoOn.data(), kGoOn.size(), MSG_NOSIGNAL);
      wanted = end + 4 + static_cast<size_t>(std::max(0L, number_behind(request, "Content-Length: ")));
    }
    return request;
  }

  Answer answer_;
  int listening_ = -1, port_ = 0;
  std::thread thread_;
  mutable std::mutex mutex_;
  std::vector<std::string> requests_;
};

inline std::string http_answer(const std::string& status, const std::string& headers,
                               std::string_view body = {}) {
  return fmt::format("HTTP/1.1 {}\r\n{}Content-Length: {}\r\nConnection: close\r\n\r\n{}", status, headers,
                     body.size(), body);
}

/// The answer of a server that has this content. tag: empty = none.
inline std::string range_answer(const std::string& request, std::string_view content,
                                const std::string& tag = "\"one\"") {
  const long first = number_behind(request, "Range: bytes=");
  const std::string dash = fmt::format("bytes={}-", first);
  const long last = std::min(number_behind(request, dash), static_cast<long>(content.size()) - 1);
  return http_answer("206 Partial Content",
                     fmt::format("Content-Range: bytes {}-{}/{}\r\n{}", first, last, content.size(),
                                 tag.empty() ? "" : fmt::format("ETag: {}\r\n", tag)),
                     content.substr(static_cast<size_t>(first), static_cast<size_t>(last - first + 1)));
}

}  // namespace kvcodec::test
