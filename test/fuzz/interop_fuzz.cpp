// Caches of other programs: any bytes, taken for each of the formats, give rows that can be read and exported again, or are
// refused.
#include <algorithm>
#include <filesystem>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "formats/interop/foreign.hpp"
#include "test/formats/interop/foreign_source.hpp"
#include "test/fuzz/fuzz.hpp"

using namespace kvcodec;

namespace {

interop::ImportOptions options_of(const interop::ForeignFormat& format) {
  interop::ImportOptions options;
  options.window_layers = {0, 1, 2, 3, 4};  // of the corpus' file with two caches
  options.heads = 1;
  if (format.name == "lmcache" || format.name == "sglang" || format.name == "vllm-blocks") {
    options.heads = 2, options.head_dim = 8, options.layers = 2;
    if (format.name == "lmcache") options.layers = 1;
  }
  return options;
}

/// A folder for exports; removed when the program ends.
class Folder {
 public:
  Folder() { fuzz::require(::mkdtemp(path_.data()) != nullptr); }
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

void read_all(const test::ForeignSource& source) {
  for (size_t d = 0; d < source.documents().count(); ++d) {
    fuzz::require(source.positions_of(d).size() == source.documents().length(d));
    for (const int layer : source.layers())
      for (const Side side : kSides) source.all(side, layer, d);
  }
}

void write_back(const interop::ForeignFormat& format, const test::ForeignSource& source) {
  static const Folder folder;
  if (source.documents().length(0) == 0) return;
  interop::ExportJob job;
  job.documents = {0};
  job.path = folder.path() + "/out";
  job.overwrite = true;
  std::error_code ignored;
  std::filesystem::remove_all(job.path, ignored);
  format.write(source, job);
}

}  // namespace

KVCODEC_FUZZ_TARGET(interop) {
  const int file = ::memfd_create("layers.0", MFD_CLOEXEC);
  fuzz::require(file >= 0 && ::write(file, data, size) == static_cast<ssize_t>(size));
  const std::string name = "/proc/self/fd/" + std::to_string(file);
  fuzz::expect_refusal_or_success([&] { interop::guess_format(name); });
  for (const interop::ForeignFormat& format : interop::foreign_formats())
    fuzz::expect_refusal_or_success([&] {
      const interop::ImportOptions options = options_of(format);
      interop::ForeignCache cache = format.open({name}, options);
      interop::settle(cache, options, name);
      const test::ForeignSource source(std::move(cache));
      read_all(source);
      // Files on disk take long; a part of the inputs has to do.
      if (size % 4 == 0) write_back(format, source);
    });
  ::close(file);
  return 0;
}
