// SPDX-License-Identifier: Apache-2.0
#include "runtime/log/step_times.hpp"

#include <algorithm>

namespace vsr::runtime {

StepTimes IntervalTimes::mean() const {
  if (steps_.empty()) return {};
  StepTimes sum;
  for (const auto& step : steps_) {
    sum.data_ms += step.data_ms;
    sum.compute_ms += step.compute_ms;
    sum.comm_ms += step.comm_ms;
    sum.exposed_ms += step.exposed_ms;
  }
  const auto count = static_cast<double>(steps_.size());
  return {sum.data_ms / count, sum.compute_ms / count, sum.comm_ms / count, sum.exposed_ms / count};
}

double IntervalTimes::median_total_ms() const {
  if (steps_.empty()) return 0;
  std::vector<double> totals;
  totals.reserve(steps_.size());
  for (const auto& step : steps_) totals.push_back(step.total_ms());
  std::sort(totals.begin(), totals.end());
  const auto middle = totals.size() / 2;
  return totals.size() % 2 == 1 ? totals[middle] : (totals[middle - 1] + totals[middle]) / 2;
}

}  // namespace vsr::runtime
