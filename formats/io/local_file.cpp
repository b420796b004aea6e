#include "formats/io/local_file.hpp"

#include <algorithm>
#include <cstring>

#include <unistd.h>

#include "formats/io/descriptor.hpp"
#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

// Both lists are searched one by one.
constexpr size_t kMostExpected = 64, kMostHeld = 64;
constexpr size_t kMostHeldBytes = size_t{1} << 24;

/// How much of a file's beginning or end is read with as little as a header: headers grow with the file.
uint64_t around(uint64_t size, uint64_t least) {
  constexpr uint64_t kShare = 2048, kMost = uint64_t{1} << 17;
  return std::min(size, std::clamp(size / kShare, least, kMost));
}

bool holds(const FileRange& range, uint64_t position) {
  return position >= range.begin && position < range.end;
}

}  // namespace

LocalFile::LocalFile(int descriptor, std::string name)
    : descriptor_(descriptor),
      size_(static_cast<uint64_t>(std::max<off_t>(0, ::lseek(descriptor, 0, SEEK_END)))),
      name_(std::move(name)) {
  expect({size_ - around(size_, uint64_t{1} << 14), size_});
  expect({0, around(size_, uint64_t{1} << 13)});
}

void LocalFile::expect(const FileRange& range) {
  if (range.begin >= range.end || range.end > size_ || range.end - range.begin > kMostExpectedBytes) return;
  const std::lock_guard lock(mutex_);
  if (expected_.size() == kMostExpected) expected_.pop_back();
  expected_.push_front(range);
}

void LocalFile::read(uint64_t position, std::span<std::byte> out) {
  if (position > size_ || out.size() > size_ - position)
    throw bad_input("{}: the file ends before its byte {}", name_, position + out.size());
  {
    const std::lock_guard lock(mutex_);
    // What lies in several ranges is copied from one after the other.
    while (!out.empty()) {
      const size_t copied = copy_held(position, out);
      if (copied == 0 && !take_expected(position, out.size())) break;
      position += copied;
      out = out.subspan(copied);
    }
  }
  read_now(position, out);
}

std::shared_ptr<const std::byte> LocalFile::lend(uint64_t position, uint64_t size) {
  const std::lock_guard lock(mutex_);
  const Held* held = find_held(position);
  if (!held && take_expected(position, size)) held = find_held(position);
  if (!held || size > held->begin + held->bytes->size() - position) return nullptr;
  return {held->bytes, held->bytes->data() + (position - held->begin)};
}

/// The range that holds this byte, now the last one asked for; or nothing.
const LocalFile::Held* LocalFile::find_held(uint64_t position) {
  const auto held = std::ranges::find_if(held_, [&](const Held& one) {
    return holds({one.begin, one.begin + one.bytes->size()}, position);
  });
  if (held == held_.end()) return nullptr;
  held_.splice(held_.begin(), held_, held);
  return &held_.front();
}

/// Copies the first of these bytes, those that one range holds. Returns how many.
size_t LocalFile::copy_held(uint64_t position, std::span<std::byte> out) {
  const Held* held = find_held(position);
  if (!held) return 0;
  const size_t before = position - held->begin, copied = std::min(out.size(), held->bytes->size() - before);
  std::copy_n(held->bytes->begin() + static_cast<std::ptrdiff_t>(before), copied, out.begin());
  return copied;
}

/// Reads a range that was expected, has the first of these bytes and as many more as it has of them, if there is one and all of it
/// is still there.
bool LocalFile::take_expected(uint64_t position, size_t size) {
  const auto found = std::ranges::find_if(expected_, [&](const FileRange& range) {
    return holds(range, position) &&
           std::min<uint64_t>(size, range.end - position) < (range.end - range.begin) / 2;
  });
  if (found == expected_.end()) return false;
  const FileRange range = *found;
  expected_.erase(found);
  auto fresh = std::make_shared<UnsetVector<std::byte>>(range.end - range.begin);
  // At its end may have lain what an append that broke off left behind, and the next append cut off.
  if (read_some(range.begin, *fresh) < fresh->size()) return false;
  held_bytes_ += fresh->size();
  held_.push_front({range.begin, std::move(fresh)});
  while (held_bytes_ > kMostHeldBytes || held_.size() > kMostHeld) {
    held_bytes_ -= held_.back().bytes->size();
    held_.pop_back();
  }
  return true;
}

void LocalFile::read_now(uint64_t position, std::span<std::byte> out) {
  if (read_some(position, out) < out.size())
    throw bad_input("{}: the file ends before its byte {}", name_, position + out.size());
}

/// Reads as much of this as there still is, and returns how much that is.
size_t LocalFile::read_some(uint64_t position, std::span<std::byte> out) {
  const ReadEnd end = read_at(descriptor_, position, out);
  if (end.error) throw bad_input("{}: cannot be read: {}", name_, std::strerror(end.error));
  if (end.bytes > 0) reads_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(end.bytes, std::memory_order_relaxed);
  return end.bytes;
}

}  // namespace kvcodec
