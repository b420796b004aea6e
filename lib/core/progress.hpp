// Reports the progress of long work. lib/ calls it; the command line draws it.
#pragma once

#include <functional>
#include <string_view>

namespace kvcodec {

/// Called now and then from one thread with done <= total in the work's own unit (tokens, signals, steps) and
/// a short note worth showing ("loss 0.123"), possibly empty. The function itself may be empty: nothing is reported.
using Progress = std::function<void(double done, double total, std::string_view note)>;

inline void report(const Progress& progress, double done, double total, std::string_view note = {}) {
  if (progress) progress(done, total, note);
}

}  // namespace kvcodec
