// SPDX-License-Identifier: Apache-2.0
#include "optim/loss_scaler.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "comm/error.hpp"

namespace vsr::optim {
namespace {

void require(bool holds, const std::string& what, double got, const std::string& expected) {
  if (!holds)
    throw ConfigurationError("loss scaler: " + what + " is " + std::to_string(got) + ", expected " +
                             expected);
}

bool is_scale(float value) {
  return std::isfinite(value) && value > 0.0F;
}

}  // namespace

LossScaler::LossScaler(bool dynamic, LossScalerOptions options)
    : dynamic_(dynamic), options_(options) {
  state_.scale = options.initial_scale;
  require(options.max_skips_at_floor >= 1, "max_skips_at_floor",
          static_cast<double>(options.max_skips_at_floor), "at least 1");
}

LossScaler LossScaler::fixed(float scale, LossScalerOptions options) {
  require(is_scale(scale), "the static scale", scale, "a positive finite number");
  options.initial_scale = scale;
  return LossScaler(false, options);
}

LossScaler LossScaler::dynamic(LossScalerOptions options) {
  require(is_scale(options.initial_scale), "the initial scale", options.initial_scale,
          "a positive finite number");
  require(std::isfinite(options.growth_factor) && options.growth_factor >= 1.0F,
          "the growth factor", options.growth_factor, "a finite number of at least 1");
  require(options.backoff_factor > 0.0F && options.backoff_factor < 1.0F, "the backoff factor",
          options.backoff_factor, "a number between 0 and 1");
  require(options.window_steps >= 1, "the window", static_cast<double>(options.window_steps),
          "at least 1 step");
  require(is_scale(options.floor), "the floor", options.floor, "a positive finite number");
  require(is_scale(options.ceiling) && options.ceiling >= options.floor, "the ceiling",
          options.ceiling, "a finite number that is not below the floor");
  options.initial_scale = std::clamp(options.initial_scale, options.floor, options.ceiling);
  return LossScaler(true, options);
}

void LossScaler::update(bool overflow) noexcept {
  if (!overflow) {
    state_.skips_at_floor = 0;
    if (!dynamic_ || ++state_.clean_steps < options_.window_steps) return;
    state_.clean_steps = 0;
    // max: a scale that was set above the ceiling by hand stays where it is.
    state_.scale =
        std::max(state_.scale, std::min(state_.scale * options_.growth_factor, options_.ceiling));
    return;
  }
  state_.clean_steps = 0;
  const bool is_lowest = !dynamic_ || state_.scale <= options_.floor;
  state_.skips_at_floor = is_lowest ? state_.skips_at_floor + 1 : 0;
  if (!is_lowest) state_.scale = std::max(state_.scale * options_.backoff_factor, options_.floor);
}

void LossScaler::set_scale(float scale) {
  VSR_CHECK(is_scale(scale), "got " + std::to_string(scale) + " as loss scale");
  state_ = {scale, 0, 0};
}

void LossScaler::load_state(const LossScalerState& state) {
  VSR_CHECK(is_scale(state.scale), "got " + std::to_string(state.scale) + " as loss scale");
  VSR_CHECK(state.clean_steps >= 0 && state.skips_at_floor >= 0, "a counter is negative");
  state_ = state;
}

}  // namespace vsr::optim
