#include "cli/frame/machine_memory.hpp"

#include <charconv>
#include <fstream>
#include <string>

#include <unistd.h>

namespace kvcodec::cli {
namespace {

namespace fs = std::filesystem;

/// The smaller of two limits, of which 0 is none.
uint64_t tighter(uint64_t a, uint64_t b) { return a == 0 || (b != 0 && b < a) ? b : a; }

/// What a limit's file says; 0 if it is not there or says "max".
uint64_t limit_in(const fs::path& file) {
  std::ifstream in(file);
  std::string text;
  uint64_t limit = 0;
  if (!(in >> text)) return 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), limit);
  return error == std::errc{} && end == text.data() + text.size() ? limit : 0;
}

/// Of a group and all above it: each is held to the limits of its parents. In a container the name may be the
/// one that the machine has for the group, where no such folder is mounted; the container's own group is the
/// root then.
uint64_t limit_up_from(const fs::path& mount, const std::string& group, const char* file) {
  uint64_t limit = limit_in(mount / file);
  fs::path place = mount;
  for (const fs::path& part : fs::path(group).relative_path()) {
    if (part == "..") break;  // a group outside of what is mounted
    place /= part;
    limit = tighter(limit, limit_in(place / file));
  }
  return limit;
}

/// Whether "cpu,memory" names the controller of memory.
bool names_memory(std::string_view controllers) {
  while (!controllers.empty()) {
    const size_t end = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, end) == "memory") return true;
    controllers.remove_prefix(std::min(end + 1, controllers.size()));
  }
  return false;
}

}  // namespace

uint64_t control_group_limit(const fs::path& root) {
  uint64_t limit = 0;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // number:controllers:group
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1),
                      group = line.substr(second + 1);
    if (controllers.empty())  // version 2, alone or beside version 1
      for (const char* mount : {"sys/fs/cgroup", "sys/fs/cgroup/unified"})
        limit = tighter(limit, limit_up_from(root / mount, group, "memory.max"));
    else if (names_memory(controllers))
      limit = tighter(limit, limit_up_from(root / "sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
  }
  return limit;
}

uint64_t machine_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  const bool known = pages > 0 && page > 0;
  return tighter(known ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page) : 0,
                 control_group_limit());
}

}  // namespace kvcodec::cli
