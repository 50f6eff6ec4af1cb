// SPDX-License-Identifier: Apache-2.0
#include "optim/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <type_traits>

#include "comm/error.hpp"
#include "optim/number_text.hpp"

namespace vsr::optim {
namespace {

void require(bool holds, const std::string& what, const std::string& got,
             const std::string& expected) {
  if (!holds)
    throw ConfigurationError("schedule: " + what + " is " + got + ", expected " + expected);
}

void require_positive(const std::string& what, double value) {
  require(std::isfinite(value) && value > 0, what, number_text(value), "a number above 0");
}

void require_minimum(const std::string& what, double value, double highest) {
  require(value >= 0 && value <= highest, what, number_text(value),
          "a number from 0 to the highest rate, " + number_text(highest));
}

void require_steps(const std::string& what, std::int64_t value, std::int64_t lowest) {
  require(value >= lowest, what, std::to_string(value), "at least " + std::to_string(lowest));
}

void check(const ConstantLr& c) {
  require_positive("lr", c.lr);
}

void check(const MultiStepLr& c) {
  require_positive("lr", c.lr);
  require_positive("gamma", c.gamma);
  std::int64_t last = 0;
  for (const std::int64_t milestone : c.milestones) {
    require(milestone > last, "a milestone", std::to_string(milestone),
            "more than " + std::to_string(last) + ", so that milestones ascend");
    last = milestone;
  }
}

void check(const CosineLr& c) {
  require_positive("lr", c.lr);
  require_minimum("eta_min", c.eta_min, c.lr);
  require_steps("total_steps", c.total_steps, 1);
}

void check(const CosineRestartLr& c) {
  require_positive("lr", c.lr);
  require_minimum("eta_min", c.eta_min, c.lr);
  require(!c.periods.empty(), "the number of periods", "0", "at least 1");
  for (const std::int64_t period : c.periods) require_steps("a period", period, 1);
  require(c.restart_weights.empty() || c.restart_weights.size() == c.periods.size(),
          "the number of restart_weights", std::to_string(c.restart_weights.size()),
          "one for each of the " + std::to_string(c.periods.size()) + " periods");
  for (const double weight : c.restart_weights) require_positive("a restart weight", weight);
}

void check(const TriangularLr& c) {
  require_positive("max_lr", c.max_lr);
  require_minimum("min_lr", c.min_lr, c.max_lr);
  require_steps("stepsize", c.stepsize, 1);
}

void check(const OneCycleLr& c) {
  require_positive("max_lr", c.max_lr);
  require_steps("total_steps", c.total_steps, 1);
  require(c.pct_start >= 0 && c.pct_start <= 1, "pct_start", number_text(c.pct_start),
          "a number from 0 to 1");
  require_positive("div_factor", c.div_factor);
  require_positive("final_div_factor", c.final_div_factor);
}

double cosine_rate(double lr, double eta_min, double weight, std::int64_t step,
                   std::int64_t period) {
  const double part = static_cast<double>(step) / static_cast<double>(period);
  return eta_min + weight * 0.5 * (lr - eta_min) * (1.0 + std::cos(std::numbers::pi * part));
}

double rate(const ConstantLr& c, std::int64_t) {
  return c.lr;
}

double rate(const MultiStepLr& c, std::int64_t t) {
  double lr = c.lr;
  for (auto m = c.milestones.begin(); m != c.milestones.end() && *m <= t; ++m) lr *= c.gamma;
  return lr;
}

double rate(const CosineLr& c, std::int64_t t) {
  return cosine_rate(c.lr, c.eta_min, 1.0, std::min(t, c.total_steps), c.total_steps);
}

double rate(const CosineRestartLr& c, std::int64_t t) {
  for (std::size_t i = 0; i < c.periods.size(); ++i) {
    const double weight = c.restart_weights.empty() ? 1.0 : c.restart_weights[i];
    if (t <= c.periods[i]) return cosine_rate(c.lr, c.eta_min, weight, t, c.periods[i]);
    t -= c.periods[i];
  }
  return c.eta_min;
}

double rate(const TriangularLr& c, std::int64_t t) {
  const std::int64_t since_turn = t % c.stepsize;
  const bool is_rising = t / c.stepsize % 2 == 0;
  const std::int64_t height = is_rising ? since_turn : c.stepsize - since_turn;
  return c.min_lr +
         (c.max_lr - c.min_lr) * (static_cast<double>(height) / static_cast<double>(c.stepsize));
}

double annealed(Anneal anneal, double from, double to, double part) {
  if (anneal == Anneal::linear) return (to - from) * part + from;
  return to + (from - to) / 2.0 * (std::cos(std::numbers::pi * part) + 1.0);
}

double rate(const OneCycleLr& c, std::int64_t t) {
  const double first = c.max_lr / c.div_factor;
  const double top = c.pct_start * static_cast<double>(c.total_steps) - 1.0;
  const double end = static_cast<double>(c.total_steps - 1);
  const double step = std::min(static_cast<double>(t), end);
  // A rise of one step or less begins at its top, where torch would divide by zero.
  if (step <= top) return annealed(c.anneal, first, c.max_lr, top > 0.0 ? step / top : 1.0);
  const double part = (step - top) / (end - top);
  return annealed(c.anneal, c.max_lr, first / c.final_div_factor, part);
}

template <class C>
concept WarmedUp = requires(const C& c) {
  c.warmup_steps;
};

}  // namespace

Schedule::Schedule(Curve curve, Checked) : curve_(std::move(curve)) {
  std::visit(
      [](const auto& c) {
        check(c);
        if constexpr (WarmedUp<std::remove_cvref_t<decltype(c)>>)
          require_steps("warmup_steps", c.warmup_steps, 0);
      },
      curve_);
}

double Schedule::operator()(std::int64_t t) const {
  VSR_CHECK(t >= 0, "got step " + std::to_string(t) + ", expected at least 0");
  return std::visit(
      [t](const auto& c) {
        if constexpr (WarmedUp<std::remove_cvref_t<decltype(c)>>)
          if (t < c.warmup_steps - 1)
            return c.lr * static_cast<double>(t + 1) / static_cast<double>(c.warmup_steps);
        return rate(c, t);
      },
      curve_);
}

}  // namespace vsr::optim
