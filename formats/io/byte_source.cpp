#include "formats/io/byte_source.hpp"

#include <cstring>

#include <unistd.h>

#include "formats/io/descriptor.hpp"

namespace kvcodec {

// Files that are here
constexpr size_t kMaxHeld = 64;  // ranges, which are searched one by one
constexpr size_t kMaxHeldBytes = size_t{1} << 24;

/// Bytes of a file's beginning or end that a small read there fetches: headers grow with the file.
static uint64_t around(uint64_t size, uint64_t least) {
  constexpr uint64_t kShare = 2048, kMax = uint64_t{1} << 17;
  return std::min(size, std::clamp(size / kShare, least, kMax));
}

// Files on servers

/// Size of the first request: the headers of a codes file that was written in one piece, and all of a small file.
constexpr uint64_t kFirstBytes = uint64_t{1} << 17;
/// The end of a file has its tables, and the headers of parts that were added later.
constexpr uint64_t kEndBytes = uint64_t{1} << 20;
/// Requests for consecutive pages grow up to this size.
constexpr uint64_t kMaxAheadBytes = uint64_t{1} << 23;
/// Up to this many pages between missing ones are fetched again rather than skipped.
constexpr uint64_t kMaxHole = 3;

// Here -------------------------------------------------------------------------------------------------

LocalFile::LocalFile(int descriptor, std::string name)
    : descriptor_(descriptor),
      size_(static_cast<uint64_t>(std::max<off_t>(0, ::lseek(descriptor, 0, SEEK_END)))),
      name_(std::move(name)) {
  expect({size_ - around(size_, uint64_t{1} << 14), size_});
  expect({0, around(size_, uint64_t{1} << 13)});
}

void LocalFile::read(uint64_t position, std::span<std::byte> out) {
  if (position > size_ || out.size() > size_ - position)
    throw bad_input("{}: the file ends before its byte {}", name_, position + out.size());
  {
    const std::lock_guard lock(mutex_);
    // Bytes in several ranges are copied from one after the other.
    while (!out.empty()) {
      const size_t copied = copy_held(position, out);
      if (copied == 0 && !take_expected(position, out.size())) break;
      position += copied;
      out = out.subspan(copied);
    }
  }
  if (read_some(position, out) < out.size())
    throw bad_input("{}: the file ends before its byte {}", name_, position + out.size());
}

/// Copies the first of these bytes, as far as one range holds them; that range becomes the latest. Returns how many.
size_t LocalFile::copy_held(uint64_t position, std::span<std::byte> out) {
  const auto held = std::ranges::find_if(held_, [&](const Held& one) {
    return FileRange{one.begin, one.begin + one.bytes.size()}.holds(position);
  });
  if (held == held_.end()) return 0;
  held_.splice(held_.begin(), held_, held);
  const size_t before = position - held->begin, copied = std::min(out.size(), held->bytes.size() - before);
  std::copy_n(held->bytes.begin() + static_cast<std::ptrdiff_t>(before), copied, out.begin());
  return copied;
}

/// Reads an expected range that holds the first of these bytes and is more than twice as large as its share of them, if there is
/// one and the file still has all of it.
bool LocalFile::take_expected(uint64_t position, size_t size) {
  const auto expected = expected_.take([&](const FileRange& range) {
    return range.holds(position) &&
           std::min<uint64_t>(size, range.end - position) < (range.end - range.begin) / 2;
  });
  if (!expected) return false;
  const FileRange range = *expected;
  UnsetVector<std::byte> fresh(range.end - range.begin);
  // The end of the range may be bytes that an interrupted append left, and that the next append has cut off.
  if (read_some(range.begin, fresh) < fresh.size()) return false;
  held_bytes_ += fresh.size();
  held_.push_front({range.begin, std::move(fresh)});
  while (held_bytes_ > kMaxHeldBytes || held_.size() > kMaxHeld) {
    held_bytes_ -= held_.back().bytes.size();
    held_.pop_back();
  }
  return true;
}

/// Reads as much of this as the file still has, and returns how much.
size_t LocalFile::read_some(uint64_t position, std::span<std::byte> out) {
  const Moved end = read_at(descriptor_, position, out);
  if (end.error) throw bad_input("{}: cannot be read: {}", name_, std::strerror(end.error));
  if (end.bytes > 0) reads_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(end.bytes, std::memory_order_relaxed);
  return end.bytes;
}

// On a server ------------------------------------------------------------------------------------------

std::shared_ptr<FarFile> FarFile::open(const std::string& name) {
  struct Opened {
    explicit Opened(std::string file_name) : name(std::move(file_name)) {}
    std::string name;
    std::mutex mutex;  // held during the request, so that others wait only for the same file
    std::shared_ptr<FarFile> file;
  };
  constexpr size_t kMaxOpened = 64;  // each has a connection
  static std::mutex mutex;
  // The latest one first. They are never destroyed: the libraries below libcurl end before static objects here.
  static std::list<std::shared_ptr<Opened>>& all = *new std::list<std::shared_ptr<Opened>>;
  std::shared_ptr<Opened> opened;
  {
    const std::lock_guard lock(mutex);
    const auto known = std::ranges::find_if(all, [&](const auto& one) { return one->name == name; });
    if (known != all.end())
      all.splice(all.begin(), all, known);
    else
      all.push_front(std::make_shared<Opened>(name));
    if (all.size() > kMaxOpened) all.pop_back();
    opened = all.front();
  }
  const std::lock_guard lock(opened->mutex);
  if (!opened->file) opened->file = std::make_shared<FarFile>(HttpFile::at(far_place(name)));
  return opened->file;
}

FarFile::FarFile(std::unique_ptr<HttpFile> file)
    : file_(std::move(file)),
      kept_(temporary_folder() / "far",
            fmt::format("{}: its copy in {}", file_->name(), temporary_folder().string())) {
  static std::atomic<uint64_t> count = 0;
  number_ = ++count;
  const std::vector<std::byte> head = file_->begin(kFirstBytes);
  size_ = file_->size();
  here_.assign((size_ + kPageBytes - 1) / kPageBytes, false);
  keep(0, head);
  expect({size_ - std::min(size_, kEndBytes), size_});
}

void FarFile::read(uint64_t position, std::span<std::byte> out) {
  if (out.empty()) return;
  if (position > size_ || out.size() > size_ - position)
    throw bad_input("{}: the file ends before its byte {}", name(), position + out.size());
  {
    const std::lock_guard lock(mutex_);
    fetch_missing(position / kPageBytes, (position + out.size() - 1) / kPageBytes + 1);
  }
  kept_.read(position, out);
}

/// Fetches the missing pages of [first, end), and announced ones with them.
void FarFile::fetch_missing(uint64_t first, uint64_t end) {
  while (first < end && here_[first]) ++first;
  while (first < end && here_[end - 1]) --end;
  if (first == end) return;
  const auto holds_first = [&](const FileRange& range) {
    return range.begin / kPageBytes <= first && (range.end - 1) / kPageBytes >= first;
  };
  if (const auto range = expected_.take(holds_first)) {
    uint64_t begin = range->begin / kPageBytes, behind = (range->end - 1) / kPageBytes + 1;
    while (here_[begin]) ++begin;
    while (behind > end && here_[behind - 1]) --behind;
    first = begin;
    end = std::max(end, behind);
  }
  end = read_ahead(first, end);
  while (first < end) {
    uint64_t behind = first, hole = first;  // existing pages between missing ones
    while (hole < end && hole - behind <= kMaxHole)
      if (!here_[hole++]) behind = hole;
    fetch(first, behind);
    for (first = behind; first < end && here_[first];) ++first;
  }
}

/// The end of a request for [first, end): the more pages before it exist, the farther. So a reader that reads in sequence, or several
/// sequences in turn, such as the sides of layers, makes few requests.
uint64_t FarFile::read_ahead(uint64_t first, uint64_t end) const {
  constexpr uint64_t kMaxPages = kMaxAheadBytes / kPageBytes;
  uint64_t before = 0;
  while (before < first && before < kMaxPages && here_[first - before - 1]) ++before;
  const uint64_t limit = std::min<uint64_t>(here_.size(), first + std::min(2 * before, kMaxPages));
  while (end < limit && !here_[end]) ++end;
  return end;
}

void FarFile::fetch(uint64_t first, uint64_t end) {
  if (broken_) throw *broken_;
  try {
    for (const uint64_t step = kMaxRequestBytes / kPageBytes; first < end; first += step) {
      const uint64_t begin = first * kPageBytes,
                     behind = std::min(std::min(end, first + step) * kPageBytes, size_);
      keep(first, file_->read(begin, behind - begin));
    }
  } catch (const Error& error) {
    broken_ = error;
    throw;
  }
}

}  // namespace kvcodec
