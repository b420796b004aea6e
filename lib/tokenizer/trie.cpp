#include "lib/tokenizer/trie.hpp"

#include <algorithm>

namespace kvcodec {

// Places the children of one node after the other in free slots, which form a list.
class StringTrie::Builder {
 public:
  Builder(const std::vector<std::pair<std::string_view, uint32_t>>& strings, std::vector<Slot>& slots)
      : strings_(strings), slots_(slots) {
    // The first 256 slots are the root and, for nodes without children, slots that are nobody's.
    slots_.resize(kBytes);
    next_free_.resize(kBytes, kNone);
    last_free_.resize(kBytes, kNone);
    grow();
  }

  void build() {
    std::vector<Task> tasks;
    if (!strings_.empty()) tasks.push_back({0, strings_.size(), 0, kRoot});
    while (!tasks.empty()) {
      const Task task = tasks.back();
      tasks.pop_back();
      add_children(task, tasks);
    }
  }

 private:
  static constexpr uint32_t kBytes = 256;

  /// The strings from begin to end have their first `depth` bytes, those of `node`, in common.
  struct Task {
    size_t begin, end, depth;
    uint32_t node;
  };

  void add_children(Task task, std::vector<Task>& tasks) {
    if (strings_[task.begin].first.size() == task.depth) {  // the shortest is sorted first
      slots_[task.node].value = strings_[task.begin].second;
      ++task.begin;
    }
    if (task.begin == task.end) return;
    labels_.clear();
    const size_t first_task = tasks.size();
    for (size_t i = task.begin; i < task.end; ++i) {
      const auto label = static_cast<unsigned char>(strings_[i].first[task.depth]);
      if (labels_.empty() || labels_.back() != label) {
        if (!labels_.empty()) tasks.back().end = i;
        labels_.push_back(label);
        tasks.push_back({i, task.end, task.depth + 1, 0});
      }
    }
    const uint32_t base = find_base();
    slots_[task.node].base = base;
    for (size_t i = 0; i < labels_.size(); ++i) {
      const uint32_t child = base + labels_[i];
      take(child);
      slots_[child].parent = task.node;
      tasks[first_task + i].node = child;
    }
  }

  // The first place where all labels find free slots. A single child fits anywhere. The other nodes pass over
  // regions where they have looked long without success, so that all the looking stays in proportion to the
  // slots.
  uint32_t find_base() {
    constexpr int kMostTries = 128;
    const bool is_single = labels_.size() == 1;
    uint32_t slot = is_single ? first_free_ : first_for_many_;
    for (int tries = 0;; ++tries) {
      if (slot == kNone) slot = grow();
      const uint32_t base = slot - labels_.front();
      while (base + kBytes > slots_.size()) grow();
      if (std::all_of(labels_.begin(), labels_.end(), [&](unsigned char b) { return is_free(base + b); })) {
        if (tries > kMostTries) first_for_many_ = slot;
        return base;
      }
      slot = next_free_[slot];
    }
  }

  bool is_free(uint32_t slot) const { return slot >= kBytes && slots_[slot].parent == kNone; }

  // Adds free slots, and returns the first of them.
  uint32_t grow() {
    const auto begin = static_cast<uint32_t>(slots_.size());
    const uint32_t end = begin + std::max(begin / 8, 4 * kBytes);
    slots_.resize(end);
    next_free_.resize(end);
    last_free_.resize(end);
    for (uint32_t slot = begin; slot < end; ++slot) {
      next_free_[slot] = slot + 1 < end ? slot + 1 : kNone;
      last_free_[slot] = slot > begin ? slot - 1 : end_free_;
    }
    (end_free_ == kNone ? first_free_ : next_free_[end_free_]) = begin;
    end_free_ = end - 1;
    if (first_for_many_ == kNone) first_for_many_ = begin;
    return begin;
  }

  void take(uint32_t slot) {
    const uint32_t next = next_free_[slot], last = last_free_[slot];
    (last == kNone ? first_free_ : next_free_[last]) = next;
    (next == kNone ? end_free_ : last_free_[next]) = last;
    if (first_for_many_ == slot) first_for_many_ = next;
  }

  const std::vector<std::pair<std::string_view, uint32_t>>& strings_;
  std::vector<Slot>& slots_;
  std::vector<uint32_t> next_free_, last_free_;
  uint32_t first_free_ = kNone, end_free_ = kNone;
  uint32_t first_for_many_ = kNone;  ///< where nodes with several children begin to look
  std::vector<unsigned char> labels_;
};

StringTrie::StringTrie(std::vector<std::pair<std::string_view, uint32_t>> strings) {
  std::sort(strings.begin(), strings.end());
  Builder(strings, slots_).build();
  slots_.shrink_to_fit();
}

}  // namespace kvcodec
