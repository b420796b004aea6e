// cuda/runtime/runtime.hpp and cuda/runtime/device.hpp over the emulation.
#include "cuda/runtime/runtime.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "cuda/runtime/device.hpp"
#include "lib/core/error.hpp"
#include "test/cuda/emulation/emulation.hpp"

namespace kvcodec {
namespace {

std::atomic<uint64_t> bytes_downloaded = 0;

}  // namespace

uint64_t emulation::downloaded_bytes() { return bytes_downloaded; }

namespace cuda {
namespace {

emulation::Stream* stream_of(StreamHandle handle) { return reinterpret_cast<emulation::Stream*>(handle); }
emulation::Event* event_of(EventHandle handle) { return reinterpret_cast<emulation::Event*>(handle); }

/// For destructors, which run waiting work: a fault that nobody else would see ends the program. During another exception, there is
/// already an error to see.
template <class Body>
void or_abort(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    if (std::uncaught_exceptions() > 0) return;
    std::fprintf(stderr, "emulation: %s\n", error.what());
    std::abort();
  }
}

}  // namespace

std::vector<DeviceInfo> devices() {
  return {{0, "emulation on the CPU", 8, 0, uint64_t{1} << 30, emulation::kMultiprocessors,
           emulation::kSharedBytes}};
}
DeviceInfo require_device(int index) {
  if (index != 0) throw no_device("no CUDA device {}: there is one, emulated", index);
  return devices()[0];
}

void check(Status status, const char* what) {
  if (status != 0) throw DeviceFault(fmt::format("{}: error {}", what, status));
}
Limits limits() { return {emulation::kMultiprocessors, emulation::kSharedBytes, 1 << 20}; }
uint64_t free_bytes() { return emulation::free_memory(); }
void limit_free_bytes(uint64_t bytes) { emulation::leave_free(bytes); }

Stream::Stream() : handle_(reinterpret_cast<StreamHandle>(emulation::make_stream())) {}
Stream::~Stream() {
  if (!handle_) return;
  or_abort([&] { emulation::synchronize(stream_of(handle_)); });
  emulation::destroy_stream(stream_of(handle_));
}
void Stream::synchronize() const { emulation::synchronize(stream_of(handle_)); }

Event::Event() : handle_(reinterpret_cast<EventHandle>(new emulation::Event)) {}
Event::~Event() { delete event_of(handle_); }
void Event::record(const Stream& stream) {
  emulation::record(*event_of(handle_), stream_of(stream.handle()));
}
void Event::hold_back(const Stream& stream) const {
  emulation::enqueue(stream_of(stream.handle()), [event = *event_of(handle_)] { emulation::reach(event); });
}
float Event::milliseconds_since(const Event& start) const {
  emulation::reach(*event_of(start.handle_));
  emulation::reach(*event_of(handle_));
  return 1;  // there is no device time here
}

void* detail::allocate(size_t bytes) {
  if (bytes > emulation::free_memory())
    throw OutOfMemory(fmt::format("{} bytes of device memory: {} are free", bytes, emulation::free_memory()));
  return emulation::allocate(bytes);
}
void detail::release(void* data) noexcept {
  or_abort([&] { emulation::release(data); });
}
void* detail::allocate_pinned(size_t bytes) {
  if (bytes == 0) return nullptr;
  // As limited as a device's own memory, so that tests can exhaust it.
  void* data = bytes > emulation::free_memory() ? nullptr : std::malloc(bytes);
  if (!data) throw OutOfMemory(fmt::format("{} bytes of page-locked memory", bytes));
  return data;
}
void detail::release_pinned(void* data) noexcept { std::free(data); }

void detail::upload(void* device, const void* host, size_t bytes, const Stream& stream) {
  emulation::check_device_range(device, bytes);
  emulation::enqueue(stream_of(stream.handle()), [=] {
    if (bytes > 0) std::memcpy(device, host, bytes);
  });
}
void detail::download(void* host, const void* device, size_t bytes, const Stream& stream) {
  emulation::check_device_range(device, bytes);
  bytes_downloaded += bytes;
  emulation::enqueue(stream_of(stream.handle()), [=] {
    if (bytes > 0) std::memcpy(host, device, bytes);
  });
}
void detail::copy(void* to, const void* from, size_t bytes, const Stream& stream) {
  emulation::check_device_range(to, bytes);
  emulation::check_device_range(from, bytes);
  emulation::enqueue(stream_of(stream.handle()), [=] {
    if (bytes > 0) std::memcpy(to, from, bytes);
  });
}
void detail::fill(void* device, uint8_t value, size_t bytes, const Stream& stream) {
  emulation::check_device_range(device, bytes);
  emulation::enqueue(stream_of(stream.handle()), [=] {
    if (bytes > 0) std::memset(device, value, bytes);
  });
}
void detail::check_range(size_t first, size_t count, size_t size) {
  if (first > size || count > size - first)
    throw failed("elements {} to {} of a device buffer of {}", first, first + count, size);
}

}  // namespace cuda
}  // namespace kvcodec
