// SPDX-License-Identifier: Apache-2.0
// Where the time of a step goes, measured by scope so that no path forgets to stop the clock.
#pragma once

#include <chrono>

namespace vsr::optim {

/// Adds the time it lives to a number of milliseconds, which outlives it.
class Stopwatch {
 public:
  explicit Stopwatch(double& total_ms) : total_ms_(total_ms) {}
  ~Stopwatch() {
    const std::chrono::duration<double, std::milli> passed = Clock::now() - start_;
    total_ms_ += passed.count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& total_ms_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace vsr::optim
