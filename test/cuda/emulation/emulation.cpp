#include "test/cuda/emulation/emulation.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

#include "lib/core/rng.hpp"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#ifdef __x86_64__
// Switches from one stack to another: callee-saved registers go onto the old one, whose top is stored. swapcontext does the same
// and also asks the system for the signal mask, which takes longer than most stretches of kernels.
extern "C" void kvcodec_switch_stack(void** old_top, void* new_top);
asm(R"(
.text
.globl kvcodec_switch_stack
.type kvcodec_switch_stack, @function
kvcodec_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size kvcodec_switch_stack, .-kvcodec_switch_stack
)");
#endif

namespace kvcodec::emulation {

Place place;

namespace {

constexpr unsigned kWarp = 32;
/// In each round one of this many warps begins to stand still, for less than kMaxRest rounds: long enough for others to complete a
/// piece of work, and to begin the next if nothing stops them.
constexpr unsigned kRestOdds = 64, kMaxRest = 400;
constexpr size_t kStackBytes = 256 * 1024;
constexpr size_t kAlignment =
    16;  // less than CUDA's 256, so that nobody relies on more than vector loads need
constexpr unsigned char kPoison = 0xff;  // NaN as f32, f16 and bf16; a large index

size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

/// Memory between two pages that cannot be touched, as near to the second as alignment allows.
class Guarded {
 public:
  explicit Guarded(size_t bytes) : bytes_(bytes) {
    const size_t page = page_bytes();
    inner_ = (std::max<size_t>(bytes, 1) + page - 1) / page * page;
    void* map =
        mmap(nullptr, inner_ + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) throw Fault("no memory for the emulation");
    map_ = static_cast<std::byte*>(map);
    open(true);
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    data_ = map_ + page + inner_ - rounded;
    std::memset(map_ + page, kPoison, inner_);
  }
  ~Guarded() { munmap(map_, inner_ + 2 * page_bytes()); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void open(bool yes) const {
    if (mprotect(map_ + page_bytes(), inner_, yes ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
      throw Fault("mprotect failed");
  }
  void poison() const { std::memset(data_, kPoison, bytes_); }
  /// True if anything was written next to the data: after it, before the next page, or before it.
  bool intact() const {
    const auto poisoned = [](const std::byte* from, const std::byte* to) {
      return std::all_of(from, to, [](std::byte b) { return b == std::byte{kPoison}; });
    };
    const std::byte* first = map_ + page_bytes();
    return poisoned(data_ + bytes_, first + inner_) &&
           poisoned(std::max<const std::byte*>(first, data_ - 256), data_);
  }

 private:
  size_t bytes_, inner_ = 0;
  std::byte *map_ = nullptr, *data_ = nullptr;
};

// Blocks -------------------------------------------------------------------------------------------

struct Rendezvous {
  unsigned mask = 0, arrived = 0;
  Meeting meeting = Meeting::sync;
  uint64_t generation = 0;
  // Two generations: a lane may come to the next meeting before another has read the result of this one.
  alignas(16) std::byte slots[2][kWarp * kSlot];
};

struct Copy {
  void* to;
  const void* from;
  unsigned bytes;
};

void enter_fiber();

/// The place where a fiber, or the scheduler, continues.
class Context {
 public:
#ifdef __x86_64__
  void start(std::byte* stack, size_t bytes) {
    auto* top = reinterpret_cast<void**>(stack + bytes);  // aligned to a page
    *--top = nullptr;                                     // as if enter_fiber had been called from nowhere
    *--top = reinterpret_cast<void*>(enter_fiber);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    top_ = top;
  }
  void go_to(Context& other) { kvcodec_switch_stack(&top_, other.top_); }

 private:
  void* top_ = nullptr;
#else
  void start(std::byte* stack, size_t bytes) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = bytes;
    context_.uc_link = nullptr;
    makecontext(&context_, enter_fiber, 0);
  }
  void go_to(Context& other) { swapcontext(&context_, &other.context_); }

 private:
  ucontext_t context_;
#endif
};

struct Fiber {
  Context context;
  std::byte* stack = nullptr;
  bool done = false;
  const char* waits_for = nullptr;
  const uint64_t* until = nullptr;  // waits until this differs from `seen`
  uint64_t seen = 0;
  std::exception_ptr error;
  std::deque<std::vector<Copy>> copies;  // the last group is open
  void* fake_stack = nullptr;
};

/// Stacks are kept: blocks come by the hundreds.
class Stacks {
 public:
  std::byte* get(size_t i) {
    while (stacks_.size() <= i) {
      void* map = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (map == MAP_FAILED) throw Fault("no memory for the emulation's stacks");
      mprotect(map, page_bytes(), PROT_NONE);  // overflow ends here
      stacks_.push_back(static_cast<std::byte*>(map));
    }
    return stacks_[i];
  }

 private:
  std::vector<std::byte*> stacks_;
};

class Block;
Block* current = nullptr;
Rng* order_rng() {
  static Rng rng(1);
  return &rng;
}

void check_shared(size_t bytes, size_t limit) {
  if (bytes > limit)
    throw Fault(fmt::format("{} bytes of shared memory; the block can have {}", bytes, limit));
}

class Block {
 public:
  /// `shared` takes `shared_bytes` of shared memory; arrays add to it, up to `most_shared`.
  Block(unsigned threads, Guarded& shared, size_t shared_bytes, size_t max_shared,
        const std::function<void()>& body)
      : threads_(threads),
        fibers_(threads),
        warps_(threads / kWarp),
        rests_(threads / kWarp),
        shared_(shared),
        shared_bytes_(shared_bytes),
        max_shared_(max_shared),
        body_(body) {
    static Stacks stacks;
    shared_.poison();
    for (unsigned i = 0; i < threads; ++i) {
      Fiber& fiber = fibers_[i];
      fiber.stack = stacks.get(i);
      fiber.copies.emplace_back();
      fiber.context.start(fiber.stack, kStackBytes);
    }
  }

  void run() {
    current = this;
    std::vector<unsigned> order(threads_);
    std::iota(order.begin(), order.end(), 0u);
    for (unsigned left = threads_; left > 0;) {
      order_rng()->shuffle(order);
      bool moved = false;
      const bool all = !let_warps_rest();
      for (const unsigned i : order) {
        Fiber& fiber = fibers_[i];
        if (rests_[i / kWarp] > 0 || fiber.done || (fiber.until && *fiber.until == fiber.seen)) continue;
        fiber.until = nullptr;
        moved = true;
        resume(i);
        if (fiber.error) std::rethrow_exception(fiber.error);
        if (fiber.done) --left;
      }
      if (moved) continue;
      if (all) throw Fault(stuck());
      std::ranges::fill(rests_, 0u);
    }
    for (const auto& [key, array] : arrays_)
      if (!array->intact()) throw Fault("a kernel wrote outside a shared array");
    if (!shared_.intact()) throw Fault("a kernel wrote outside its dynamic shared memory");
  }

  /// In a fiber: the kernel, then back to the scheduler for good.
  void body_of_fiber() {
    finish_switch(nullptr);
    Fiber& fiber = fibers_[running_];
    try {
      body_();
    } catch (...) {
      fiber.error = std::current_exception();
    }
    fiber.done = true;
    leave(true);
  }

  void wait(const char* what, const uint64_t& counter, uint64_t seen) {
    Fiber& fiber = fibers_[running_];
    fiber.waits_for = what, fiber.until = &counter, fiber.seen = seen;
    leave(false);
  }

  void sync(bool yes, int& count) {
    const uint64_t generation = barrier_generation_;
    yes_[generation % 2] += yes;
    if (++at_barrier_ == threads_) {
      at_barrier_ = 0;
      yes_[(generation + 1) % 2] = 0;
      ++barrier_generation_;
    } else {
      wait("__syncthreads", barrier_generation_, generation);
    }
    count = yes_[generation % 2];
  }

  const std::byte* meet(Meeting meeting, unsigned mask, const void* value, size_t bytes) {
    const unsigned own = running_ % kWarp;
    if (!(mask >> own & 1)) throw Fault(fmt::format("lane {} is not in its own mask {:#x}", own, mask));
    if (bytes > kSlot) throw Fault("too many bytes for a meeting of lanes");
    auto& all = warps_[running_ / kWarp];
    auto found = std::ranges::find_if(all, [&](const auto& r) { return r->mask == mask; });
    if (found == all.end()) {
      found = all.insert(all.end(), std::make_unique<Rendezvous>());
      (*found)->mask = mask;
    }
    Rendezvous& r = **found;
    if (r.arrived == 0) r.meeting = meeting;
    if (r.meeting != meeting) throw Fault("lanes of one warp meet in different operations");
    std::byte* slots = r.slots[r.generation % 2];
    if (bytes > 0) std::memcpy(slots + own * kSlot, value, bytes);
    r.arrived |= 1u << own;
    if (r.arrived == mask) {
      r.arrived = 0;
      ++r.generation;
    } else {
      wait("its warp", r.generation, r.generation);
    }
    return slots;
  }

  std::byte* shared() const { return shared_.data(); }
  std::byte* array(const void* key, size_t bytes) {
    auto& array = arrays_[key];
    if (!array) {
      shared_bytes_ += bytes;
      check_shared(shared_bytes_, max_shared_);
      array = std::make_unique<Guarded>(bytes);
    }
    return array->data();
  }
  Fiber& fiber() { return fibers_[running_]; }
  unsigned running() const { return running_; }

 private:
  void resume(unsigned i) {
    running_ = i;
    place.thread = {i, 0, 0};
    start_switch(&scheduler_fake_stack_, fibers_[i].stack, kStackBytes);
    scheduler_.go_to(fibers_[i].context);
    finish_switch(scheduler_fake_stack_);
  }
  /// Now and then a warp stands still for some rounds, so that others are far ahead: data that they then overwrite too early show.
  /// Returns true if any stands still.
  bool let_warps_rest() {
    if (rests_.size() == 1) return false;
    bool any = false;
    for (unsigned& rest : rests_) {
      if (rest > 0)
        --rest;
      else if (order_rng()->below(kRestOdds) == 0)
        rest = static_cast<unsigned>(order_rng()->below(kMaxRest));
      any |= rest > 0;
    }
    return any;
  }
  void leave(bool for_good) {
    Fiber& fiber = fibers_[running_];
    start_switch(for_good ? nullptr : &fiber.fake_stack, scheduler_stack_, scheduler_bytes_);
    fiber.context.go_to(scheduler_);
    finish_switch(fiber.fake_stack);
  }

  /// AddressSanitizer must be informed about changes of stack.
#ifdef __SANITIZE_ADDRESS__
  void start_switch(void** fake, const void* bottom, size_t bytes) {
    __sanitizer_start_switch_fiber(fake, bottom, bytes);
  }
  void finish_switch(void* fake) {
    const void* bottom = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(fake, &bottom, &bytes);
    const auto* from = static_cast<const std::byte*>(bottom);
    if (scheduler_bytes_ == 0 && from != fibers_[running_].stack)  // learned in the first fiber
      scheduler_stack_ = bottom, scheduler_bytes_ = bytes;
  }
#else
  void start_switch(void**, const void*, size_t) {}
  void finish_switch(void*) {}
#endif

  std::string stuck() const {
    std::map<std::string, std::pair<unsigned, unsigned>> waiting;  // what for: how many, the first
    for (unsigned i = 0; i < threads_; ++i) {
      const auto [where, added] =
          waiting.try_emplace(fibers_[i].done ? "nothing, they have left" : fibers_[i].waits_for, 0u, i);
      ++where->second.first;
    }
    std::string all;
    for (const auto& [what, who] : waiting)
      all += fmt::format("{}{} threads (the first is {}) wait for {}", all.empty() ? "" : ", ", who.first,
                         who.second, what);
    return fmt::format("block ({}, {}, {}) waits for ever: {}", place.block.x, place.block.y, place.block.z,
                       all);
  }

  unsigned threads_, running_ = 0, at_barrier_ = 0;
  uint64_t barrier_generation_ = 0;
  int yes_[2] = {0, 0};
  std::vector<Fiber> fibers_;
  std::vector<std::vector<std::unique_ptr<Rendezvous>>> warps_;
  std::vector<unsigned> rests_;  // of each warp: rounds that it still stands still
  Guarded& shared_;
  size_t shared_bytes_;
  const size_t max_shared_;
  std::map<const void*, std::unique_ptr<Guarded>> arrays_;
  const std::function<void()>& body_;
  Context scheduler_;
  void* scheduler_fake_stack_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_bytes_ = 0;
};

void enter_fiber() { current->body_of_fiber(); }

// Memory -------------------------------------------------------------------------------------------

struct Memory {
  uint64_t used = 0, limit = kMemory;
  std::map<const std::byte*, std::unique_ptr<Guarded>> buffers;
  int accesses = 0;

  /// The buffer that holds this address, or ends with it.
  const Guarded* find(const void* data) const {
    const auto* at = static_cast<const std::byte*>(data);
    auto after = buffers.upper_bound(at);
    if (after == buffers.begin()) return nullptr;
    const Guarded& buffer = *std::prev(after)->second;
    return at <= buffer.data() + buffer.bytes() ? &buffer : nullptr;
  }
};
Memory& memory() {
  static Memory all;
  return all;
}

}  // namespace

void set_seed(uint64_t seed) { *order_rng() = Rng(seed); }

void run_grid(Size3 grid, unsigned threads, size_t shared_bytes, bool asked,
              const std::function<void()>& body) {
  if (threads == 0 || threads > 1024 || threads % kWarp != 0)
    throw Fault(fmt::format("blocks of {} threads: whole warps, up to 1024 threads are allowed", threads));
  if (grid.y > 65535 || grid.z > 65535 || grid.x > 0x7fffffffu)
    throw Fault(
        fmt::format("a grid of ({}, {}, {}) blocks is too large for a device", grid.x, grid.y, grid.z));
  const size_t max_shared = asked ? kSharedBytes : kSharedWithoutAsking;
  check_shared(shared_bytes, max_shared);
  Guarded shared(shared_bytes);
  place.block_size = {threads, 1, 1}, place.grid_size = grid;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        place.block = {x, y, z};
        Block(threads, shared, shared_bytes, max_shared, body).run();
      }
  for (const auto& [data, buffer] : memory().buffers)
    if (!buffer->intact())
      throw Fault(fmt::format("a kernel wrote outside a device buffer of {} bytes", buffer->bytes()));
}

void sync_block() {
  int count = 0;
  current->sync(false, count);
}
int count_block(bool yes) {
  int count = 0;
  current->sync(yes, count);
  return count;
}
const std::byte* meet(Meeting meeting, unsigned mask, const void* value, size_t bytes) {
  return current->meet(meeting, mask, value, bytes);
}
unsigned lane() { return current->running() % kWarp; }

std::byte* dynamic_shared_memory() { return current->shared(); }
std::byte* shared_array(const void* key, size_t bytes) { return current->array(key, bytes); }

void copy_later(void* to, const void* from, unsigned bytes) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || (bytes > 0 && reinterpret_cast<uintptr_t>(from) % 16 != 0))
    throw Fault("an asynchronous copy is not aligned to 16 bytes");
  current->fiber().copies.back().push_back({to, from, bytes});
}
void commit_copies() { current->fiber().copies.emplace_back(); }
void wait_copies(int groups) {
  auto& copies = current->fiber().copies;
  while (copies.size() > static_cast<size_t>(groups) + 1) {
    for (const Copy& copy : copies.front()) {
      std::memset(copy.to, 0, 16);
      if (copy.bytes > 0) std::memcpy(copy.to, copy.from, copy.bytes);
    }
    copies.pop_front();
  }
}

namespace {
std::atomic<bool> failing = false;
}
void fail_launches(bool fail) { failing = fail; }
bool launches_fail() { return failing; }

uint64_t free_memory() { return memory().limit - std::min(memory().limit, memory().used); }
void leave_free(uint64_t bytes) {
  memory().limit = bytes < kMemory - std::min(kMemory, memory().used) ? memory().used + bytes : kMemory;
}

void* allocate(size_t bytes) {
  if (bytes == 0) return nullptr;
  auto buffer = std::make_unique<Guarded>(bytes);
  std::byte* data = buffer->data();
  if (memory().accesses == 0) buffer->open(false);
  memory().used += bytes;
  memory().buffers.emplace(data, std::move(buffer));
  return data;
}

void release(void* data) {
  if (!data) return;
  synchronize_all();  // as cudaFree does
  const auto found = memory().buffers.find(static_cast<const std::byte*>(data));
  if (found == memory().buffers.end()) throw Fault("freeing what is not a device buffer");
  memory().used -= found->second->bytes();
  memory().buffers.erase(found);
}

void check_device_range(const void* data, size_t bytes) {
  if (bytes == 0) return;
  const Guarded* buffer = memory().find(data);
  if (!buffer ||
      bytes > static_cast<size_t>(buffer->data() + buffer->bytes() - static_cast<const std::byte*>(data)))
    throw Fault(fmt::format("{} bytes that are not all in one device buffer", bytes));
}

void check_device_pointer(const void* data) {
  if (data && !memory().find(data)) throw Fault("a launch got a pointer that is not to device memory");
}

Access::Access() {
  if (memory().accesses++ == 0)
    for (const auto& [data, buffer] : memory().buffers) buffer->open(true);
}
Access::~Access() {
  if (--memory().accesses == 0)
    for (const auto& [data, buffer] : memory().buffers) buffer->open(false);
}

// Streams ------------------------------------------------------------------------------------------

struct Stream {
  std::deque<std::function<void()>> work;
  uint64_t added = 0, done = 0;

  void run_until(uint64_t position) {
    while (done < position) {
      const auto next = std::move(work.front());
      work.pop_front();
      ++done;
      try {
        const Access access;
        next();
      } catch (...) {  // after an error nothing more runs, as on a device
        work.clear();
        done = added;
        throw;
      }
    }
  }
};

namespace {
std::vector<std::unique_ptr<Stream>>& streams() {
  static std::vector<std::unique_ptr<Stream>> all;
  return all;
}
}  // namespace

Stream* make_stream() { return streams().emplace_back(std::make_unique<Stream>()).get(); }
void destroy_stream(Stream* stream) {
  std::erase_if(streams(), [&](const auto& own) { return own.get() == stream; });
}
void enqueue(Stream* stream, std::function<void()> work) {
  if (!stream) throw Fault("work for no stream");
  stream->work.push_back(std::move(work));
  ++stream->added;
}
void synchronize(Stream* stream) { stream->run_until(stream->added); }
void synchronize_all() {
  for (const auto& stream : streams()) synchronize(stream.get());
}
void record(Event& event, Stream* stream) { event = {stream, stream->added}; }
void reach(const Event& event) {
  if (event.stream) event.stream->run_until(event.position);
}

}  // namespace kvcodec::emulation
