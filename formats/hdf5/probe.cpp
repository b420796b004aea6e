#include "formats/hdf5/probe.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <fstream>
#include <map>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <fcntl.h>
#include <hdf5.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#if __has_include(<malloc.h>)
#include <malloc.h>
#endif
#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
#define KVCODEC_SECCOMP
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/syscall.h>
#endif

#include "formats/hdf5/driver.hpp"
#include "formats/hdf5/library.hpp"
#include "formats/io/descriptor.hpp"
#include "formats/io/far_file.hpp"

namespace kvcodec::h5 {
namespace {

// Of a processor: a sound file takes some milliseconds, and a small part of a second for each MiB it has.
constexpr rlim_t kSecondsOfSmall = 5, kMostSeconds = 60;
constexpr uint64_t kBytesOfSecond = uint64_t{1} << 20;  // for so many there is one more
constexpr unsigned kMostWaiting =
    600;  // seconds in all, of a file that is here, whatever the child waits for
constexpr size_t kMostObjects = size_t{1} << 20;
constexpr hsize_t kMostFound = hsize_t{1} << 20;      // chunks of a dataset
constexpr hsize_t kMostReadBytes = hsize_t{1} << 26;  // of a dataset
constexpr hsize_t kMostAttributeBytes = hsize_t{1} << 26;
constexpr rlim_t kRoom = rlim_t{1} << 30;  // bytes of memory, beyond what the parent has

// How the child ends, besides 0: numbers that neither HDF5 nor a sanitizer ends a process with.
constexpr int kNoBytes = 101;   // it could not ask for them, or none came
constexpr int kNoMemory = 102;  // what it wanted is beyond kRoom

}  // namespace

// What the child may do -------------------------------------------------------------------------------

#ifdef KVCODEC_SECCOMP
bool give_up_rights(int written) {
#if defined(__x86_64__)
  constexpr uint32_t kMachine = AUDIT_ARCH_X86_64;
#else
  constexpr uint32_t kMachine = AUDIT_ARCH_AARCH64;
#endif
  constexpr uint32_t kAllowed[] = {
      __NR_read,          __NR_pread64,      __NR_lseek,  __NR_fstat,      __NR_close,
      __NR_mmap,          __NR_munmap,       __NR_mremap, __NR_brk,        __NR_madvise,
      __NR_mprotect,      __NR_futex,        __NR_exit,   __NR_exit_group, __NR_getrandom,
      __NR_clock_gettime, __NR_rt_sigreturn, __NR_fcntl,  __NR_sigaltstack};  // the last for the address sanitizer, as a child ends
  std::vector<sock_filter> program = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kMachine, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
  };
  for (const uint32_t call : kAllowed) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  }
  if (written >= 0) {
    // Its number fits the lower half of the argument, which comes first.
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_write, 0, 3));
    program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)));
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(written), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  const sock_fprog filter = {static_cast<unsigned short>(program.size()), program.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}
#else
bool give_up_rights(int) { return false; }
#endif

void close_others(int kept) {
  const auto number = static_cast<unsigned>(kept);
  if ((kept == 0 || ::close_range(0, number - 1, 0) == 0) && ::close_range(number + 1, ~0U, 0) == 0) return;
  // Linux has that call from 5.9 on, and older containers forbid it.
  constexpr long kMostDescriptors = 65536;
  const long limit = ::sysconf(_SC_OPEN_MAX),
             most = limit < 0 ? kMostDescriptors : std::min(limit, kMostDescriptors);
  for (int other = 0; other < most; ++other)
    if (other != kept) ::close(other);
}

namespace {

// Bytes for the child ---------------------------------------------------------------------------------

// The child writes what it wants, a position and a size, and reads a byte that says whether that follows, and the bytes.
struct Wanted {
  uint64_t position = 0, size = 0;
};
constexpr uint64_t kMostWanted = uint64_t{1} << 20;

/// Whether all of it came.
bool read_whole(int descriptor, std::span<std::byte> out) {
  return read_next(descriptor, out).bytes == out.size();
}

/// The child's end.
class AskedBytes final : public ByteSource {
 public:
  AskedBytes(int socket, uint64_t size) : socket_(socket), size_(size) {}

  uint64_t size() const override { return size_; }
  void read(uint64_t position, std::span<std::byte> out) override {
    while (!out.empty()) {
      const Wanted wanted{position, std::min<uint64_t>(out.size(), kMostWanted)};
      const auto part = out.first(wanted.size);
      std::byte follows{0};
      if (::write(socket_, &wanted, sizeof wanted) != sizeof wanted ||
          !read_whole(socket_, std::span(&follows, 1)) || follows == std::byte{0} ||
          !read_whole(socket_, part))
        throw bad_input("no bytes came");
      position += part.size();
      out = out.subspan(part.size());
    }
  }

 private:
  int socket_;
  uint64_t size_;
};

/// The parent's end: answers until the child is gone. Returns why bytes could not be given first.
std::optional<Error> serve(int socket, FarFile& source) {
  std::optional<Error> error;
  std::vector<std::byte> answer;
  const auto send_whole = [&](std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t put =
          uninterrupted([&] { return ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL); });
      if (put <= 0) return false;
      bytes = bytes.subspan(static_cast<size_t>(put));
    }
    return true;
  };
  for (Wanted wanted; read_whole(socket, std::as_writable_bytes(std::span(&wanted, 1)));) {
    std::byte follows{0};
    if (wanted.size <= kMostWanted && wanted.position <= source.size() &&
        wanted.size <= source.size() - wanted.position)
      try {
        answer.resize(wanted.size);
        source.read(wanted.position, answer);
        follows = std::byte{1};
      } catch (const Error& failure) {
        if (!error) error = failure;
      } catch (const std::exception& failure) {
        if (!error) error = failed("{}: cannot be read: {}", source.name(), failure.what());
      }
    if (!send_whole(std::span(&follows, 1)) || (follows == std::byte{1} && !send_whole(answer))) break;
  }
  return error;
}

// What it does ----------------------------------------------------------------------------------------

// No Handle here: it waits for a Turn, which the parent's thread has, and the child's cannot get.
void look_at_attribute(hid_t location, const char* name) {
  const hid_t attribute = H5Aopen(location, name, H5P_DEFAULT);
  if (attribute < 0) return;
  const hid_t type = H5Aget_type(attribute), space = H5Aget_space(attribute);
  const hssize_t count = space >= 0 ? H5Sget_simple_extent_npoints(space) : -1;
  const size_t size = type >= 0 ? H5Tget_size(type) : 0;
  if (count > 0 && size > 0 && static_cast<hsize_t>(count) <= kMostAttributeBytes / size) {
    std::vector<char> bytes(static_cast<size_t>(count) * size);
    if (H5Aread(attribute, type, bytes.data()) >= 0 && H5Tis_variable_str(type) > 0)
      H5Dvlen_reclaim(type, space, H5P_DEFAULT, bytes.data());
  }
  if (space >= 0) H5Sclose(space);
  if (type >= 0) H5Tclose(type);
  H5Aclose(attribute);
}

void look_at_attributes(hid_t object) {
  const auto look = [](hid_t location, const char* name, const H5A_info_t*, void* callback) -> herr_t {
    return static_cast<Callback*>(callback)->run([&] { look_at_attribute(location, name); });
  };
  hsize_t at = 0;
  Callback callback;
  H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_NATIVE, &at, look, &callback);
  callback.rethrow();
}

/// Reads what kvcodec would read by HDF5 itself, up to a bound: contiguous rows, whole chunks and those with filters it reads
/// past it.
void read_some(hid_t dataset, hid_t space, hid_t type, hid_t creation, const std::vector<hsize_t>& extent) {
  const H5D_layout_t layout = H5Pget_layout(creation);
  if (layout == H5D_CONTIGUOUS || type < 0 || H5Tget_size(type) == 0) return;
  if (layout == H5D_CHUNKED) {
    if (H5Pget_nfilters(creation) != 0) return;
    std::vector<hsize_t> chunk(extent.size());
    const bool rows = H5Pget_chunk(creation, static_cast<int>(chunk.size()), chunk.data()) >= 0 &&
                      std::equal(chunk.begin() + 1, chunk.end(), extent.begin() + 1);
    hsize_t bytes = H5Tget_size(type);
    for (const hsize_t length : chunk)
      bytes = length > 0 && bytes <= kMostReadBytes / length ? bytes * length : kMostReadBytes + 1;
    if (rows && bytes <= H5Dget_storage_size(dataset)) return;
  }
  hsize_t row = H5Tget_size(type);
  for (size_t i = 1; i < extent.size(); ++i)
    row = extent[i] > 0 && row <= kMostReadBytes / extent[i] ? row * extent[i] : 0;
  if (row == 0 || row > kMostReadBytes || H5Tdetect_class(type, H5T_VLEN) > 0 || H5Tis_variable_str(type) > 0)
    return;
  std::vector<hsize_t> start(extent.size(), 0), count = extent;
  count[0] = std::min<hsize_t>(extent[0], kMostReadBytes / row);
  std::vector<char> bytes(count[0] * row);
  const hid_t memory = H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr);
  if (H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr) >= 0)
    H5Dread(dataset, type, memory, space, H5P_DEFAULT, bytes.data());
  H5Sclose(memory);
}

/// Goes through all chunks in the order of their index, and finds as many as are stored as kvcodec does, by their rows.
void find_chunks(hid_t dataset, hid_t type, hsize_t rows, const std::vector<hsize_t>& chunk) {
  const hsize_t last = (rows - 1) / chunk[0];
  double bytes = type >= 0 ? static_cast<double>(H5Tget_size(type)) : 0;
  for (const hsize_t length : chunk) bytes *= static_cast<double>(length);
  const double stored = static_cast<double>(H5Dget_storage_size(dataset)) / std::max(bytes, 1.0);
  std::vector<hsize_t> offset(chunk.size(), 0);
  unsigned filters = 0;
  haddr_t address = HADDR_UNDEF;
  hsize_t size = 0;
  offset[0] = last * chunk[0];
  H5Dget_chunk_info_by_coord(dataset, offset.data(), &filters, &address, &size);
  const hsize_t found = std::min({last, kMostFound, static_cast<hsize_t>(std::min(stored, 1e9))});
  for (hsize_t i = 0; i <= found; ++i) {
    offset[0] = i * chunk[0];
    H5Dget_chunk_storage_size(dataset, offset.data(), &size);
  }
}

void look_at_dataset(hid_t dataset) {
  const hid_t space = H5Dget_space(dataset), type = H5Dget_type(dataset),
              creation = H5Dget_create_plist(dataset);
  const int rank = space >= 0 ? H5Sget_simple_extent_ndims(space) : -1;
  H5Dget_storage_size(dataset);
  std::vector<hsize_t> extent(static_cast<size_t>(std::max(rank, 0)));
  if (rank > 0) H5Sget_simple_extent_dims(space, extent.data(), nullptr);
  if (rank > 0 && creation >= 0 && H5Pget_layout(creation) == H5D_CHUNKED) {
    std::vector<hsize_t> chunk(extent.size());
    if (H5Pget_chunk(creation, rank, chunk.data()) >= 0 && chunk[0] > 0 &&
        std::ranges::find(extent, hsize_t{0}) == extent.end())
      find_chunks(dataset, type, extent[0], chunk);
  }
  if (rank > 0 && creation >= 0 && std::ranges::find(extent, hsize_t{0}) == extent.end())
    read_some(dataset, space, type, creation, extent);
  if (creation >= 0) {
    const int filters = H5Pget_nfilters(creation);
    for (int i = 0; i < filters; ++i) {
      unsigned flags = 0;
      size_t values = 0;
      H5Pget_filter2(creation, static_cast<unsigned>(i), &flags, &values, nullptr, 0, nullptr, nullptr);
    }
    H5Pclose(creation);
  }
  if (type >= 0) H5Tclose(type);
  if (space >= 0) H5Sclose(space);
}

void look_at_everything(hid_t file) {
  std::vector<std::string> groups{"/"};
  size_t objects = 0;
  while (!groups.empty() && objects < kMostObjects) {
    const std::string name = groups.back();
    groups.pop_back();
    const hid_t group = H5Oopen(file, name.c_str(), H5P_DEFAULT);
    if (group < 0) continue;
    look_at_attributes(group);
    const auto names = H5Iget_type(group) == H5I_GROUP ? link_names(group, true) : std::nullopt;
    for (const std::string& below : names.value_or(std::vector<std::string>())) {
      ++objects;
      std::string path = name == "/" ? name : name + "/";
      path += below;
      const hid_t object = H5Oopen(group, below.c_str(), H5P_DEFAULT);
      if (object < 0) continue;
      const H5I_type_t kind = H5Iget_type(object);
      if (kind == H5I_GROUP && std::count(path.begin(), path.end(), '/') < 16) groups.push_back(path);
      if (kind != H5I_GROUP) look_at_attributes(object);
      if (kind == H5I_DATASET) look_at_dataset(object);
      H5Oclose(object);
    }
    H5Oclose(group);
  }
}

/// Where HDF5 reads memory that it did not set, the child must crash even if it finds there what the parent would not: fresh
/// memory is filled with what is no address.
void expose_what_is_not_set() {
  H5garbage_collect();  // else HDF5 takes what it has set before
#ifdef M_PERTURB
  ::mallopt(M_PERTURB, 1);
#endif
}

/// What is filled is memory taken, and a header may name gigabytes: beyond kRoom the child gets none, and HDF5 refuses what it cannot
/// hold. The parent is not bound so: what was refused for that reason was not looked at.
void bound_memory() {
  rlim_t pages = 0;
  std::ifstream sizes("/proc/self/statm");
  for (int field = 0; field < 6; ++field) sizes >> pages;  // the sixth is what counts for the limit
  if (!sizes) return;
  const rlim_t most = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + kRoom;
  const rlimit bytes = {most, most};
  ::setrlimit(RLIMIT_DATA, &bytes);
}

/// Whether HDF5 refused something for want of memory, as its errors say.
struct MemoryWatch {
  hid_t no_space = H5E_NOSPACE, no_allocation = H5E_CANTALLOC;
  bool wanting = false;
};

/// HDF5 calls it at each error.
herr_t watch_memory(hid_t errors, void* watch) {
  const auto look = [](unsigned, const H5E_error2_t* entry, void* client) -> herr_t {
    auto& own = *static_cast<MemoryWatch*>(client);
    if (entry->min_num == own.no_space || entry->min_num == own.no_allocation) own.wanting = true;
    return 0;
  };
  return H5Ewalk2(errors, H5E_WALK_UPWARD, look, watch);
}

/// What operator new calls where it finds no memory. That a file can bring about by filling most of kRoom; else the machine has none.
[[noreturn]] void end_if_full() {
  constexpr size_t kMuch = kRoom / 4 * 3;
  void* const place = ::mmap(nullptr, kMuch, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) ::_exit(kNoMemory);
  ::munmap(place, kMuch);
  throw std::bad_alloc();
}

uint64_t size_of(const Looked& looked) {
  if (looked.overlay) return looked.overlay->end;
  if (looked.far) return looked.far->size();
  struct stat status = {};
  return ::fstat(looked.descriptor, &status) == 0 ? static_cast<uint64_t>(status.st_size) : 0;
}

/// A header of some bytes can name more chunks than there is time to go through.
void bound_time(const Looked& looked) {
  const rlim_t most = std::min<rlim_t>(kMostSeconds, kSecondsOfSmall + size_of(looked) / kBytesOfSecond);
  const rlimit seconds = {most, most + 1};
  ::setrlimit(RLIMIT_CPU, &seconds);
}

/// socket: at whose other end the bytes of a file on a server are.
[[noreturn]] void be_the_child(const Looked& looked, int socket) {
  for (const int number :
       {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGXCPU, SIGINT, SIGTERM, SIGHUP, SIGPIPE})
    ::signal(number, SIG_DFL);  // those of the parent would remove its temporaries
  ::signal(SIGALRM, SIG_DFL);
  if (!looked.far) ::alarm(kMostWaiting);  // who waits for a server is the parent, which ends
  bound_time(looked);
  const rlimit no_core = {0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  close_others(looked.far ? socket : looked.descriptor);
  FileStatus status;
  status.source = looked.local;
  status.given = looked.descriptor;
  status.overlay = looked.overlay;
  MemoryWatch memory;
  try {
    AskedBytes asked(socket, looked.far ? looked.far->size() : 0);
    if (looked.far) status.source = &asked;
    const hid_t access = make_access(&status);
    bound_memory();
    std::set_new_handler(end_if_full);
    H5Eset_auto2(H5E_DEFAULT, watch_memory, &memory);
    expose_what_is_not_set();
    // The sanitizer of undefined behaviour looks at the type of an object once, through a pipe: not to be had behind this.
    if (status.source) (void)status.source->size();
    give_up_rights(looked.far ? socket : -1);  // where a container forbids it there is a child all the same
    const hid_t file = H5Fopen("probed", looked.use == Use::changing ? H5F_ACC_RDWR : H5F_ACC_RDONLY, access);
    if (file >= 0) {
      look_at_everything(file);
      H5Fclose(file);
    }
  } catch (...) {
    // The machine has no memory. Who is above on the stack is the parent's: it must not go on here, and will see for itself.
  }
  // A file that is here and cannot be read is left to the parent, which will say why.
  ::_exit(looked.far && status.source_error ? kNoBytes : memory.wanting ? kNoMemory : 0);
}

std::optional<ProbedState> probed_state(const Looked& looked) {
  if (looked.far) return looked.far->number();
  struct stat status = {};
  if (::fstat(looked.descriptor, &status) != 0) return std::nullopt;
  return LocalState{status.st_dev, status.st_ino, status.st_size, status.st_mtim.tv_sec,
                    status.st_mtim.tv_nsec};
}

/// How looks ended that need not be taken again. The caller lets one thread in at a time.
std::map<ProbedState, Probed>& known() {
  static std::map<ProbedState, Probed> ends;
  return ends;
}

void remember(const ProbedState& state, Probed end) {
  constexpr size_t kMostKnown = 1 << 12;
  if (known().size() >= kMostKnown) known().clear();
  known().insert_or_assign(state, end);
}

/// How the child ended; nothing if that is not to be had.
std::optional<int> wait_for(pid_t child) {
  int result = 0;
  return uninterrupted([&] { return ::waitpid(child, &result, 0); }) < 0 ? std::nullopt
                                                                         : std::optional(result);
}

}  // namespace

Probe::Probe(const Looked& looked) : looked_(looked), state_(probed_state(looked)) {
  if (!state_) return;
  if (const auto before = known().find(*state_); !looked.overlay && before != known().end()) {
    known_ = before->second;
    return;
  }
  int sockets[2] = {-1, -1};
  if (looked.far && ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) return;
  child_ = ::fork();  // without a process to spare the file is read as without a probe
  if (child_ == 0) be_the_child(looked, sockets[1]);
  if (looked.far) ::close(sockets[1]);
  socket_ = sockets[0];
}

Probe::~Probe() {
  if (socket_ >= 0) ::close(socket_);
  if (child_ <= 0) return;
  ::kill(child_, SIGKILL);
  wait_for(child_);
}

Probed Probe::end() {
  if (child_ <= 0) return known_;
  FarFile* const far = looked_.far;
  const std::optional<Error> unread = far ? serve(socket_, *far) : std::nullopt;
  if (far) ::close(std::exchange(socket_, -1));
  const std::optional<int> result = wait_for(std::exchange(child_, -1));
  if (!result) return Probed::passed;
  if (unread) throw *unread;
  if (WIFSIGNALED(*result)) {
    const int number = WTERMSIG(*result);
    // Who ends the child from outside says nothing of the file.
    if (number == SIGXCPU || number == SIGALRM) return found(Probed::endless);
    if (number == SIGSEGV || number == SIGBUS || number == SIGABRT || number == SIGFPE || number == SIGILL)
      return Probed::crashed;
  }
  const int status = WIFEXITED(*result) ? WEXITSTATUS(*result) : 0;
  if (far && status == kNoBytes)
    throw failed("{}: cannot be read by the child process that looks at it first", far->name());
  if (status == kNoMemory) return Probed::starved;
  // HDF5 asks for an end in some cases, and a sanitizer for each fault it finds.
  if (status != 0) return Probed::crashed;
  return found(Probed::passed);
}

Probed Probe::found(Probed end) const {
  if (!looked_.overlay) remember(*state_, end);
  return end;
}

}  // namespace kvcodec::h5
