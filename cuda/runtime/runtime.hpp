// Memory, streams and events of the current device, for the host side of the twins. Plain C++: wrappers that
// use this need no CUDA header, so the same wrappers run on the emulation of test/cuda/emulation.
//
// Everything throws with the runtime's own reason: OutOfMemory, or DeviceFault for all else.
//
// Copies and launches are asynchronous: host memory that they read or write must stay until the stream was
// synchronized. Work of one stream runs in order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/runtime/status.hpp"
#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"
#include "lib/core/view.hpp"
#include "lib/entropy/huffman_step.hpp"

namespace kvcodec::cuda {

/// The device's memory, or page-locked memory, ran out. The device is fine: the work can be done
/// elsewhere, or in smaller pieces.
class OutOfMemory : public Error {
 public:
  explicit OutOfMemory(const std::string& message) : Error(ErrorKind::failed, message) {}
};

/// The device or its driver failed. Other errors of kind failed are for arguments that a twin does not take.
class DeviceFault : public Error {
 public:
  explicit DeviceFault(const std::string& message) : Error(ErrorKind::failed, message) {}
};

/// Throws OutOfMemory or DeviceFault "<what>: <reason>" unless status is 0.
void check(Status status, const char* what);

/// Limits of the current device.
Limits limits();

/// Maximum extent of a grid of blocks of threads in y and in z; in x it is 2^31 - 1.
inline constexpr size_t kMaxGridRows = 65535;

/// Free bytes of the current device's memory, including those that this process keeps, or the part of them
/// that limit_free_bytes() leaves.
uint64_t free_bytes();

/// For tests, so that wrappers cut their work into pieces: free_bytes() is at most `bytes` from now on.
void limit_free_bytes(uint64_t bytes);
inline constexpr uint64_t kAllFreeBytes = UINT64_MAX;

/// A sequence of work. Threads must not share one.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(Stream&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept { return std::swap(handle_, other.handle_), *this; }

  StreamHandle handle() const { return handle_; }
  /// Calls launcher(arguments..., handle()). Throws as check() does; `what` names its purpose.
  template <class Launcher, class... Arguments>
  void run(const char* what, const Launcher& launcher, const Arguments&... arguments) const {
    check(launcher(arguments..., handle_), what);
  }
  /// Returns when all requested work is done. Throws errors of the device since the last call.
  void synchronize() const;

 private:
  StreamHandle handle_ = nullptr;
};

/// A point in a stream.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(const Stream& stream);
  /// Makes later work of `stream` wait until the point is reached.
  void hold_back(const Stream& stream) const;
  /// Waits for both points; milliseconds from `start` to this one.
  float milliseconds_since(const Event& start) const;

 private:
  EventHandle handle_ = nullptr;
};

namespace detail {
void* allocate(size_t bytes);
void release(void* data) noexcept;
void* allocate_pinned(size_t bytes);
void release_pinned(void* data) noexcept;
void upload(void* device, const void* host, size_t bytes, const Stream& stream);
void download(void* host, const void* device, size_t bytes, const Stream& stream);
void copy(void* to, const void* from, size_t bytes, const Stream& stream);
void fill(void* device, uint8_t value, size_t bytes, const Stream& stream);
void check_range(size_t first, size_t count, size_t size);
}  // namespace detail

/// Elements in device memory, not initialised. Device pointers are aligned to 16 bytes at least; they must
/// not be dereferenced on the host.
template <class T>
class DeviceBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(size_t size) { resize(size); }
  DeviceBuffer(std::span<const T> host, const Stream& stream) : DeviceBuffer(host.size()) {
    upload(host, stream);
  }
  ~DeviceBuffer() { detail::release(data_); }
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_), std::swap(size_, other.size_), std::swap(capacity_, other.capacity_);
    return *this;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }

  /// Makes room for so many elements; the content is lost. Memory never shrinks, so that work in pieces
  /// allocates once. Waits for the device if it must allocate, as freeing memory does.
  void resize(size_t size) {
    if (size > capacity_) {
      detail::release(std::exchange(data_, nullptr));
      capacity_ = size_ = 0;
      data_ = static_cast<T*>(detail::allocate(checked_mul(size, sizeof(T))));
      capacity_ = size;
    }
    size_ = size;
  }
  /// The same; returns the address.
  T* sized(size_t size) {
    resize(size);
    return data_;
  }

  /// Copies to and from elements [first, first + host.size()). Throws Error(failed) if the buffer is shorter.
  void upload(std::span<const T> host, const Stream& stream, size_t first = 0) {
    detail::check_range(first, host.size(), size_);
    detail::upload(data_ + first, host.data(), host.size_bytes(), stream);
  }
  void download(std::span<T> host, const Stream& stream, size_t first = 0) const {
    detail::check_range(first, host.size(), size_);
    detail::download(host.data(), data_ + first, host.size_bytes(), stream);
  }
  /// Sets every byte.
  void fill(uint8_t value, const Stream& stream) { detail::fill(data_, value, size_ * sizeof(T), stream); }

 private:
  T* data_ = nullptr;
  size_t size_ = 0, capacity_ = 0;
};

/// A buffer as words. It has at least 8 bytes behind the last byte read, in whole words.
inline WordStream words_of(const DeviceBuffer<uint8_t>& buffer) {
  return {reinterpret_cast<const uint32_t*>(buffer.data()), static_cast<uint32_t>(buffer.size() / 4 - 1)};
}

/// All elements of a buffer. Waits for the stream.
template <class T>
std::vector<T> downloaded(const DeviceBuffer<T>& buffer, const Stream& stream) {
  std::vector<T> values(buffer.size());
  buffer.download(values, stream);
  stream.synchronize();
  return values;
}

/// Throws Error(failed) naming `what` unless a matrix has this shape.
template <class T>
void check_shape(const char* what, MatrixView<T> matrix, size_t rows, size_t cols) {
  if (matrix.rows() != rows || matrix.cols() != cols)
    throw failed("{} ({}, {}); ({}, {}) fit", what, matrix.rows(), matrix.cols(), rows, cols);
}

/// Elements in host memory that the device copies from and to at full speed while the host goes on.
template <class T>
class PinnedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  /// Room for at least so many elements; the content is lost.
  void reserve(size_t size) {
    if (size <= size_) return;
    data_.reset(static_cast<T*>(detail::allocate_pinned(checked_mul(size, sizeof(T)))));
    size_ = size;
  }

  T* data() { return data_.get(); }
  std::span<T> span() { return {data_.get(), size_}; }

 private:
  struct Release {
    void operator()(T* data) const { detail::release_pinned(data); }
  };
  std::unique_ptr<T, Release> data_;
  size_t size_ = 0;
};

/// The rows of a matrix one behind the other, `stride` elements from one to the next and zeros between them: in place, or as
/// copies. Uploaded rows must stay until the stream was synchronized.
template <class T>
class PackedRows {
 public:
  explicit PackedRows(MatrixView<const T> rows) : PackedRows(rows, rows.cols()) {}
  PackedRows(MatrixView<const T> rows, size_t stride) {
    values_ = {rows.data(), rows.rows() * rows.cols()};
    if (rows.contiguous() && stride == rows.cols()) return;
    copies_.resize(checked_mul(rows.rows(), stride));
    for (size_t i = 0; i < rows.rows(); ++i)
      std::ranges::copy(rows.row(i), copies_.begin() + static_cast<std::ptrdiff_t>(i * stride));
    values_ = copies_;
  }
  PackedRows(const PackedRows&) = delete;
  PackedRows& operator=(const PackedRows&) = delete;

  std::span<const T> values() const { return values_; }

 private:
  std::vector<T> copies_;
  std::span<const T> values_;
};

/// Copies the rows to device memory, laid out as by PackedRows. Waits for the stream.
template <class T>
DeviceBuffer<std::remove_const_t<T>> upload_rows(MatrixView<T> rows, const Stream& stream,
                                                 std::optional<size_t> stride = {}) {
  const PackedRows<std::remove_const_t<T>> packed(rows, stride.value_or(rows.cols()));
  DeviceBuffer<std::remove_const_t<T>> buffer(packed.values(), stream);
  stream.synchronize();
  return buffer;
}

/// Copies the rows of a matrix, which lie one behind the other; `stride` elements from one to the next.
template <class T>
void unpack(std::span<const T> values, size_t stride, MatrixView<T> rows) {
  for (size_t i = 0; i < rows.rows(); ++i)
    std::ranges::copy(values.subspan(i * stride, rows.cols()), rows.row(i).begin());
}

/// Copies a buffer to the rows of a matrix, one row for each stride of the buffer, and waits for the stream.
template <class T>
void download_rows(const DeviceBuffer<T>& from, std::type_identity_t<MatrixView<T>> rows,
                   const Stream& stream) {
  if (rows.contiguous() && from.size() == rows.rows() * rows.cols()) {
    from.download({rows.data(), from.size()}, stream);
    return stream.synchronize();
  }
  if (rows.rows() > 0) unpack<T>(downloaded(from, stream), from.size() / rows.rows(), rows);
}

}  // namespace kvcodec::cuda
