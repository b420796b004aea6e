// Keeps OpenBLAS on the calling thread. Inside lib/linalg only.
#pragma once

#include <omp.h>

namespace kvcodec {

/// Does so while it lives. Inside a team of several threads OpenBLAS's OpenMP build does that by itself; elsewhere (a
/// parallel_for of one piece counts as elsewhere) it takes as many threads as OpenMP would give the calling task,
/// hence one.
class OnThisThread {
 public:
  OnThisThread() : before_(omp_in_parallel() ? 0 : omp_get_max_threads()) {
    if (before_ > 1) omp_set_num_threads(1);
  }
  ~OnThisThread() {
    if (before_ > 1) omp_set_num_threads(before_);
  }
  OnThisThread(const OnThisThread&) = delete;
  OnThisThread& operator=(const OnThisThread&) = delete;

 private:
  int before_;
};

}  // namespace kvcodec
