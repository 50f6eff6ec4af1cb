// SPDX-License-Identifier: Apache-2.0
// Where the time of a step went, and the averages of it over a print interval.
#pragma once

#include <vector>

namespace vsr::runtime {

/// Milliseconds of one step (or their average), split as printed. A part not measured is 0.
struct StepTimes {
  double data_ms = 0;     ///< waiting for samples
  double compute_ms = 0;  ///< forward, backward, update
  double comm_ms = 0;     ///< reduce, agree, publish
  double exposed_ms = 0;  ///< of comm_ms, the wait for messages of gradients
  double total_ms() const noexcept { return data_ms + compute_ms + comm_ms; }
};

/// The steps since the last print.
class IntervalTimes {
 public:
  void add(const StepTimes& times) { steps_.push_back(times); }
  void clear() noexcept { steps_.clear(); }
  bool empty() const noexcept { return steps_.empty(); }

  /// Average of each part, so that the parts add up to the total; zeros when empty.
  StepTimes mean() const;
  /// Median of the totals (mean of the middle two for an even count); 0 when empty.
  double median_total_ms() const;

 private:
  std::vector<StepTimes> steps_;
};

}  // namespace vsr::runtime
