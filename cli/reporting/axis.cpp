#include "cli/reporting/axis.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace kvcodec::cli {
namespace {

constexpr double kStrip = 0.1;  ///< of the axis
constexpr double kFlat = 1e-9;  ///< range of logarithms that may be rounding alone
constexpr double kRoom = 0.03;  ///< beyond the outermost values, of what is between them

/// Steps of 1, 2 or 5 times a power of ten, about `count` over the range.
std::vector<double> even_ticks(double low, double high, int count) {
  const double raw = (high - low) / count;
  if (!(raw > 0) || !std::isfinite(raw)) return {};
  const double power = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double candidate : {5.0, 2.0, 1.0})
    if (candidate * power >= raw) step = candidate * power;
  std::vector<double> ticks;
  // In whole steps: what is added up would drift.
  const double first = std::ceil(low / step - 1e-9);
  for (int i = 0; i <= count + 1; ++i)
    if (const double tick = (first + i) * step; tick <= high + 1e-9 * step) ticks.push_back(tick + 0.0);
  return ticks;
}

/// Powers of two that lie `octaves` apart, and with `between` one and a half times each.
std::vector<double> octave_ticks(double low, double high, int octaves, bool between) {
  std::vector<double> ticks;
  for (double power = std::floor(std::log2(low)); std::exp2(power) <= high; ++power)
    for (const double factor : {1.0, 1.5}) {
      const double tick = factor * std::exp2(power);
      const bool wanted = factor > 1 ? between : static_cast<int64_t>(power) % octaves == 0;
      if (wanted && tick >= low && tick <= high) ticks.push_back(tick);
    }
  return ticks;
}

}  // namespace

Axis::Axis(Scale scale, const std::vector<double>& values, double linear) : scale_(scale), linear_(linear) {
  std::vector<double> shown = values;
  if (scale == Scale::log) {
    std::erase_if(shown, [](double value) { return value <= 0; });
    if (shown.size() < values.size()) strip_ = kStrip;
  }
  if (scale == Scale::linear || scale == Scale::symlog) shown.push_back(0);
  if (scale == Scale::linear && values.empty()) shown.push_back(1);
  if (shown.empty()) shown = {1, 10};
  const auto [low, high] = std::ranges::minmax(shown);
  from_ = stretched(low), to_ = stretched(high);
  if (!(to_ - from_ > (scale == Scale::linear ? 0 : kFlat))) to_ += 0.3;
  const double room = kRoom * (to_ - from_);
  // A plain axis begins at 0 where nothing is below it.
  if (scale != Scale::linear || low < 0) from_ -= room;
  to_ += room;
  low_ = unstretched(from_), high_ = unstretched(to_);
}

double Axis::stretched(double value) const {
  if (scale_ == Scale::linear) return value;
  if (scale_ != Scale::symlog) return std::log10(value);
  const double size = std::abs(value) / linear_;
  return std::copysign(size <= 1 ? size : 1 + std::log10(size), value);
}

double Axis::unstretched(double place) const {
  if (scale_ == Scale::linear) return place;
  if (scale_ != Scale::symlog) return std::pow(10, place);
  const double size = std::abs(place);
  return std::copysign(linear_ * (size <= 1 ? size : std::pow(10, size - 1)), place);
}

double Axis::place(double value) const {
  if (scale_ == Scale::log && !(value > 0)) return strip_middle();
  const double place = (stretched(value) - from_) / (to_ - from_);
  return strip_ + (1 - strip_) * std::clamp(place, 0.0, 1.0);
}

bool Axis::holds(double value) const {
  if (scale_ == Scale::log && !(value > 0)) return has_strip();
  return stretched(value) >= from_ - 1e-9 && stretched(value) <= to_ + 1e-9;
}

std::vector<double> Axis::decades(double from, int step, bool between) const {
  std::vector<double> ticks;
  const double top = std::max(std::abs(low_), std::abs(high_)) * 10;
  for (double tick = from; tick <= top && std::isfinite(tick); tick *= std::pow(10, step))
    for (const double factor : {1.0, 2.0, 5.0})
      if (factor == 1 || between) ticks.push_back(factor * tick);
  return ticks;
}

std::vector<double> Axis::both_directions(int step, bool between, bool halves) const {
  std::vector<double> up = decades(linear_, step, between);
  if (halves) up.push_back(linear_ / 2);
  std::vector<double> ticks{0};
  for (const double tick : up) {
    ticks.push_back(tick);
    ticks.push_back(-tick);
  }
  std::ranges::sort(ticks);
  return ticks;
}

/// From the finest to the coarsest.
std::vector<std::vector<double>> Axis::choices() const {
  std::vector<std::vector<double>> all;
  // Where there is less than a few powers, plain steps say more.
  const bool short_range = to_ - from_ < 0.8;
  if (scale_ == Scale::rate && to_ - from_ >= std::log10(3.0)) {
    all.push_back(octave_ticks(low_, high_, 1, true));
    for (int octaves = 1; octaves <= 8; octaves *= 2)
      all.push_back(octave_ticks(low_, high_, octaves, false));
  } else if (scale_ == Scale::log && !short_range) {
    const double first = std::pow(10, std::floor(std::log10(low_)));
    for (int step = 1; step <= 100; step *= 2)
      all.push_back(decades(first, step, step == 1 && to_ - from_ < 2.2));
  } else if (scale_ == Scale::symlog && (from_ < -1.05 || to_ > 1.05)) {
    const bool few = to_ < 2.2 && from_ > -2.2;
    all.push_back(both_directions(1, few, true));  // a label below 0 too, where little is below it
    for (int step = 1; step <= 100; step *= 2) all.push_back(both_directions(step, step == 1 && few, false));
  }
  for (int count = 7; count > 0; --count) all.push_back(even_ticks(low_, high_, count));
  return all;
}

bool Axis::fit(const std::vector<double>& ticks, double gap) const {
  for (size_t i = 1; i < ticks.size(); ++i)
    if (place(ticks[i]) - place(ticks[i - 1]) < gap) return false;
  return ticks.size() > 1;
}

std::vector<double> Axis::ticks(double gap) const {
  for (std::vector<double>& ticks : std::vector(choices())) {
    std::erase_if(ticks, [&](double tick) { return !holds(tick); });
    if (fit(ticks, gap)) return ticks;
  }
  return {};
}

std::string tick_text(double value) {
  const double size = std::abs(value);
  std::string text = fmt::format("{:g}", size);
  if (size > 0 && size < 1e-3) {
    const double power = std::floor(std::log10(size) + 1e-9);
    text = fmt::format("{:g}e\u2212{:g}", size / std::pow(10, power), -power);
    if (size > 0.99e-4) text = fmt::format("{:.4f}", size);
  }
  return value < 0 ? "\u2212" + text : text;
}

double linear_part(const std::vector<Span>& spans) {
  constexpr double kSmallestShare = 1e-6, kSmallest = 1e-30;
  std::vector<double> unclear;
  double clear = INFINITY, largest = 0;
  for (const Span& span : spans) {
    largest = std::max({largest, std::abs(span.low), std::abs(span.high)});
    if (span.low > 0 || span.high < 0)
      clear = std::min(clear, std::abs(span.middle));
    else if (span.high > span.low)
      unclear.push_back((span.high - span.low) / 2);
  }
  if (!(largest > 0)) return 1;
  double size = clear;
  if (!unclear.empty()) {
    const auto middle = unclear.begin() + static_cast<ptrdiff_t>(unclear.size() / 2);
    std::ranges::nth_element(unclear, middle);
    size = std::min(size, *middle);
  }
  size = std::max({size, kSmallestShare * largest, kSmallest});
  return std::pow(10, std::round(std::log10(size)));
}

}  // namespace kvcodec::cli
