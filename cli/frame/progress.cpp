#include "cli/frame/progress.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/frame/text.hpp"
#include "formats/io/far_place.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::cli {
namespace {

constexpr std::chrono::milliseconds kInterval{100};  // ten drawings a second are as smooth as it needs to be
constexpr size_t kBarWidth = 24;

size_t terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

std::string rate_text(double rate) {
  if (rate >= 1e6) return fmt::format("{:.1f}M", rate / 1e6);
  if (rate >= 1e4) return fmt::format("{:.0f}k", rate / 1e3);
  return fmt::format("{:.{}f}", rate, rate < 10 ? 1 : 0);
}

// Where a bar may stand: back to the start of the line, and clear it.
constexpr const char* kClearLine = "\r\033[K";

}  // namespace

void write_note(const std::string& command, const std::string& text) {
  std::fprintf(stderr, "%skvcodec %s: note: %s\n", isatty(STDERR_FILENO) == 1 ? kClearLine : "",
               command.c_str(), printable(shown_text(text)).c_str());
}

ProgressBar::ProgressBar(std::string label, std::string unit, bool quiet)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      shown_(!quiet && isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      last_(start_) {}

ProgressBar::~ProgressBar() {
  if (drawn_) std::fputs(kClearLine, stderr);
}

void ProgressBar::update(double done, double total, std::string_view note) {
  if (!shown_) return;
  done += before_;
  if (total_ > 0) total = total_;
  const auto now = Clock::now();
  if (now - last_ < kInterval) return;
  last_ = now;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double share = total > 0 ? std::clamp(done / total, 0.0, 1.0) : 0.0;
  const auto filled = static_cast<size_t>(std::floor(share * kBarWidth));
  std::string line = fmt::format("{} [{}{}] {:3.0f}%  {} {}/s", label_, std::string(filled, '#'),
                                 std::string(kBarWidth - filled, '.'), std::floor(share * 100),
                                 rate_text(done / seconds), unit_);
  if (share > 0) line += fmt::format("  {} left", time_text(seconds * (1 - share) / share));
  if (!note.empty()) line += fmt::format("  {}", note);
  if (line.size() >= terminal_width()) line.resize(terminal_width() - 1);
  std::fprintf(stderr, "\r%s\033[K", line.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

Progress ProgressBar::callback() {
  return [this](double done, double total, std::string_view note) { update(done, total, note); };
}

}  // namespace kvcodec::cli
