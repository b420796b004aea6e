// What standard error shows while a command works: progress on a terminal (a bar, the rate, the time left, at
// most ten times a second), and notes.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "lib/core/progress.hpp"

namespace kvcodec::cli {

/// Writes the line "kvcodec COMMAND: note: TEXT" on standard error, over a progress bar that may stand there.
/// CommonOptions::note() is for commands: it heeds --quiet.
void write_note(const std::string& command, const std::string& text);

/// Seconds since it was made.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

class ProgressBar {
 public:
  /// label: what goes on ("encode"). unit: what is counted, in the plural ("tokens"). Shown only if standard
  /// error is a terminal and `quiet` is false; otherwise nothing is ever written.
  ProgressBar(std::string label, std::string unit, bool quiet);
  /// Takes the line away again.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(double done, double total, std::string_view note = {});
  /// The updates that follow count one stage of the work: `before` of the work's `total` was done before it.
  void part(double before, double total) { before_ = before, total_ = total; }
  /// To hand to lib/; lives as long as the bar.
  Progress callback();

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_, unit_;
  bool shown_ = false, drawn_ = false;
  double before_ = 0, total_ = 0;  ///< of part()
  Clock::time_point start_, last_;
};

}  // namespace kvcodec::cli
