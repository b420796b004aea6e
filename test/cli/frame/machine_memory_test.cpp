// Limits of memory that control groups set, from files with the layout of Linux.
#include <fstream>

#include "cli/frame/common.hpp"
#include "test/formats/folder.hpp"
#include "test/test.hpp"

namespace kvcodec::cli::machine_memory_test {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kGiB = uint64_t{1} << 30;

/// A root folder with the files of the test.
class Root {
 public:
  void put(const std::string& file, const std::string& text) const {
    fs::create_directories((path() / file).parent_path());
    std::ofstream(path() / file) << text << "\n";
  }
  const fs::path& path() const { return folder_.path(); }
  uint64_t limit() const { return control_group_limit(path()); }

 private:
  test::Folder folder_;
};

TEST_CASE("version 2: the least limit from the process's own group up") {
  const Root root;
  CHECK_EQ(root.limit(), 0);  // nothing there
  root.put("proc/self/cgroup", "0::/slice/job/step");
  CHECK_EQ(root.limit(), 0);
  root.put("sys/fs/cgroup/slice/job/step/memory.max", "max");
  CHECK_EQ(root.limit(), 0);
  root.put("sys/fs/cgroup/slice/job/memory.max", std::to_string(2 * kGiB));
  CHECK_EQ(root.limit(), 2 * kGiB);
  root.put("sys/fs/cgroup/slice/memory.max", std::to_string(3 * kGiB));
  CHECK_EQ(root.limit(), 2 * kGiB);
  root.put("sys/fs/cgroup/slice/job/step/memory.max", std::to_string(kGiB));
  CHECK_EQ(root.limit(), kGiB);
  root.put("sys/fs/cgroup/slice/other/memory.max", "4096");  // another's
  CHECK_EQ(root.limit(), kGiB);
}

TEST_CASE("version 2: in a container the root is the container's group") {
  const Root root;
  root.put("proc/self/cgroup", "0::/");
  root.put("sys/fs/cgroup/memory.max", std::to_string(kGiB));
  CHECK_EQ(root.limit(), kGiB);
  root.put("proc/self/cgroup", "0::/../../elsewhere");  // a group outside of what is mounted
  CHECK_EQ(root.limit(), kGiB);
}

TEST_CASE("version 1: the group of the controller of memory") {
  const Root root;
  root.put("proc/self/cgroup",
           "12:cpu,cpuacct:/busy\n4:hugetlb,memory:/docker/abc\n1:name=systemd:/x\n0::/x");
  root.put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");  // none
  CHECK_EQ(root.limit(), 9223372036854771712u);
  root.put("sys/fs/cgroup/memory/busy/memory.limit_in_bytes", "4096");  // of another controller
  root.put("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", std::to_string(2 * kGiB));
  CHECK_EQ(root.limit(), 2 * kGiB);
  root.put("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", std::to_string(kGiB));
  CHECK_EQ(root.limit(), kGiB);
  root.put("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "many");
  CHECK_EQ(root.limit(), 2 * kGiB);
}

TEST_CASE("the machine's memory is known here and no more than its control group allows") {
  const uint64_t memory = machine_memory();
  CHECK_GT(memory, 0);
  if (const uint64_t limit = control_group_limit(); limit > 0) CHECK_LE(memory, limit);
}

}  // namespace
}  // namespace kvcodec::cli::machine_memory_test
