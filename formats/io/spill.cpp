#include "formats/io/spill.hpp"

#include <algorithm>
#include <cstring>

namespace kvcodec {

void SpillBuffer::append(std::span<const std::byte> bytes) {
  if (tail_.size() + bytes.size() > memory_limit_) {
    if (!file_) file_ = std::make_unique<UnnamedFile>(beside_, target_);
    file_->write(spilled_, tail_);
    spilled_ += tail_.size();
    tail_.clear();
    if (bytes.size() > memory_limit_) {
      file_->write(spilled_, bytes);
      spilled_ += bytes.size();
      return;
    }
  }
  tail_.insert(tail_.end(), bytes.begin(), bytes.end());
}

void SpillBuffer::truncate(uint64_t size) {
  if (size >= spilled_) {
    tail_.resize(static_cast<size_t>(std::min<uint64_t>(tail_.size(), size - spilled_)));
  } else {
    spilled_ = size;
    tail_.clear();
  }
}

void SpillBuffer::read(uint64_t position, std::span<std::byte> out) const {
  if (position < spilled_) {
    const auto front = static_cast<size_t>(std::min<uint64_t>(out.size(), spilled_ - position));
    file_->read(position, out.first(front));
    position += front;
    out = out.subspan(front);
  }
  if (!out.empty()) std::memcpy(out.data(), tail_.data() + (position - spilled_), out.size());
}

}  // namespace kvcodec
