#include "formats/io/far_file.hpp"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <list>

#include "lib/core/error.hpp"

namespace kvcodec {
namespace {

/// The first request: the headers of a codes file that was written in one piece, and all of a small file.
constexpr uint64_t kFirstBytes = uint64_t{1} << 17;
/// What lies at the end: the tables of a file, and the headers of what was added to it later.
constexpr uint64_t kEndBytes = uint64_t{1} << 20;
/// Pages in a row are fetched by requests that grow up to this.
constexpr uint64_t kMostAheadBytes = uint64_t{1} << 23;
constexpr size_t kMostExpected = 64;
/// So many pages that are here are fetched again rather than asked around.
constexpr uint64_t kMostHole = 3;

}  // namespace

std::shared_ptr<FarFile> FarFile::open(const std::string& name) {
  struct Opened {
    explicit Opened(std::string file_name) : name(std::move(file_name)) {}
    std::string name;
    std::mutex mutex;  // held while it is asked for, so that others wait only for the same file
    std::shared_ptr<FarFile> file;
  };
  constexpr size_t kMaxOpened = 64;  // each has a connection
  static std::mutex mutex;
  // The last one first. They are left to the end of the process: the libraries below libcurl end before what is static here.
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
  if (!opened->file) opened->file = std::make_shared<FarFile>(std::make_unique<HttpFile>(far_place(name)));
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

uint64_t FarFile::requests() const {
  const std::lock_guard lock(mutex_);
  return file_->requests();
}

uint64_t FarFile::bytes() const {
  const std::lock_guard lock(mutex_);
  return file_->bytes();
}

void FarFile::expect(const FileRange& range) {
  if (range.begin >= range.end || range.end > size_ || range.end - range.begin > kMostRequestBytes) return;
  const std::lock_guard lock(mutex_);
  if (expected_.size() == kMostExpected) expected_.erase(expected_.begin());
  expected_.push_back(range);
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

/// Pages [first, end), and what should come with them.
void FarFile::fetch_missing(uint64_t first, uint64_t end) {
  while (first < end && here_[first]) ++first;
  while (first < end && here_[end - 1]) --end;
  if (first == end) return;
  for (size_t i = expected_.size(); i-- > 0;) {  // what was said last is known best
    const FileRange range = expected_[i];
    uint64_t begin = range.begin / kPageBytes, behind = (range.end - 1) / kPageBytes + 1;
    if (begin > first || behind <= first) continue;
    expected_.erase(expected_.begin() + static_cast<std::ptrdiff_t>(i));
    while (here_[begin]) ++begin;
    while (behind > end && here_[behind - 1]) --behind;
    first = begin;
    end = std::max(end, behind);
    break;
  }
  end = read_ahead(first, end);
  while (first < end) {
    uint64_t behind = first, hole = first;  // pages that are here between those that are not
    while (hole < end && hole - behind <= kMostHole)
      if (!here_[hole++]) behind = hole;
    fetch(first, behind);
    for (first = behind; first < end && here_[first];) ++first;
  }
}

/// Where a request for [first, end) should end: farther, the more pages before it are here. Whoever reads in a row, or several rows by
/// turns, as of sides of layers, has few requests to make.
uint64_t FarFile::read_ahead(uint64_t first, uint64_t end) const {
  constexpr uint64_t kMostPages = kMostAheadBytes / kPageBytes;
  uint64_t before = 0;
  while (before < first && before < kMostPages && here_[first - before - 1]) ++before;
  const uint64_t most = std::min<uint64_t>(here_.size(), first + std::min(2 * before, kMostPages));
  while (end < most && !here_[end]) ++end;
  return end;
}

void FarFile::fetch(uint64_t first, uint64_t end) {
  if (broken_) throw *broken_;
  try {
    for (const uint64_t step = kMostRequestBytes / kPageBytes; first < end; first += step) {
      const uint64_t begin = first * kPageBytes,
                     behind = std::min(std::min(end, first + step) * kPageBytes, size_);
      keep(first, file_->read(begin, behind - begin));
    }
  } catch (const Error& error) {
    broken_ = error;
    throw;
  }
}

void FarFile::keep(uint64_t first_page, std::span<const std::byte> bytes) {
  kept_.write(first_page * kPageBytes, bytes);
  const uint64_t pages = (bytes.size() + kPageBytes - 1) / kPageBytes;
  std::fill_n(here_.begin() + static_cast<std::ptrdiff_t>(first_page), pages, true);
}

}  // namespace kvcodec
