// Safetensors: any bytes, as a file or as the index of shards, open and give their tensors or are refused.
#include <filesystem>
#include <fstream>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "formats/models/safetensors.hpp"
#include "lib/core/checked.hpp"
#include "test/fuzz/fuzz.hpp"

using namespace kvcodec;

namespace {

void read_all(const Safetensors& file) {
  for (const std::string& name : file.names())
    fuzz::expect_refusal_or_success([&] {
      const TensorView* tensor = file.find(name);
      fuzz::require(tensor != nullptr);
      fuzz::require(read_floats(*tensor).size() == checked_product(tensor->shape));
    });
}

/// A model directory with one good shard, for an index of any bytes; removed when the program ends.
class Folder {
 public:
  Folder() {
    fuzz::require(::mkdtemp(path_.data()) != nullptr);
    const std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
    std::string length(8, '\0');
    length[0] = static_cast<char>(header.size());
    std::ofstream(path_ + "/shard.safetensors", std::ios::binary) << length << header << "12345678";
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_ = std::filesystem::temp_directory_path() / "kvcodec-fuzz-XXXXXX";
};

}  // namespace

KVCODEC_FUZZ_TARGET(safetensors) {
  if (size > 0 && data[0] == '{') {
    static const Folder folder;
    std::ofstream(folder.path() + "/model.safetensors.index.json", std::ios::binary)
        .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
    fuzz::expect_refusal_or_success([&] { read_all(Safetensors::open_model(folder.path())); });
    return 0;
  }
  const int file = ::memfd_create("safetensors", MFD_CLOEXEC);
  fuzz::require(file >= 0 && ::write(file, data, size) == static_cast<ssize_t>(size));
  fuzz::expect_refusal_or_success(
      [&] { read_all(Safetensors::open_file("/proc/self/fd/" + std::to_string(file))); });
  ::close(file);
  return 0;
}
