// SPDX-License-Identifier: Apache-2.0
// The options of the optimizer: a kind, what each kind needs, and the average of what it steps.
#include "launch/option_rows.hpp"
#include "launch/step_settings.hpp"

namespace vsr::launch {
namespace {

constexpr auto kGroup = OptionGroup::training;

bool below_one(double v) {
  return v >= 0 && v < 1;
}

std::array<double, 2> two_betas(Values values) {
  const std::string text = joined(values);
  const auto blank = text.find(' ');
  const char* expected = "two numbers from 0 to below 1, for example 0.9 0.99";
  if (blank == std::string::npos) throw BadValue{text, expected};
  try {
    return {real_number(text.substr(0, blank), expected, below_one),
            real_number(text.substr(blank + 1), expected, below_one)};
  } catch (const BadValue&) {
    throw BadValue{text, expected};
  }
}

std::string betas_text(const std::array<double, 2>& betas) {
  return number_text(betas[0]) + " " + number_text(betas[1]);
}

OptionRow betas_row() {
  OptionRow r{"betas",
              kGroup,
              "B1 B2",
              "of adam, adamw and lamb, decay of their two averages",
              betas_text(kDefaultBetas),
              false,
              true};
  r.set = [](TrainOptions& o, Values values) { o.betas = two_betas(values); };
  r.get = [](const TrainOptions& o) { return o.betas ? Lines{betas_text(*o.betas)} : Lines{}; };
  return r;
}

}  // namespace

void add_optimizer_rows(std::vector<OptionRow>& t) {
  t.push_back(choices(kGroup, "optimizer",
                      "steps the FP32 masters; lamb's trust ratios need a --weight-decay",
                      &TrainOptions::optimizer, kOptimizers));
  t.push_back(real(kGroup, "lr", "learning rate, the highest of the schedule", &TrainOptions::lr,
                   "a number above 0", positive));
  t.push_back(real(kGroup, "weight-decay",
                   "adam, sgd: added to the gradient; adamw, lamb: apart from it",
                   &TrainOptions::weight_decay, "a number of at least 0", not_negative));
  t.push_back(betas_row());
  t.push_back(real(kGroup, "momentum", "of sgd; 0: none", &TrainOptions::momentum,
                   "a number from 0 to below 1", below_one, number_text(kDefaultMomentum)));
  t.push_back(flag(kGroup, "nesterov", "Nesterov's form of sgd's momentum", true,
                   &TrainOptions::nesterov, true));
  t.push_back(real(kGroup, "ema-decay",
                   "of a moving average of the masters, which is validated and upscaled with; 0: "
                   "none",
                   &TrainOptions::ema_decay, "0, or a number between 0 and 1", below_one));
}

}  // namespace vsr::launch
