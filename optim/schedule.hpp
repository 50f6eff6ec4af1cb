// SPDX-License-Identifier: Apache-2.0
// The learning rate as a pure function of the number of applied steps. A skipped step does not
// advance it and nothing is accumulated, so a resumed run is on the same curve to the bit.
#pragma once

#include <concepts>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

namespace vsr::optim {

// The curves, t being the applied step, counted from 0. Rates are in the unit of the optimizer's
// learning rate, everything else in applied steps. Where a curve has a warm-up, the rate is
// lr · (t + 1) / warmup_steps while t + 1 < warmup_steps, and afterwards that of the curve, whose t
// includes the warm-up (BasicSR, whose iteration i, counted from 1, trains with t = i − 1).

/// lr.
struct ConstantLr {
  double lr = 0;
  std::int64_t warmup_steps = 0;
};

/// lr · gamma^(number of milestones m ≤ t), multiplied one by one.
/// Source: torch.optim.lr_scheduler.MultiStepLR; BasicSR's MultiStepLR.
struct MultiStepLr {
  double lr = 0;
  std::vector<std::int64_t> milestones{};  ///< above 0, ascending
  double gamma = 0.1;
  std::int64_t warmup_steps = 0;
};

/// eta_min + ½ · (lr − eta_min) · (1 + cos(π · t / total_steps)); eta_min from total_steps on.
/// Source: BasicSR's CosineAnnealingRestartLR with one period; torch's CosineAnnealingLR.
struct CosineLr {
  double lr = 0;
  std::int64_t total_steps = 0;
  double eta_min = 0;
  std::int64_t warmup_steps = 0;
};

/// eta_min + w · ½ · (lr − eta_min) · (1 + cos(π · (t − s) / p)) in the period of length p and
/// weight w with s < t ≤ s + p (the first one has t = 0 too), s the sum of the periods before;
/// eta_min from the end of the last one on.
/// Source: BasicSR's CosineAnnealingRestartLR, which fails after its last period.
struct CosineRestartLr {
  double lr = 0;
  std::vector<std::int64_t> periods{};    ///< at least one, each at least 1
  std::vector<double> restart_weights{};  ///< above 0, one for each period; empty: 1 for each
  double eta_min = 0;
  std::int64_t warmup_steps = 0;
};

/// From min_lr up to max_lr in `stepsize` steps and down again in as many, over and over:
/// min_lr + (max_lr − min_lr) · (1 − |(t mod 2·stepsize) / stepsize − 1|).
/// Source: the cyclic learning rate of DALI's video super-resolution example.
struct TriangularLr {
  double min_lr = 0;
  double max_lr = 0;
  std::int64_t stepsize = 0;
};

/// How a one-cycle curve goes from a rate to the next.
enum class Anneal { cos, linear };

/// From max_lr / div_factor up to max_lr at step pct_start · total_steps − 1, then down to
/// max_lr / div_factor / final_div_factor at step total_steps − 1, where it stays.
/// Source: torch.optim.lr_scheduler.OneCycleLR with two phases, which fails after total_steps.
struct OneCycleLr {
  double max_lr = 0;
  std::int64_t total_steps = 0;
  double pct_start = 0.3;  ///< share of the steps that rise, in [0, 1]
  Anneal anneal = Anneal::cos;
  double div_factor = 25;
  double final_div_factor = 1e4;
};

/// One of the curves above.
using Curve =
    std::variant<ConstantLr, MultiStepLr, CosineLr, CosineRestartLr, TriangularLr, OneCycleLr>;

/// Learning rate of each applied step: `Schedule lr = CosineLr{.lr = 2e-4, .total_steps = 1000};`.
/// A value: copies are independent, and calls change nothing.
class Schedule {
 public:
  /// @throws ConfigurationError naming the field for rates that are not finite, maxima that are not
  ///         above 0, minima above them or below 0, no steps, negative warm-up, milestones that do
  ///         not ascend, as many weights as periods not given
  template <class C>
  requires(std::constructible_from<Curve, C> && !std::same_as<std::remove_cvref_t<C>, Schedule>)
      Schedule(C&& curve)  // NOLINT: a curve is a schedule
      : Schedule(Curve(std::forward<C>(curve)), Checked{}) {}

  /// The rate of step t.
  /// @throws ArgumentError if t < 0
  double operator()(std::int64_t t) const;
  const Curve& curve() const noexcept { return curve_; }

 private:
  struct Checked {};
  Schedule(Curve curve, Checked);
  Curve curve_;
};

}  // namespace vsr::optim
