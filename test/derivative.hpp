// Derivatives to compare gradients with.
#pragma once

namespace kvcodec::test {

/// The derivative of a function of no argument in a number that it reads, by a central difference. For functions of order 1 truncation and
/// rounding are below 1e-7.
template <class Function>
double derivative(const Function& function, double& number) {
  constexpr double kStep = 1e-4;
  const double before = number;
  number = before + kStep;
  const double above = function();
  number = before - kStep;
  const double below = function();
  number = before;
  return (above - below) / (2 * kStep);
}

}  // namespace kvcodec::test
