// SPDX-License-Identifier: Apache-2.0
#include "optim/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "comm/error.hpp"

namespace vsr::optim {

double Schedule::operator()(std::int64_t t) const {
  VSR_CHECK(t >= 0, "steps count from 0");
  VSR_CHECK(total_steps >= 1, "a run has at least one step");
  VSR_CHECK(warmup_steps >= 0, "warm-up cannot be negative");
  if (t + 1 < warmup_steps)
    return base_lr * static_cast<double>(t + 1) / static_cast<double>(warmup_steps);
  if (kind == ScheduleKind::constant) return base_lr;
  if (t >= total_steps) return eta_min;
  const double part = static_cast<double>(t) / static_cast<double>(total_steps);
  return eta_min + 0.5 * (base_lr - eta_min) * (1.0 + std::cos(std::numbers::pi * part));
}

}  // namespace vsr::optim
