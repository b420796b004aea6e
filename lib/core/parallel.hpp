// Threads. Work is cut in pieces whose bounds do not depend on the number of threads, and results are
// combined in the order of the pieces, so every product is the same for any thread count.
//
// OpenBLAS is called only inside these pieces: there it runs on the calling thread, with a fixed order of sums.
#pragma once

#include <cstddef>
#include <functional>

namespace kvcodec {

/// Sets the number of threads that parallel_for uses from now on; 0 = one for each available processor.
void set_num_threads(int threads);
int num_threads();

/// Calls body(begin, end, worker) for consecutive pieces [begin, end) of [0, count), `grain` items each (the last may be shorter), in any
/// order on any thread. worker < num_threads() tells concurrent calls apart, for scratch memory only: results must not depend on it. The
/// exception of the earliest piece that threw is rethrown after all stop.
void parallel_for(size_t count, size_t grain,
                  const std::function<void(size_t begin, size_t end, int worker)>& body);

/// Calls body(i) for each i of [0, count), `grain` of them at a time on one thread.
template <class Body>
void parallel_each(size_t count, size_t grain, const Body& body) {
  parallel_for(count, grain, [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) body(i);
  });
}

}  // namespace kvcodec
