// SPDX-License-Identifier: Apache-2.0
// The loss scale as a state machine on plain numbers: it knows no tensor and no rank, so every rank
// that feeds it the agreed overflow flag holds the same scale. The rules of other programs are sets
// of constants of this one machine, so that a run can follow what a recipe was tuned with.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace vsr::optim {

/// Constants of dynamic scaling. The defaults are our own rules.
struct LossScalerOptions {
  double initial_scale = 0x1p16;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  std::int64_t window_steps = 2000;  ///< clean steps before each growth
  /// Further clean steps before the first growth after the start or an overflow.
  std::int64_t growth_delay = 0;
  int hysteresis = 1;  ///< overflows before the scale backs off; spent once, refilled by growth
  bool consecutive_hysteresis = false;  ///< refilled by every clean step, not by growth
  double floor = 1.0;
  double ceiling = 0x1p24;
  std::int64_t max_skips_at_floor = 50;  ///< consecutive skips before training counts as diverged
  /// Refuse factors, ends and scales that are no powers of two: those cost bits of each gradient.
  bool powers_of_two = true;

  // Scale sequences of others, each after what its program does by default. Where one has no floor,
  // the smallest FP32 number above 0 stands in; where one has no ceiling, 2^127, which FP32 holds.

  /// DALI's video example and apex of 2018: 2^32, window 1000, floor 1, and a scale that is a
  /// double: the ceiling is 2^1023.
  static LossScalerOptions dali() noexcept;
  /// apex.amp: 2^16, window 2000, ceiling 2^24, no floor.
  static LossScalerOptions apex_amp() noexcept;
  /// torch.amp.GradScaler: 2^16, window 2000, no floor.
  static LossScalerOptions torch_amp() noexcept;
  /// Megatron-LM's DynamicGradScaler: 2^32, window 1000, hysteresis 2, floor 1.
  static LossScalerOptions megatron() noexcept;
  /// DeepSpeed's DynamicLossScaler: 2^16, window 1000 and one step more before the first growth,
  /// hysteresis 2, floor 1, where the first overflow ends the run.
  static LossScalerOptions deepspeed() noexcept;

  /// The rules called `name`: one of loss_scaler_rules().
  /// @throws ConfigurationError for another name, listing all
  static LossScalerOptions named(std::string_view name);

  friend bool operator==(const LossScalerOptions&, const LossScalerOptions&) = default;
};

/// Names of rule sets, for command lines: "vsr" (ours), "torch", "apex", "dali", "megatron",
/// "deepspeed".
std::span<const std::string_view> loss_scaler_rules() noexcept;

/// All that a scaler remembers; what a checkpoint stores.
struct LossScalerState {
  double scale = 0x1p16;
  std::int64_t clean_steps = 0;     ///< since the start or the last overflow
  int hysteresis_left = 0;          ///< overflows up to a backoff, at least 1; 0 loads as all
  std::int64_t skips_at_floor = 0;  ///< consecutive skips at a scale that cannot go lower
  friend bool operator==(const LossScalerState&, const LossScalerState&) = default;
};

/// Grows the scale after a window of clean steps and shrinks it on overflow; always finite and,
/// unless set by hand, in [floor, ceiling].
///
/// A clean step is the n-th since the start or the last overflow. The scale grows when n −
/// growth_delay is a positive multiple of window_steps, but not above the ceiling. An overflow
/// lowers hysteresis_left if that is above 1, else the scale, but not below the floor. Growth, or
/// with consecutive_hysteresis each clean step, refills hysteresis_left.
class LossScaler {
 public:
  /// A scale that never changes. Overflow is still an overflow: `update(true)` counts the skip.
  /// @throws ConfigurationError unless `scale` is positive and finite and, with
  ///         options.powers_of_two, a power of two
  static LossScaler fixed(double scale, LossScalerOptions options = {});
  /// @throws ConfigurationError for constants that cannot work (growth < 1, backoff outside (0, 1),
  ///         window, hysteresis or max_skips_at_floor < 1, growth_delay < 0, floor > ceiling,
  ///         anything non-finite, no powers of two unless allowed); an initial scale outside
  ///         [floor, ceiling] is moved to the nearer end
  static LossScaler dynamic(LossScalerOptions options = {});

  double scale() const noexcept { return state_.scale; }
  bool is_dynamic() const noexcept { return dynamic_; }
  /// Take the agreed outcome of a step into account.
  void update(bool overflow) noexcept;
  /// True after max_skips_at_floor consecutive skips at a scale that cannot go lower.
  bool is_stuck() const noexcept { return state_.skips_at_floor >= options_.max_skips_at_floor; }
  /// Replace the scale and restart all counters.
  /// @throws ArgumentError unless the scale is positive, finite, held by FP32 or by [floor,
  ///         ceiling], and, with options().powers_of_two, a power of two
  void set_scale(double scale);

  const LossScalerOptions& options() const noexcept { return options_; }
  const LossScalerState& state() const noexcept { return state_; }
  /// Go on from `state`; hysteresis_left 0 stands for all of it (older checkpoints lack it).
  /// @throws ArgumentError for a scale that is not positive, finite and held by FP32 or by [floor,
  ///         ceiling], a negative counter, or more hysteresis than the options have
  void load_state(const LossScalerState& state);

 private:
  LossScaler(bool dynamic, LossScalerOptions options);
  void check_scale(double scale) const;
  void take_clean_step() noexcept;
  void take_overflow() noexcept;
  bool dynamic_ = true;
  LossScalerOptions options_;
  LossScalerState state_;
};

}  // namespace vsr::optim
