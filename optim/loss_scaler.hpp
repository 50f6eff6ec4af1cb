// SPDX-License-Identifier: Apache-2.0
// The loss scale as a state machine on plain numbers: it knows no tensor and no rank, so every rank
// that feeds it the agreed overflow flag holds the same scale.
#pragma once

#include <cstdint>

namespace vsr::optim {

/// Constants of dynamic scaling.
struct LossScalerOptions {
  float initial_scale = 65536.0F;
  float growth_factor = 2.0F;
  float backoff_factor = 0.5F;
  std::int64_t window_steps = 2000;  ///< clean steps before the scale grows
  float floor = 1.0F;
  float ceiling = 16777216.0F;           ///< 2^24
  std::int64_t max_skips_at_floor = 50;  ///< consecutive skips before training counts as diverged
};

/// All that a scaler remembers; what a checkpoint stores.
struct LossScalerState {
  float scale = 65536.0F;
  std::int64_t clean_steps = 0;     ///< since the last growth or overflow
  std::int64_t skips_at_floor = 0;  ///< consecutive skips at a scale that cannot go lower
  friend bool operator==(const LossScalerState&, const LossScalerState&) = default;
};

/// Grows the scale after a window of clean steps and shrinks it at once on overflow; always finite
/// and in [floor, ceiling].
class LossScaler {
 public:
  /// A scale that never changes. Overflow is still an overflow: `update(true)` counts the skip.
  /// @throws ConfigurationError unless `scale` is positive and finite
  static LossScaler fixed(float scale, LossScalerOptions options = {});
  /// @throws ConfigurationError for constants that cannot work (growth < 1, backoff outside (0, 1),
  ///         window < 1, floor > ceiling, anything non-finite); an initial scale outside
  ///         [floor, ceiling] is moved to the nearer end
  static LossScaler dynamic(LossScalerOptions options = {});

  float scale() const noexcept { return state_.scale; }
  bool is_dynamic() const noexcept { return dynamic_; }
  /// Take the agreed outcome of a step into account.
  void update(bool overflow) noexcept;
  /// True after max_skips_at_floor consecutive skips at a scale that cannot go lower.
  bool is_stuck() const noexcept { return state_.skips_at_floor >= options_.max_skips_at_floor; }
  /// Replace the scale and restart the window.
  /// @throws ArgumentError unless positive and finite
  void set_scale(float scale);

  const LossScalerOptions& options() const noexcept { return options_; }
  const LossScalerState& state() const noexcept { return state_; }
  /// @throws ArgumentError for a scale that is not positive and finite or a negative counter
  void load_state(const LossScalerState& state);

 private:
  LossScaler(bool dynamic, LossScalerOptions options);
  bool dynamic_ = true;
  LossScalerOptions options_;
  LossScalerState state_;
};

}  // namespace vsr::optim
