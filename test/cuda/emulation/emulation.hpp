// CUDA's execution model on the CPU, for tests: the kernels of cuda/ run here thread by thread, so that their
// indexing, their barriers and their arithmetic are checked where there is no device. What passes here has
// still not run on a device: instructions, memory ordering and speed are the device's own.
//
// The threads of a block are fibers of one system thread; blocks run one after the other. A fiber runs until
// it waits for others, and in every stretch between two waits the fibers are taken in another random order:
// a missing barrier shows as a result that changes with the seed, or as one that is wrong.
//
// It finds
//   - a wait that never ends: threads at __syncthreads while others left or wait for their warp, lanes of a
//     mask that meet in different operations, a mask whose lanes never come;
//   - memory beyond the end of a buffer: each device buffer and each shared array ends at a page that cannot
//     be touched (or within 16 bytes of it, where only writes are noticed); before it lies one too;
//   - host code that touches device memory: it can be read and written only while kernels and copies run;
//   - results taken before synchronize(): nothing runs earlier than somebody waits for it;
//   - memory nobody wrote: device buffers, shared memory and copies that have not been waited for hold NaNs;
//   - pointers to host memory among the arguments of a launch, and sizes of launches that devices refuse.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

namespace kvcodec::emulation {

/// The fault of a kernel or its launch.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Size3 {
  unsigned x = 1, y = 1, z = 1;
};

/// The thread that runs; set before each of its stretches.
struct Place {
  Size3 thread, block, block_size, grid_size;
};
extern Place place;

/// Runs body() in every thread of every block. Throws Fault, or an exception of body. asked: true if the launch requested the
/// dynamic shared memory that it uses.
void run_grid(Size3 grid, unsigned threads, size_t shared_bytes, bool asked,
              const std::function<void()>& body);

/// The order of threads from now on depends on this seed.
void set_seed(uint64_t seed);

// For kernels: -------------------------------------------------------------------------------------

void sync_block();
/// The number of threads of the block that pass true; like sync_block.
int count_block(bool yes);

/// A joint operation of lanes of a warp: each contributes up to kSlot bytes, all of `mask` must come, and gets everybody's: lane
/// i's is at slots + i * kSlot until this lane's next meeting.
enum class Meeting : uint8_t { sync, shuffle, vote, match, load_matrices, multiply };
inline constexpr size_t kSlot = 64;
const std::byte* meet(Meeting meeting, unsigned mask, const void* value, size_t bytes);
unsigned lane();

std::byte* dynamic_shared_memory();
/// The block's own array for this key, the same for all its threads.
std::byte* shared_array(const void* key, size_t bytes);

void copy_later(void* to, const void* from, unsigned bytes);
void commit_copies();
void wait_copies(int groups);

// Memory and streams: ------------------------------------------------------------------------------

/// Bytes that the device has.
inline constexpr uint64_t kMemory = uint64_t{1} << 30;
/// The bytes that no buffer uses; cuda::DeviceBuffer gets no more.
uint64_t free_memory();
/// Simulates a device with as many bytes as buffers have now and `bytes` more, but at most kMemory.
void leave_free(uint64_t bytes);

/// Makes launches fail, like those of a device that no longer works: they return an error and run nothing.
void fail_launches(bool fail);
bool launches_fail();

inline constexpr int kMultiprocessors = 4;
inline constexpr size_t kSharedBytes = 163 * 1024;  ///< cuda::kMinSharedBytes
/// A block's dynamic memory and arrays together, if launch() has not requested more (kSharedUnasked).
inline constexpr size_t kSharedWithoutAsking = 48 * 1024;

/// Bytes that were copied from the device since the program began.
uint64_t downloaded_bytes();

void* allocate(size_t bytes);
void release(void* data);
/// Throws Fault unless all of it lies in one device buffer (or bytes is 0).
void check_device_range(const void* data, size_t bytes);
/// For pointers among the arguments of a launch: null, or into a device buffer, or directly after one.
void check_device_pointer(const void* data);

struct Stream;
Stream* make_stream();
void destroy_stream(Stream* stream);
void enqueue(Stream* stream, std::function<void()> work);
void synchronize(Stream* stream);
void synchronize_all();

/// A point in a stream.
struct Event {
  Stream* stream = nullptr;
  uint64_t position = 0;
};
void record(Event& event, Stream* stream);
void reach(const Event& event);

/// Device memory can be touched while one of these lives.
class Access {
 public:
  Access();
  ~Access();
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;
};

}  // namespace kvcodec::emulation
