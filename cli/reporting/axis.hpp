// Axes of plots: where a value lies between an axis' two ends, and which values are labelled.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvcodec::cli {

enum class Scale : uint8_t {
  linear,
  rate,    ///< logarithmic, labelled in powers of two: bits per value
  log,     ///< logarithmic, in powers of ten; what is not positive stands in a strip of its own at the foot
  symlog,  ///< linear between -linear and linear, logarithmic beyond in both directions
};

/// Along an axis: 0 at its low end, 1 at its high end.
class Axis {
 public:
  /// values: all that must lie on the axis, finite; those of a rate positive. linear: of symlog, positive.
  /// With nothing on it, it goes from 0 to 1, or over a decade.
  Axis(Scale scale, const std::vector<double>& values, double linear = 1);

  Scale scale() const { return scale_; }
  /// Where a value lies, 0 to 1: one beyond an end is put at that end, except that a logarithmic axis puts what is
  /// not positive into its strip.
  double place(double value) const;
  /// Whether the value lies between the ends (or in the strip), and place() is thus exact.
  bool holds(double value) const;
  /// Whether there is a strip for what is not positive, and where it ends.
  bool has_strip() const { return strip_ > 0; }
  double strip() const { return strip_; }
  double strip_middle() const { return strip_ * 0.4; }
  /// Values to label, ascending, with at least `gap` (a share of the axis) between two.
  std::vector<double> ticks(double gap) const;

 private:
  double stretched(double value) const;
  double unstretched(double place) const;
  bool fit(const std::vector<double>& ticks, double gap) const;
  std::vector<std::vector<double>> choices() const;
  std::vector<double> decades(double from, int step, bool between) const;
  std::vector<double> both_directions(int step, bool between, bool halves) const;

  Scale scale_;
  double linear_;
  double from_ = 0, to_ = 1;   // ends as stretched() gives them
  double low_ = 0, high_ = 1;  // and as values
  double strip_ = 0;
};

/// A number as an axis says it: "0.001", "1e-5", with a true minus sign.
std::string tick_text(double value);

/// An interval that a plot shows, and its mean.
struct Span {
  double low, middle, high;
};
/// What a symlog axis takes for its linear part, from the intervals to be shown: a power of ten near the
/// median half width of the intervals that hold 0, or near the smallest value that can be told from 0 where
/// that is less; but no less than a millionth of the largest value. So the linear part is about as wide as
/// what cannot be told from 0.
double linear_part(const std::vector<Span>& spans);

}  // namespace kvcodec::cli
