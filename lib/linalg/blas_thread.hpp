// Keeps OpenBLAS and oneDNN on the calling thread. Inside lib/linalg only.
#pragma once

#include <omp.h>

namespace kvcodec {

/// Does so while it lives. Outside a team of several threads (a parallel_for of one piece counts as outside) both take as many
/// threads as OpenMP would give the calling task, hence one. Inside they stay on the thread by themselves; but oneDNN cuts its
/// sums for as many threads as OpenMP would give, there too, so that results would depend on the number of threads.
class OnThisThread {
 public:
  OnThisThread() : before_(omp_get_max_threads()) {
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
