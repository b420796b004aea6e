#include "cuda/runtime/runtime.hpp"

#include <atomic>

#include <cuda_runtime.h>

namespace kvcodec::cuda {

void check(Status status, const char* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // this failure is handled; later calls must not see it again
  const std::string message =
      fmt::format("{}: {}", what, cudaGetErrorString(static_cast<cudaError_t>(status)));
  if (status == cudaErrorMemoryAllocation) throw OutOfMemory(message);
  throw DeviceFault(message);
}

static int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "asking for the device in use");
  return device;
}

static size_t attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, name, device), "asking what the device can do");
  return static_cast<size_t>(value);
}

static std::atomic<uint64_t> free_limit = kAllFreeBytes;

/// Freed memory stays with the process up to this size: asking the driver for it anew takes as long as a
/// small piece of work.
constexpr uint64_t kKeptBytes = uint64_t{4} << 30;

/// The pool of the device in use; nullptr where it has none.
static cudaMemPool_t memory_pool() {
  static const cudaMemPool_t pool = [] {
    const int device = current_device();
    cudaMemPool_t own = nullptr;
    if (attribute(cudaDevAttrMemoryPoolsSupported, device) == 0) return own;
    check(cudaDeviceGetDefaultMemPool(&own, device), "asking for the device's memory pool");
    uint64_t kept = kKeptBytes;
    check(cudaMemPoolSetAttribute(own, cudaMemPoolAttrReleaseThreshold, &kept), "setting a memory pool up");
    return own;
  }();
  return pool;
}

static uint64_t pool_bytes(cudaMemPoolAttr which) {
  uint64_t bytes = 0;
  check(cudaMemPoolGetAttribute(memory_pool(), which, &bytes), "asking a memory pool for its size");
  return bytes;
}

/// Bytes of a vector load or copy. The size of a buffer is a multiple of it.
constexpr size_t kVectorBytes = 16;

/// The pool works in the order of one stream, which nothing else uses. Work of any stream may use the
/// memory after it has waited for this stream.
constexpr cudaStream_t kPoolStream = nullptr;

static cudaError_t allocate_from_pool(void** data, size_t bytes) {
  const cudaError_t status = cudaMallocAsync(data, bytes, kPoolStream);
  return status == cudaSuccess ? cudaStreamSynchronize(kPoolStream) : status;
}

Limits limits() {
  const int device = current_device();
  return {static_cast<int>(attribute(cudaDevAttrMultiProcessorCount, device)),
          attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
          attribute(cudaDevAttrL2CacheSize, device)};
}

uint64_t free_bytes() {
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for free device memory");
  const uint64_t kept = memory_pool() ? pool_bytes(cudaMemPoolAttrReservedMemCurrent) -
                                            pool_bytes(cudaMemPoolAttrUsedMemCurrent)
                                      : 0;
  return std::min<uint64_t>(free + kept, free_limit);
}

void limit_free_bytes(uint64_t bytes) { free_limit = bytes; }

Stream::Stream() { check(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking), "making a stream"); }
Stream::~Stream() {
  if (!handle_) return;
  // Buffers of unfinished work may be about to be freed on the host.
  (void)cudaStreamSynchronize(handle_);
  (void)cudaStreamDestroy(handle_);
}
void Stream::synchronize() const { check(cudaStreamSynchronize(handle_), "work on the device"); }

Event::Event() { check(cudaEventCreate(&handle_), "making an event"); }
Event::~Event() { (void)cudaEventDestroy(handle_); }
void Event::record(const Stream& stream) {
  check(cudaEventRecord(handle_, stream.handle()), "recording an event");
}
void Event::hold_back(const Stream& stream) const {
  check(cudaStreamWaitEvent(stream.handle(), handle_, 0), "waiting for an event");
}
float Event::milliseconds_since(const Event& start) const {
  float milliseconds = 0;
  check(cudaEventSynchronize(handle_), "work on the device");
  check(cudaEventElapsedTime(&milliseconds, start.handle_, handle_), "reading the time between events");
  return milliseconds;
}

void* detail::allocate(size_t bytes) {
  void* data = nullptr;
  if (bytes == 0) return nullptr;
  // Rounded up, as compute-sanitizer takes a copy of 16 bytes for a read of all of them, even where a smaller size is given.
  bytes = (bytes + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
  cudaError_t status = memory_pool() ? allocate_from_pool(&data, bytes) : cudaMalloc(&data, bytes);
  if (status == cudaErrorMemoryAllocation && memory_pool()) {  // the memory kept may be fragmented
    (void)cudaGetLastError();
    (void)cudaMemPoolTrimTo(memory_pool(), 0);
    status = allocate_from_pool(&data, bytes);
  }
  check(status, fmt::format("{} bytes of device memory", bytes).c_str());
  return data;
}
void detail::release(void* data) noexcept {
  if (data == nullptr) return;
  // The next owner of the memory must not find unfinished work in it; cudaFree() waits by itself.
  if (cudaDeviceSynchronize() == cudaSuccess && memory_pool()) {
    (void)cudaFreeAsync(data, kPoolStream);
    (void)cudaStreamSynchronize(kPoolStream);  // then a trim, or a query of free bytes, finds it
  } else {
    (void)cudaFree(data);
  }
}

void* detail::allocate_pinned(size_t bytes) {
  void* data = nullptr;
  if (bytes == 0) return nullptr;
  check(cudaMallocHost(&data, bytes), fmt::format("{} bytes of page-locked memory", bytes).c_str());
  return data;
}
void detail::release_pinned(void* data) noexcept { (void)cudaFreeHost(data); }

void detail::upload(void* device, const void* host, size_t bytes, const Stream& stream) {
  if (bytes > 0)
    check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream.handle()),
          "copying to the device");
}
void detail::download(void* host, const void* device, size_t bytes, const Stream& stream) {
  if (bytes > 0)
    check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream.handle()),
          "copying from the device");
}
void detail::copy(void* to, const void* from, size_t bytes, const Stream& stream) {
  if (bytes > 0)
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream.handle()),
          "copying on the device");
}
void detail::fill(void* device, uint8_t value, size_t bytes, const Stream& stream) {
  if (bytes > 0) check(cudaMemsetAsync(device, value, bytes, stream.handle()), "filling device memory");
}
void detail::check_range(size_t first, size_t count, size_t size) {
  if (first > size || count > size - first)
    throw failed("elements {} to {} of a device buffer of {}", first, first + count, size);
}

}  // namespace kvcodec::cuda
