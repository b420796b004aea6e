// Models that are shortened while they are read: the program names the file in one sentence and does not crash.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "formats/io/output.hpp"
#include "formats/models/gguf.hpp"
#include "formats/models/safetensors.hpp"
#include "test/formats/folder.hpp"
#include "test/formats/models/gguf_writer.hpp"
#include "test/test.hpp"

namespace mapped_file_test {

using namespace kvcodec;
using namespace kvcodec::test;

namespace {

constexpr size_t kFloats = size_t{1} << 20;

struct Ended {
  int status = -1;   ///< of waitpid()
  std::string text;  ///< printed to standard error
};

/// Runs body() in a process that handles signals like the program, and returns its output.
Ended run_apart(const Folder& folder, const std::function<void()>& body) {
  const std::string printed = folder / "printed";
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const int out = ::open(printed.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(out, STDERR_FILENO);
    ::alarm(60);
    install_signal_cleanup();
    body();
    ::_exit(0);
  }
  Ended ended;
  REQUIRE_EQ(::waitpid(child, &ended.status, 0), child);
  ended.text = file_bytes(printed);
  return ended;
}

void check_message(const Folder& folder, const std::string& path, const std::function<void()>& body) {
  const Ended ended = run_apart(folder, body);
  CHECK(WIFEXITED(ended.status));
  CHECK_EQ(WEXITSTATUS(ended.status), 1);
  CHECK_EQ(ended.text, "kvcodec: " + path +
                           ": it was shortened, or its disk failed, while it was read; nothing is written\n");
}

}  // namespace

TEST_CASE("mapped file: safetensors that are shortened while they are read end with one sentence") {
  const Folder folder;
  const std::string path = folder / "model.safetensors";
  const std::string header = R"({"a":{"dtype":"F32","shape":[)" + std::to_string(kFloats) +
                             R"(],"data_offsets":[0,)" + std::to_string(4 * kFloats) + "]}}";
  std::string length(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(length.data(), &size, sizeof size);
  std::ofstream(path, std::ios::binary) << length << header << std::string(4 * kFloats, '\0');
  CHECK_EQ(run_apart(folder, [&] { read_floats(*Safetensors::open_file(path).find("a")); }).text, "");
  check_message(folder, path, [&] {
    const Safetensors file = Safetensors::open_file(path);
    std::filesystem::resize_file(path, 4096);
    read_floats(*file.find("a"));
  });
}

TEST_CASE("mapped file: a GGUF file that is shortened while it is read ends with one sentence") {
  const Folder folder;
  const std::string path = folder / "model.gguf";
  GgufWriter writer;
  writer.set("general.architecture", "llama");
  writer.add("a", {kFloats}, 0, std::string(4 * kFloats, '\0'));
  std::ofstream(path, std::ios::binary) << writer.bytes();
  CHECK_EQ(run_apart(folder, [&] { read_floats(Gguf::open(path).tensors().at("a").view); }).text, "");
  check_message(folder, path, [&] {
    const Gguf file = Gguf::open(path);
    std::filesystem::resize_file(path, 4096);
    read_floats(file.tensors().at("a").view);
  });
}

}  // namespace mapped_file_test
