#include "lib/core/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>

#include <omp.h>

namespace kvcodec {

void set_num_threads(int threads) { omp_set_num_threads(threads > 0 ? threads : omp_get_num_procs()); }

int num_threads() { return omp_get_max_threads(); }

void parallel_for(size_t count, size_t grain, const std::function<void(size_t, size_t, int)>& body) {
  grain = std::max<size_t>(grain, 1);
  const size_t pieces = (count + grain - 1) / grain;
  if (pieces == 0) return;
  std::exception_ptr first_error;
  std::mutex error_mutex;
  // Pieces after one that failed need not run. Those before it must: a thread may not have begun the earliest piece yet,
  // and which error is reported would depend on that.
  std::atomic<size_t> first_failed{pieces};
  const int threads = static_cast<int>(std::min<size_t>(pieces, static_cast<size_t>(num_threads())));
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (size_t piece = 0; piece < pieces; ++piece) {
    if (piece > first_failed.load(std::memory_order_relaxed)) continue;
    try {
      body(piece * grain, std::min(count, (piece + 1) * grain), omp_get_thread_num());
    } catch (...) {
      const std::lock_guard lock(error_mutex);
      if (piece < first_failed) first_failed = piece, first_error = std::current_exception();
    }
  }
  if (first_error) std::rethrow_exception(first_error);
}

}  // namespace kvcodec
