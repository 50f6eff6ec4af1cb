// SPDX-License-Identifier: Apache-2.0
// The options of the learning rate: a curve, and for each curve what it needs, under the names that
// users of BasicSR and PyTorch know.
#include <sstream>

#include "launch/option_rows.hpp"
#include "launch/step_settings.hpp"

namespace vsr::launch {
namespace {

constexpr auto kGroup = OptionGroup::training;
/// No run is longer, and sums of periods stay in 64 bits.
constexpr std::int64_t kMostSteps = 1'000'000'000'000;
constexpr optim::OneCycleLr kOneCycle{};

/// The words of `text`, each read by `read`.
template <class T, class Read>
std::vector<T> words(const std::string& text, const char* expected, Read read) {
  std::vector<T> values;
  std::istringstream rest(text);
  try {
    for (std::string word; rest >> word;) values.push_back(read(word));
  } catch (const BadValue&) {
    throw BadValue{text, expected};
  }
  if (values.empty()) throw BadValue{text, expected};
  return values;
}

std::vector<std::int64_t> step_counts(const std::string& text, const char* expected) {
  return words<std::int64_t>(text, expected, [](const std::string& word) {
    return whole_number<std::int64_t>(word, 1, kMostSteps);
  });
}

std::vector<std::int64_t> read_milestones(const std::string& text) {
  const char* expected = "whole numbers of at least 1, each above the one before";
  auto steps = step_counts(text, expected);
  for (std::size_t i = 1; i < steps.size(); ++i)
    if (steps[i] <= steps[i - 1]) throw BadValue{text, expected};
  return steps;
}

std::vector<std::int64_t> read_periods(const std::string& text) {
  return step_counts(text, "whole numbers of at least 1");
}

std::vector<double> read_weights(const std::string& text) {
  const char* expected = "numbers above 0";
  return words<double>(text, expected, [&](const std::string& word) {
    return real_number(word, expected, positive);
  });
}

std::string steps_text(const std::vector<std::int64_t>& steps) {
  return fmt::format("{}", fmt::join(steps, " "));
}

std::string weights_text(const std::vector<double>& weights) {
  Lines texts;
  for (const double weight : weights) texts.push_back(number_text(weight));
  return joined(texts);
}

bool is_share(double v) {
  return v >= 0 && v <= 1;
}

void add_one_cycle_rows(std::vector<OptionRow>& t) {
  t.push_back(real(kGroup, "pct-start", "share of the steps in which one_cycle rises",
                   &TrainOptions::pct_start, "a number from 0 to 1", is_share,
                   number_text(kOneCycle.pct_start)));
  t.push_back(optional_row<AnnealStrategy>(
      kGroup, "anneal-strategy", "cos|linear", "shape of the two slopes of one_cycle",
      &TrainOptions::anneal_strategy,
      [](const std::string& v) { return choice(v, kAnnealStrategies); },
      [](const AnnealStrategy& v) { return std::string(to_string(v)); }, "cos"));
  t.push_back(real(kGroup, "div-factor", "--lr over the first rate of one_cycle",
                   &TrainOptions::div_factor, "a number above 0", positive,
                   number_text(kOneCycle.div_factor)));
  t.push_back(real(kGroup, "final-div-factor", "first over last rate of one_cycle",
                   &TrainOptions::final_div_factor, "a number above 0", positive,
                   number_text(kOneCycle.final_div_factor)));
}

}  // namespace

void add_schedule_rows(std::vector<OptionRow>& t) {
  t.push_back(row(
      kGroup, "scheduler", "CURVE",
      "learning rate over the applied steps: constant, cosine, multistep, cosine_restart, "
      "triangular or one_cycle",
      [](TrainOptions& o, const std::string& v) { o.scheduler = choice(v, kSchedulers); },
      [](const TrainOptions& o) { return std::string(to_string(o.scheduler)); }));
  t.push_back(whole<std::int64_t>(kGroup, "warmup-iter", "STEPS",
                                  "linear warm-up of the learning rate, applied steps",
                                  &TrainOptions::warmup_iter, 0));
  t.push_back(real(kGroup, "eta-min", "lowest rate of cosine, cosine_restart and triangular",
                   &TrainOptions::eta_min, "a number of at least 0", not_negative,
                   number_text(kDefaultEtaMin)));
  t.push_back(list<std::int64_t>(kGroup, "milestones", "STEPS...",
                                 "applied steps at which multistep multiplies by --gamma",
                                 &TrainOptions::milestones, read_milestones, steps_text));
  t.push_back(real(kGroup, "gamma", "factor of multistep", &TrainOptions::gamma, "a number above 0",
                   positive, number_text(optim::MultiStepLr{}.gamma)));
  t.push_back(list<std::int64_t>(kGroup, "periods", "STEPS...",
                                 "lengths of the periods of cosine_restart, applied steps",
                                 &TrainOptions::periods, read_periods, steps_text));
  t.push_back(list<double>(kGroup, "restart-weights", "NUMBERS...",
                           "heights of the periods of cosine_restart, times --lr",
                           &TrainOptions::restart_weights, read_weights, weights_text,
                           "1 for each"));
  t.push_back(whole<std::int64_t>(kGroup, "stepsize", "STEPS",
                                  "applied steps from the lowest rate of triangular to the highest",
                                  &TrainOptions::stepsize, 1));
  add_one_cycle_rows(t);
}

}  // namespace vsr::launch
