// SPDX-License-Identifier: Apache-2.0
#include "optim/loss_scaler.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "comm/error.hpp"
#include "optim/number_text.hpp"

namespace vsr::optim {
namespace {

constexpr double kSmallestFloat = std::numeric_limits<float>::denorm_min();
constexpr double kLargestFloat = std::numeric_limits<float>::max();
constexpr double kLargestFloatPower = 0x1p127;
constexpr double kLargestDoublePower = 0x1p1023;

struct NamedRules {
  std::string_view name;
  LossScalerOptions (*options)() noexcept;
};

LossScalerOptions our_rules() noexcept {
  return {};
}

constexpr std::array<NamedRules, 6> kRules{{{"vsr", our_rules},
                                            {"torch", LossScalerOptions::torch_amp},
                                            {"apex", LossScalerOptions::apex_amp},
                                            {"dali", LossScalerOptions::dali},
                                            {"megatron", LossScalerOptions::megatron},
                                            {"deepspeed", LossScalerOptions::deepspeed}}};

constexpr auto kRuleNames = [] {
  std::array<std::string_view, kRules.size()> names{};
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kRules[i].name;
  return names;
}();

void require(bool holds, const std::string& what, double got, const std::string& expected) {
  if (!holds)
    throw ConfigurationError("loss scaler: " + what + " is " + number_text(got) + ", expected " +
                             expected);
}

bool is_scale(double value) {
  return std::isfinite(value) && value > 0.0;
}

bool is_power_of_two(double value) {
  int exponent = 0;
  return std::frexp(value, &exponent) == 0.5;
}

std::string powers_beside(double value) {
  const double below = std::exp2(std::floor(std::log2(value)));
  return number_text(below) + " or " + number_text(2.0 * below);
}

void require_power(const LossScalerOptions& options, const std::string& what, double value) {
  require(!options.powers_of_two || is_power_of_two(value), what, value,
          "a power of two (others cost bits of each gradient): use " + powers_beside(value) +
              ", or set powers_of_two to false");
}

void check_counts(const LossScalerOptions& options) {
  require(options.max_skips_at_floor >= 1, "max_skips_at_floor",
          static_cast<double>(options.max_skips_at_floor), "at least 1");
  require(options.window_steps >= 1, "the window", static_cast<double>(options.window_steps),
          "at least 1 step");
  require(options.growth_delay >= 0, "the growth delay", static_cast<double>(options.growth_delay),
          "at least 0 steps");
  require(options.hysteresis >= 1, "the hysteresis", options.hysteresis, "at least 1 overflow");
}

void check_dynamic(const LossScalerOptions& options) {
  const char* positive = "a positive finite number";
  require(is_scale(options.initial_scale), "the initial scale", options.initial_scale, positive);
  require(std::isfinite(options.growth_factor) && options.growth_factor >= 1.0, "the growth factor",
          options.growth_factor, "a finite number of at least 1");
  require(options.backoff_factor > 0.0 && options.backoff_factor < 1.0, "the backoff factor",
          options.backoff_factor, "a number between 0 and 1");
  require(is_scale(options.floor), "the floor", options.floor, positive);
  require(is_scale(options.ceiling) && options.ceiling >= options.floor, "the ceiling",
          options.ceiling, "a finite number that is not below the floor");
  require_power(options, "the initial scale", options.initial_scale);
  require_power(options, "the growth factor", options.growth_factor);
  require_power(options, "the backoff factor", options.backoff_factor);
  require_power(options, "the floor", options.floor);
  require_power(options, "the ceiling", options.ceiling);
}

}  // namespace

LossScalerOptions LossScalerOptions::dali() noexcept {
  return {.initial_scale = 0x1p32, .window_steps = 1000, .ceiling = kLargestDoublePower};
}

LossScalerOptions LossScalerOptions::apex_amp() noexcept {
  return {.floor = kSmallestFloat, .ceiling = 0x1p24};
}

LossScalerOptions LossScalerOptions::torch_amp() noexcept {
  return {.floor = kSmallestFloat, .ceiling = kLargestFloatPower};
}

LossScalerOptions LossScalerOptions::megatron() noexcept {
  return {.initial_scale = 0x1p32,
          .window_steps = 1000,
          .hysteresis = 2,
          .ceiling = kLargestFloatPower};
}

LossScalerOptions LossScalerOptions::deepspeed() noexcept {
  return {.window_steps = 1000,
          .growth_delay = 1,
          .hysteresis = 2,
          .ceiling = kLargestFloatPower,
          .max_skips_at_floor = 1};
}

LossScalerOptions LossScalerOptions::named(std::string_view name) {
  std::string names;
  for (const NamedRules& rules : kRules) {
    if (rules.name == name) return rules.options();
    names += (names.empty() ? "" : ", ") + std::string(rules.name);
  }
  throw ConfigurationError("loss scaler: got rules \"" + std::string(name) +
                           "\", expected one of " + names);
}

std::span<const std::string_view> loss_scaler_rules() noexcept {
  return kRuleNames;
}

LossScaler::LossScaler(bool dynamic, LossScalerOptions options)
    : dynamic_(dynamic), options_(options) {
  check_counts(options);
  state_.scale = options.initial_scale;
  state_.hysteresis_left = options.hysteresis;
}

LossScaler LossScaler::fixed(double scale, LossScalerOptions options) {
  require(is_scale(scale), "the static scale", scale, "a positive finite number");
  require_power(options, "the static scale", scale);
  options.initial_scale = scale;
  return LossScaler(false, options);
}

LossScaler LossScaler::dynamic(LossScalerOptions options) {
  check_dynamic(options);
  options.initial_scale = std::clamp(options.initial_scale, options.floor, options.ceiling);
  return LossScaler(true, options);
}

void LossScaler::update(bool overflow) noexcept {
  overflow ? take_overflow() : take_clean_step();
}

void LossScaler::take_clean_step() noexcept {
  state_.skips_at_floor = 0;
  if (!dynamic_) return;
  ++state_.clean_steps;
  if (options_.consecutive_hysteresis) state_.hysteresis_left = options_.hysteresis;
  const std::int64_t steps = state_.clean_steps - options_.growth_delay;
  if (steps <= 0 || steps % options_.window_steps != 0) return;
  state_.hysteresis_left = options_.hysteresis;
  // max: a scale that was set above the ceiling by hand stays where it is.
  state_.scale =
      std::max(state_.scale, std::min(state_.scale * options_.growth_factor, options_.ceiling));
}

void LossScaler::take_overflow() noexcept {
  state_.clean_steps = 0;
  if (dynamic_ && state_.hysteresis_left > 1) {
    --state_.hysteresis_left;
    return;
  }
  const bool is_lowest = !dynamic_ || state_.scale <= options_.floor;
  state_.skips_at_floor = is_lowest ? state_.skips_at_floor + 1 : 0;
  if (!is_lowest) state_.scale = std::max(state_.scale * options_.backoff_factor, options_.floor);
}

void LossScaler::check_scale(double scale) const {
  const double low = std::min(options_.floor, kSmallestFloat);
  const double high = std::max(options_.ceiling, kLargestFloat);
  VSR_CHECK(is_scale(scale) && scale >= low && scale <= high,
            "got " + number_text(scale) + " as loss scale, expected a number from " +
                number_text(low) + " to " + number_text(high));
}

void LossScaler::set_scale(double scale) {
  check_scale(scale);
  VSR_CHECK(!options_.powers_of_two || is_power_of_two(scale),
            "got " + number_text(scale) + " as loss scale, expected a power of two: use " +
                powers_beside(scale) + ", or set powers_of_two to false");
  state_ = {.scale = scale, .hysteresis_left = options_.hysteresis};
}

void LossScaler::load_state(const LossScalerState& state) {
  check_scale(state.scale);
  VSR_CHECK(state.clean_steps >= 0 && state.skips_at_floor >= 0 && state.hysteresis_left >= 0,
            "a counter of the loss scaler is negative");
  VSR_CHECK(state.hysteresis_left <= options_.hysteresis,
            "got hysteresis_left " + std::to_string(state.hysteresis_left) +
                ", expected at most the hysteresis, " + std::to_string(options_.hysteresis));
  state_ = state;
  if (state_.hysteresis_left == 0) state_.hysteresis_left = options_.hysteresis;
}

}  // namespace vsr::optim
