#include "formats/io/row_program.hpp"

#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>

#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "formats/io/descriptor.hpp"
#include "formats/io/json_file.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1;  // of the messages
constexpr uint32_t kMaxHeader = 1 << 20;
/// An answer to encode or learn is a mistake beyond so many bytes.
constexpr uint64_t kMaxAnswer = uint64_t{1} << 32;
/// For a program that was told to end, by the end of its input.
constexpr auto kTimeToEnd = std::chrono::seconds(2);

std::span<const uint8_t> bytes_of(MatrixView<const float> rows) {
  return {reinterpret_cast<const uint8_t*>(rows.data()), rows.rows() * rows.cols() * sizeof(float)};
}

/// A process that ends once its input does, or is ended.
struct Child {
  pid_t id = 0;
  Child() = default;
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { (void)end(); }
  /// Waits until it has ended. Returns its status, or nothing if it had to be killed.
  std::optional<int> end() {
    const auto limit = std::chrono::steady_clock::now() + kTimeToEnd;
    int status = 0;
    bool killed = false;
    while (id > 0 && ::waitpid(id, &status, WNOHANG) == 0) {
      if (!killed && std::chrono::steady_clock::now() > limit) killed = ::kill(id, SIGKILL) == 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    id = 0;
    return killed ? std::nullopt : std::optional(status);
  }
};

class RunningProgram final : public RowProgram {
 public:
  RunningProgram(std::string file, const std::string& arguments, int64_t seconds)
      : file_(std::move(file)), seconds_(seconds) {
    start();
    const Json answer = ask({{"op", "begin"}, {"version", kVersion}, {"arguments", arguments}}, {}, {}).first;
    surveys_ = with_context(file_, [&] { return JsonFields(answer).get_bool("surveys"); }).value_or(false);
  }

  bool surveys() const override { return surveys_; }

  void observe(const GroupShape& shape, MatrixView<const float> rows) override {
    (void)ask(about("observe", shape, {{"tokens", rows.rows()}}), {}, bytes_of(rows));
  }
  std::vector<uint8_t> learn(const GroupShape& shape) override {
    return ask(about("learn", shape), {}, {}, kMaxAnswer).second;
  }
  std::vector<uint8_t> encode(const GroupShape& shape, std::span<const uint8_t> table, uint64_t first,
                              MatrixView<const float> rows) override {
    const Json request = about("encode", shape, {{"first", first}, {"tokens", rows.rows()}});
    return ask(request, table, bytes_of(rows), kMaxAnswer).second;
  }
  void decode(const GroupShape& shape, std::span<const uint8_t> table, uint64_t first,
              std::span<const uint8_t> bytes, MatrixView<float> out) override {
    const Json request = about("decode", shape, {{"first", first}, {"tokens", out.rows()}});
    const std::vector<uint8_t> answer = ask(request, table, bytes, kMaxAnswer).second;
    const size_t values = out.rows() * out.cols();
    if (answer.size() != values * sizeof(float))
      throw bad_input("{}: gave {} bytes for {} tokens of {} values, which are {} as f32", file_,
                      answer.size(), out.rows(), out.cols(), values * sizeof(float));
    std::memcpy(out.data(), answer.data(), answer.size());
    for (size_t i = 0; i < values; ++i)
      if (!std::isfinite(out.data()[i]))
        throw bad_input("{}: gave {} for token {}", file_, out.data()[i], first + i / out.cols());
  }

 private:
  static Json about(const char* op, const GroupShape& shape, Json request = Json::object()) {
    request["op"] = op, request["side"] = name_of(shape.side), request["layers"] = shape.layers;
    request["heads"] = shape.heads(), request["dims"] = shape.dims();
    return request;
  }

  void start() {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
      throw failed("{}: cannot be started: {}", file_, std::strerror(errno));
    socket_ = Descriptor(ends[0]);
    const Descriptor own(ends[1]);
    const timeval limit{.tv_sec = seconds_, .tv_usec = 0};
    for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO})
      ::setsockopt(socket_.get(), SOL_SOCKET, option, &limit, sizeof limit);
    const bool runs = ::access(file_.c_str(), X_OK) == 0;
    if (!runs && !file_.ends_with(".py"))
      throw bad_input("{}: cannot be run: neither an executable file nor one that ends in .py", file_);
    const std::string path = file_.find('/') == file_.npos ? "./" + file_ : file_;
    std::vector<const char*> words{path.c_str(), nullptr};
    if (!runs) words.insert(words.begin(), "python3");
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    for (const int number : {STDIN_FILENO, STDOUT_FILENO})
      ::posix_spawn_file_actions_adddup2(&actions, own.get(), number);
    const int error =
        ::posix_spawnp(&child_.id, words[0], &actions, nullptr, const_cast<char**>(words.data()), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    if (error != 0) {
      child_.id = 0;
      throw bad_input("{}: cannot be started: {}", file_, std::strerror(error));
    }
  }

  /// Sends a request with its payload, a table and other bytes, and returns the answer and its payload of at most so many bytes.
  std::pair<Json, std::vector<uint8_t>> ask(Json request, std::span<const uint8_t> table,
                                            std::span<const uint8_t> bytes, uint64_t most = 0) {
    const std::lock_guard lock(mutex_);
    request["table"] = table.size(), request["bytes"] = table.size() + bytes.size();
    const std::string header = request.dump();
    const auto size = static_cast<uint32_t>(header.size());
    send({reinterpret_cast<const uint8_t*>(&size), sizeof size});
    send({reinterpret_cast<const uint8_t*>(header.data()), header.size()});
    send(table);
    send(bytes);
    uint32_t answer_size = 0;
    receive({reinterpret_cast<uint8_t*>(&answer_size), sizeof answer_size});
    if (answer_size > kMaxHeader)
      throw bad_input(
          "{}: its answer's header has {} bytes; is something else written to its standard output?", file_,
          answer_size);
    std::string text(answer_size, ' ');
    receive({reinterpret_cast<uint8_t*>(text.data()), text.size()});
    Json answer = parse_json_object(text, file_);
    const JsonFields fields(answer);
    const auto [error, given] = with_context(
        file_, [&] { return std::pair(fields.get_string("error"), fields.get_int("bytes").value_or(0)); });
    if (error) throw bad_input("{}: {}", file_, printable(*error));
    if (given < 0 || static_cast<uint64_t>(given) > most)
      throw bad_input("{}: an answer to '{}' of {} bytes", file_, request["op"].get<std::string>(), given);
    std::vector<uint8_t> payload(static_cast<size_t>(given));
    receive(payload);
    return {std::move(answer), std::move(payload)};
  }

  void send(std::span<const uint8_t> bytes) {
    while (!bytes.empty()) {
      const ssize_t sent =
          uninterrupted([&] { return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); });
      if (sent < 0) give_up();
      bytes = bytes.subspan(static_cast<size_t>(sent));
    }
  }
  void receive(std::span<uint8_t> bytes) {
    while (!bytes.empty()) {
      const ssize_t got = uninterrupted([&] { return ::recv(socket_.get(), bytes.data(), bytes.size(), 0); });
      if (got <= 0) give_up(got == 0);
      bytes = bytes.subspan(static_cast<size_t>(got));
    }
  }

  [[noreturn]] void give_up(bool ended = false) {
    if (!ended && (errno == EAGAIN || errno == EWOULDBLOCK))
      throw failed("{}: neither took nor gave a byte in {} seconds (see --seconds)", file_, seconds_);
    socket_.close();
    const std::optional<int> status = child_.end();
    if (!status) throw bad_input("{}: closed its standard output before its answer", file_);
    throw bad_input("{}: ended before its answer, {}", file_,
                    WIFSIGNALED(*status) ? fmt::format("by signal {}", WTERMSIG(*status))
                                         : fmt::format("with status {}", WEXITSTATUS(*status)));
  }

  std::string file_;
  int64_t seconds_;
  Child child_;
  Descriptor socket_;  // closed before the child is waited for
  bool surveys_ = false;
  std::mutex mutex_;
};

}  // namespace

StartRowProgram row_program(const std::string& file) {
  return [file](const std::string& arguments, int64_t seconds) {
    return std::make_unique<RunningProgram>(file, arguments, seconds);
  };
}

}  // namespace kvcodec
