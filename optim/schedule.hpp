// SPDX-License-Identifier: Apache-2.0
// The learning rate as a pure function of the number of applied steps. A skipped step does not
// advance it and nothing is accumulated, so a resumed run is on the same curve to the bit.
#pragma once

#include <cstdint>

namespace vsr::optim {

/// The curve after warm-up.
enum class ScheduleKind { constant, cosine };

/// Learning rate of the applied step t (0-based).
///
/// Warm-up: while t + 1 < warmup_steps, base_lr · (t + 1) / warmup_steps. Afterwards, with t
/// counted from the start of the run (warm-up included):
/// - constant: base_lr
/// - cosine:   eta_min + ½ · (base_lr − eta_min) · (1 + cos(π · t / total_steps)); eta_min from
///   t = total_steps on
/// Source: the warm-up and CosineAnnealingRestart of BasicSR with one period; its iteration i
/// (1-based) trains with the value at t = i − 1.
struct Schedule {
  ScheduleKind kind = ScheduleKind::constant;
  double base_lr = 0;
  double eta_min = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 1;

  /// @throws ArgumentError if t < 0, total_steps < 1 or warmup_steps < 0
  double operator()(std::int64_t t) const;
};

}  // namespace vsr::optim
