// The probe of an HDF5 file by a child process without rights.
#include <fstream>
#include <map>
#include <new>

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
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

#include "formats/hdf5/library.hpp"
#include "formats/io/descriptor.hpp"

namespace kvcodec::h5 {

// Processor time: a sound file takes some milliseconds, and a small part of a second per MiB.
constexpr rlim_t kMinSeconds = 5, kMaxSeconds = 60;
constexpr uint64_t kBytesPerSecond = uint64_t{1} << 20;  // one more second for that many bytes
constexpr unsigned kMaxWait = 600;                       // seconds in all, for a local file, asleep or not
constexpr size_t kMaxObjects = size_t{1} << 20;
constexpr hsize_t kMaxFound = hsize_t{1} << 20;      // chunks looked up in a dataset
constexpr hsize_t kMaxReadBytes = hsize_t{1} << 26;  // of a dataset
constexpr hsize_t kMaxAttributeBytes = hsize_t{1} << 26;
constexpr rlim_t kRoom = rlim_t{1} << 30;  // bytes of memory, beyond what the parent has

// Exit statuses of the child besides 0: numbers that neither HDF5 nor a sanitizer ends a process with.
constexpr int kNoBytes = 101;   // it could not ask for them, or none came
constexpr int kNoMemory = 102;  // what it wanted is beyond kRoom

// Rights of the child ---------------------------------------------------------------------------------

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
      __NR_clock_gettime, __NR_rt_sigreturn, __NR_fcntl,  __NR_sigaltstack};  // the last one: for the address sanitizer, as a child ends
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
    // The descriptor fits the lower half of the argument, which comes first.
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
  constexpr long kMaxDescriptors = 65536;
  const long limit = ::sysconf(_SC_OPEN_MAX),
             most = limit < 0 ? kMaxDescriptors : std::min(limit, kMaxDescriptors);
  for (int other = 0; other < most; ++other)
    if (other != kept) ::close(other);
}

namespace {

// Bytes for the child ---------------------------------------------------------------------------------

// The child writes a position and a size, and reads the bytes; if these are not available the parent closes its end.
struct Wanted {
  uint64_t position = 0, size = 0;
};
constexpr uint64_t kMaxWanted = uint64_t{1} << 20;

class AskedBytes final : public ByteSource {
 public:
  AskedBytes(int socket, uint64_t size) : socket_(socket), size_(size) {}

  uint64_t size() const override { return size_; }
  void read(uint64_t position, std::span<std::byte> out) override {
    while (!out.empty()) {
      const Wanted wanted{position, std::min<uint64_t>(out.size(), kMaxWanted)};
      if (::write(socket_, &wanted, sizeof wanted) != sizeof wanted ||
          read_next(socket_, out.first(wanted.size)).bytes != wanted.size)
        throw bad_input("no bytes came");
      position += wanted.size;
      out = out.subspan(wanted.size);
    }
  }

 private:
  int socket_;
  uint64_t size_;
};

/// Answers the child's requests, in the parent, until the child has exited. Returns the reason why bytes could not be delivered.
std::optional<Error> serve(int socket, FarFile& source) try {
  std::vector<std::byte> answer;
  for (Wanted wanted;
       read_next(socket, std::as_writable_bytes(std::span(&wanted, 1))).bytes == sizeof wanted;) {
    if (wanted.size > kMaxWanted || wanted.position > source.size() ||
        wanted.size > source.size() - wanted.position)
      break;
    answer.resize(wanted.size);
    source.read(wanted.position, answer);
    for (std::span<const std::byte> left = answer; !left.empty();) {
      const ssize_t put =
          uninterrupted([&] { return ::send(socket, left.data(), left.size(), MSG_NOSIGNAL); });
      if (put <= 0) return std::nullopt;
      left = left.subspan(static_cast<size_t>(put));
    }
  }
  return std::nullopt;
} catch (const Error& error) {
  return error;
} catch (const std::exception& error) {
  return failed("{}: cannot be read: {}", source.name(), error.what());
}

// The visit --------------------------------------------------------------------------------------------

// No Handle here: it waits for a Turn, which the parent's thread holds and the child cannot get.
void visit_attribute(hid_t location, const char* name) {
  const hid_t attribute = H5Aopen(location, name, H5P_DEFAULT);
  if (attribute < 0) return;
  const hid_t type = H5Aget_type(attribute), space = H5Aget_space(attribute);
  const hssize_t count = space >= 0 ? H5Sget_simple_extent_npoints(space) : -1;
  const size_t size = type >= 0 ? H5Tget_size(type) : 0;
  if (count > 0 && size > 0 && static_cast<hsize_t>(count) <= kMaxAttributeBytes / size) {
    std::vector<char> bytes(static_cast<size_t>(count) * size);
    if (H5Aread(attribute, type, bytes.data()) >= 0 && H5Tis_variable_str(type) > 0)
      H5Dvlen_reclaim(type, space, H5P_DEFAULT, bytes.data());
  }
  if (space >= 0) H5Sclose(space);
  if (type >= 0) H5Tclose(type);
  H5Aclose(attribute);
}

void visit_attributes(hid_t object) {
  Callback<hid_t, const char*, const H5A_info_t*> visit(
      [](hid_t location, const char* name, const H5A_info_t*) { visit_attribute(location, name); });
  hsize_t at = 0;
  H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_NATIVE, &at, visit.call, &visit);
  visit.rethrow();
}

/// Reads the data that kvcodec would read through HDF5 itself, up to a bound; kvcodec reads contiguous rows, whole chunks and
/// filtered chunks directly.
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
      bytes = length > 0 && bytes <= kMaxReadBytes / length ? bytes * length : kMaxReadBytes + 1;
    if (rows && bytes <= H5Dget_storage_size(dataset)) return;
  }
  hsize_t row = H5Tget_size(type);
  for (size_t i = 1; i < extent.size(); ++i)
    row = extent[i] > 0 && row <= kMaxReadBytes / extent[i] ? row * extent[i] : 0;
  if (row == 0 || row > kMaxReadBytes || H5Tdetect_class(type, H5T_VLEN) > 0 || H5Tis_variable_str(type) > 0)
    return;
  std::vector<hsize_t> start(extent.size(), 0), count = extent;
  count[0] = std::min<hsize_t>(extent[0], kMaxReadBytes / row);
  std::vector<char> bytes(count[0] * row);
  const hid_t memory = H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr);
  if (H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr) >= 0)
    H5Dread(dataset, type, memory, space, H5P_DEFAULT, bytes.data());
  H5Sclose(memory);
}

/// Visits all chunks in the order of their index, and looks up the same number of chunks by their rows, as kvcodec does.
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
  const hsize_t found = std::min({last, kMaxFound, static_cast<hsize_t>(std::min(stored, 1e9))});
  for (hsize_t i = 0; i <= found; ++i) {
    offset[0] = i * chunk[0];
    H5Dget_chunk_storage_size(dataset, offset.data(), &size);
  }
}

void visit_dataset(hid_t dataset) {
  const hid_t space = H5Dget_space(dataset), type = H5Dget_type(dataset),
              creation = H5Dget_create_plist(dataset);
  const int rank = space >= 0 ? H5Sget_simple_extent_ndims(space) : -1;
  H5Dget_storage_size(dataset);
  std::vector<hsize_t> extent(static_cast<size_t>(std::max(rank, 0)));
  if (rank > 0) H5Sget_simple_extent_dims(space, extent.data(), nullptr);
  if (rank > 0 && creation >= 0 && std::ranges::find(extent, hsize_t{0}) == extent.end()) {
    std::vector<hsize_t> chunk(extent.size());
    if (H5Pget_layout(creation) == H5D_CHUNKED && H5Pget_chunk(creation, rank, chunk.data()) >= 0 &&
        chunk[0] > 0)
      find_chunks(dataset, type, extent[0], chunk);
    read_some(dataset, space, type, creation, extent);
  }
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

void visit_all(hid_t file) {
  std::vector<std::string> groups{"/"};
  size_t objects = 0;
  while (!groups.empty() && objects < kMaxObjects) {
    const std::string name = groups.back();
    groups.pop_back();
    const hid_t group = H5Oopen(file, name.c_str(), H5P_DEFAULT);
    if (group < 0) continue;
    visit_attributes(group);
    const auto names = H5Iget_type(group) == H5I_GROUP ? link_names(group, true) : std::nullopt;
    for (const std::string& below : names.value_or(std::vector<std::string>())) {
      ++objects;
      std::string path = name == "/" ? name : name + "/";
      path += below;
      const hid_t object = H5Oopen(group, below.c_str(), H5P_DEFAULT);
      if (object < 0) continue;
      const H5I_type_t kind = H5Iget_type(object);
      if (kind == H5I_GROUP && std::ranges::count(path, '/') < 16) groups.push_back(path);
      if (kind != H5I_GROUP) visit_attributes(object);
      if (kind == H5I_DATASET) visit_dataset(object);
      H5Oclose(object);
    }
    H5Oclose(group);
  }
}

/// At `max` seconds of processor time the process gets a signal; it is killed one second later.
void bound(decltype(RLIMIT_CPU) resource, rlim_t max) {
  const rlimit limit = {max, max + (resource == RLIMIT_CPU)};
  ::setrlimit(resource, &limit);
}

/// Beyond kRoom the child gets no memory, and HDF5 refuses larger objects: a header may claim gigabytes, which the child would use,
/// because it fills fresh memory. The parent has no such limit: objects refused for that reason were not probed.
void bound_memory() {
  rlim_t pages = 0;
  std::ifstream sizes("/proc/self/statm");
  for (int field = 0; field < 6; ++field) sizes >> pages;  // the sixth is what counts for the limit
  if (sizes) bound(RLIMIT_DATA, pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + kRoom);
}

/// Records whether HDF5 refused something for lack of memory, according to its errors.
struct MemoryWatch {
  hid_t no_space = H5E_NOSPACE, no_allocation = H5E_CANTALLOC;
  bool lacked = false;
};

herr_t watch_memory(hid_t errors, void* watch) {
  const auto look = [](unsigned, const H5E_error2_t* entry, void* client) -> herr_t {
    auto& own = *static_cast<MemoryWatch*>(client);
    if (entry->min_num == own.no_space || entry->min_num == own.no_allocation) own.lacked = true;
    return 0;
  };
  return H5Ewalk2(errors, H5E_WALK_UPWARD, look, watch);
}

/// Operator new calls this if it finds no memory: because the file filled most of kRoom, or because the machine has none.
[[noreturn]] void end_if_full() {
  constexpr size_t kMuch = kRoom / 4 * 3;
  void* const place = ::mmap(nullptr, kMuch, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) ::_exit(kNoMemory);
  ::munmap(place, kMuch);
  throw std::bad_alloc();
}

uint64_t size_of(const ProbeTarget& target) {
  if (target.overlay) return target.overlay->end;
  if (target.far) return target.far->size();
  return state_of(target.descriptor).value_or(FileState()).size;
}

/// socket: its other end delivers the bytes of a file on a server.
[[noreturn]] void run_child(const ProbeTarget& target, int socket) {
  for (const int number :
       {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGXCPU, SIGINT, SIGTERM, SIGHUP, SIGALRM})
    ::signal(number, SIG_DFL);         // the parent's handlers would remove its temporary files
  ::signal(SIGPIPE, SIG_IGN);          // then a write to the socket fails instead
  if (!target.far) ::alarm(kMaxWait);  // the parent waits for the server and ends the wait
  // A header of some bytes can name more chunks than there is time to go through.
  bound(RLIMIT_CPU, std::min<rlim_t>(kMaxSeconds, kMinSeconds + size_of(target) / kBytesPerSecond));
  bound(RLIMIT_CORE, 0);
  close_others(target.far ? socket : target.descriptor);
  FileStatus status;
  status.source = target.local;
  status.given = target.descriptor;
  status.overlay = target.overlay;
  MemoryWatch memory;
  try {
    AskedBytes asked(socket, target.far ? target.far->size() : 0);
    if (target.far) status.source = &asked;
    const hid_t access = make_access(&status);
    bound_memory();
    std::set_new_handler(end_if_full);
    H5Eset_auto2(H5E_DEFAULT, watch_memory, &memory);
    // If HDF5 reads uninitialized memory, the child must crash even where the parent would not: fresh memory is filled with a value
    // that is no valid address.
    H5garbage_collect();  // else HDF5 reuses memory that it has set before
#ifdef M_PERTURB
    ::mallopt(M_PERTURB, 1);
#endif
    // At its first use, the sanitizer of undefined behaviour checks an object's type through a pipe: later that would fail.
    if (status.source) (void)status.source->size();
    // If a container forbids this, the child still protects the parent.
    give_up_rights(target.far ? socket : -1);
    const hid_t file = H5Fopen("probed", target.use == Use::changing ? H5F_ACC_RDWR : H5F_ACC_RDONLY, access);
    if (file >= 0) {
      visit_all(file);
      H5Fclose(file);
    }
  } catch (...) {
    // The machine has no memory. The callers on the stack belong to the parent: they must not continue here, and will fail themselves.
  }
  // The parent reports errors of reading a local file.
  ::_exit(target.far && status.source_error ? kNoBytes : memory.lacked ? kNoMemory : 0);
}

Probed end_of(int result) {
  if (WIFSIGNALED(result)) {
    // A signal from outside tells nothing about the file.
    const int number = WTERMSIG(result);
    if (number == SIGXCPU || number == SIGALRM) return Probed::endless;
    const bool fault =
        number == SIGSEGV || number == SIGBUS || number == SIGABRT || number == SIGFPE || number == SIGILL;
    return fault ? Probed::crashed : Probed::passed;
  }
  const int status = WIFEXITED(result) ? WEXITSTATUS(result) : 0;
  if (status == kNoMemory) return Probed::starved;
  // HDF5 and sanitizers end the process with other statuses.
  return status != 0 ? Probed::crashed : Probed::passed;
}

}  // namespace

Probed probe(const ProbeTarget& target) {
  // Earlier results, by the files' states; of a file on a server only the number is known.
  static std::map<FileState, Probed> known;
  const auto state = target.far ? FileState{.number = target.far->number()} : state_of(target.descriptor);
  if (!state) return Probed::passed;
  if (const auto before = known.find(*state); !target.overlay && before != known.end()) return before->second;
  int sockets[2] = {-1, -1};
  if (target.far && ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) return Probed::passed;
  const pid_t child = ::fork();
  if (child == 0) run_child(target, sockets[1]);
  Descriptor own(sockets[0]);
  Descriptor(sockets[1]).close();
  if (child < 0) return Probed::passed;  // no child can be made: the file is read without a probe
  const std::optional<Error> unread = target.far ? serve(own.get(), *target.far) : std::nullopt;
  own.close();
  int result = 0;
  if (uninterrupted([&] { return ::waitpid(child, &result, 0); }) < 0) return Probed::passed;
  if (unread) throw *unread;
  if (target.far && WIFEXITED(result) && WEXITSTATUS(result) == kNoBytes)
    throw failed("{}: cannot be read by the child process that looks at it first", target.far->name());
  const Probed end = end_of(result);
  constexpr size_t kMaxKnown = 1 << 12;
  if (target.overlay || end == Probed::crashed || end == Probed::starved) return end;
  if (known.size() >= kMaxKnown) known.clear();
  known.insert_or_assign(*state, end);
  return end;
}

}  // namespace kvcodec::h5
