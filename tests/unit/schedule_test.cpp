// SPDX-License-Identifier: Apache-2.0
// The learning rate where its formula has a closed value, and against what PyTorch computes:
//   def run(make, n):  # the rate of each step
//     o = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-4); s = make(o); rates = []
//     for _ in range(n): rates.append(o.param_groups[0]['lr']); o.step(); s.step()
//     return rates
// with the `make` beside each list (PyTorch 2.11, its rates are doubles).
#include "optim/schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "comm/error.hpp"

namespace vsr::optim {
namespace {

using Rates = std::vector<double>;

/// PyTorch steps some of its curves from the rate before, so its last bits differ.
void expect_rates(const Schedule& schedule, const Rates& expected, double relative = 1e-13) {
  for (std::size_t t = 0; t < expected.size(); ++t)
    EXPECT_NEAR(schedule(static_cast<std::int64_t>(t)), expected[t], relative * expected[t])
        << "step " << t;
}

TEST(Schedule, CosineAtKeySteps) {
  const Schedule lr = CosineLr{.lr = 2e-4, .total_steps = 1200, .eta_min = 1e-7};
  const double span = 2e-4 - 1e-7;
  EXPECT_DOUBLE_EQ(lr(0), 2e-4);
  EXPECT_DOUBLE_EQ(lr(300), 1e-7 + span * (2 + std::sqrt(2.0)) / 4);
  EXPECT_DOUBLE_EQ(lr(400), 1e-7 + span * 0.75);
  EXPECT_DOUBLE_EQ(lr(600), 1e-7 + span * 0.5);
  EXPECT_DOUBLE_EQ(lr(800), 1e-7 + span * 0.25);
  EXPECT_EQ(lr(1200), 1e-7);
  EXPECT_EQ(lr(5000), 1e-7);
  for (int t = 0; t < 1200; ++t) EXPECT_GT(lr(t), lr(t + 1)) << t;
}

TEST(Schedule, CosineOfPytorch) {
  // CosineAnnealingLR(o, 6, 1e-7)
  expect_rates(CosineLr{.lr = 2e-4, .total_steps = 6, .eta_min = 1e-7},
               {0.0002, 0.00018660923910825467, 0.00015002500000000003, 0.00010005000000000002,
                5.007500000000003e-05, 1.3490760891745354e-05, 1e-07});
}

TEST(Schedule, ConstantStays) {
  const Schedule lr = ConstantLr{.lr = 3e-4};
  for (const int t : {0, 5, 10, 1000}) EXPECT_EQ(lr(t), 3e-4);
}

TEST(Schedule, WarmUpIsLinearAndThenOnTheCurve) {
  const Schedule lr = ConstantLr{.lr = 1, .warmup_steps = 8};
  EXPECT_EQ(lr(0), 0.125);
  EXPECT_EQ(lr(3), 0.5);
  EXPECT_EQ(lr(6), 0.875);
  EXPECT_EQ(lr(7), 1.0);
  EXPECT_EQ(lr(8), 1.0);
  // The curve counts from the start of the run, not from the end of warm-up.
  const Schedule cosine = CosineLr{.lr = 1, .total_steps = 14, .warmup_steps = 8};
  EXPECT_EQ(cosine(6), 0.875);
  EXPECT_DOUBLE_EQ(cosine(7), 0.5);
  EXPECT_EQ(cosine(14), 0.0);
  const Schedule steps =
      MultiStepLr{.lr = 1, .milestones = {2, 5}, .gamma = 0.5, .warmup_steps = 4};
  EXPECT_EQ(steps(2), 0.75);
  EXPECT_EQ(steps(3), 0.5);
  EXPECT_EQ(steps(5), 0.25);
  const Schedule restart = CosineRestartLr{.lr = 1, .periods = {2, 4}, .warmup_steps = 2};
  EXPECT_EQ(restart(0), 0.5);
  EXPECT_EQ(restart(1), 0.5);
  EXPECT_EQ(restart(2), 0.0);
}

TEST(Schedule, MultistepOfPytorch) {
  // MultiStepLR(o, [3, 5, 6], 0.5) and MultiStepLR(o, [2, 3], 0.3)
  expect_rates(MultiStepLr{.lr = 2e-4, .milestones = {3, 5, 6}, .gamma = 0.5},
               {0.0002, 0.0002, 0.0002, 0.0001, 0.0001, 5e-05, 2.5e-05, 2.5e-05}, 0);
  expect_rates(MultiStepLr{.lr = 2e-4, .milestones = {2, 3}, .gamma = 0.3},
               {0.0002, 0.0002, 6e-05, 1.8e-05, 1.8e-05}, 0);
  const Schedule plain = MultiStepLr{.lr = 2e-4};
  EXPECT_EQ(plain(1'000'000), 2e-4);
}

TEST(Schedule, RestartsAtTheRightClosedEndsOfBasicsr) {
  const Schedule lr = CosineRestartLr{
      .lr = 2e-4, .periods = {4, 4, 8}, .restart_weights = {1, 0.5, 0.25}, .eta_min = 1e-7};
  const double span = 2e-4 - 1e-7;
  const double quarter = (2 - std::sqrt(2.0)) / 4;
  // A period ends at eta_min, and its successor begins one step down from its top.
  const Rates expected = {
      2e-4, 1e-7 + span * (1 - quarter),       1e-7 + span / 2,       1e-7 + span * quarter,
      1e-7, 1e-7 + 0.5 * span * (1 - quarter), 1e-7 + 0.5 * span / 2, 1e-7 + 0.5 * span * quarter,
      1e-7};
  expect_rates(lr, expected);
  EXPECT_EQ(lr(4), 1e-7);
  EXPECT_EQ(lr(8), 1e-7);
  EXPECT_NEAR(lr(10), 1e-7 + 0.25 * span * (1 - quarter), 1e-17);
  EXPECT_NEAR(lr(12), 1e-7 + 0.25 * span / 2, 1e-17);
  EXPECT_EQ(lr(16), 1e-7);
  EXPECT_EQ(lr(17), 1e-7);
}

TEST(Schedule, RestartsOfPytorchBetweenTheEnds) {
  // CosineAnnealingWarmRestarts(o, 4, 2, 1e-7), which opens periods where BasicSR closes them: at
  // the steps 4 and 12 it is at the top.
  const Rates torch = {0.0002,
                       0.00017072532277959544,
                       0.00010005,
                       2.9374677220404582e-05,
                       0.0002,
                       0.00019239175927450311,
                       0.00017072532277959544,
                       0.00013829920906489074,
                       0.00010005,
                       6.180079093510929e-05,
                       2.9374677220404582e-05,
                       7.70824072549689e-06,
                       0.0002};
  const Schedule lr = CosineRestartLr{.lr = 2e-4, .periods = {4, 8}, .eta_min = 1e-7};
  for (const int t : {0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11})
    EXPECT_DOUBLE_EQ(lr(t), torch[static_cast<std::size_t>(t)]) << t;
  EXPECT_EQ(lr(4), 1e-7);
  EXPECT_EQ(lr(12), 1e-7);
}

TEST(Schedule, OnePeriodIsTheCosineToTheBit) {
  const Schedule restart = CosineRestartLr{.lr = 3e-4, .periods = {777}, .eta_min = 1e-7};
  const Schedule cosine = CosineLr{.lr = 3e-4, .total_steps = 777, .eta_min = 1e-7};
  for (int t = 0; t < 800; ++t) ASSERT_EQ(restart(t), cosine(t)) << t;
}

// T47.
TEST(Schedule, TriangularOfTheReferenceProgram) {
  const Schedule lr = TriangularLr{.min_lr = 1e-6, .max_lr = 1e-5, .stepsize = 100};
  const Rates expected = {1e-6, 5.5e-6, 1e-5, 5.5e-6, 1e-6, 5.5e-6, 1e-5};
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(lr(static_cast<std::int64_t>(i) * 50), expected[i], 1e-12) << i * 50;
  for (int t = 0; t < 1000; ++t) {
    const double cycle = std::floor(1 + t / 200.0);
    const double x = std::abs(t / 100.0 - 2 * cycle + 1);
    EXPECT_NEAR(lr(t), 1e-6 + (1e-5 - 1e-6) * std::max(0.0, 1 - x), 1e-17) << t;
    EXPECT_EQ(lr(t), lr(t + 200'000'000)) << t;
  }
}

TEST(Schedule, OneCycleOfPytorch) {
  // OneCycleLR(o, 1e-3, 10, cycle_momentum=False)
  expect_rates(OneCycleLr{.max_lr = 1e-3, .total_steps = 10},
               {3.9999999999999996e-05, 0.0005200000000000001, 0.001, 0.0009504846320134736,
                0.000811745653949763, 0.0006112620219362892, 0.00038874197806371076,
                0.00018825834605023698, 4.9519367986526286e-05, 4e-09});
  // OneCycleLR(o, 0.1, 8, pct_start=0.45, anneal_strategy='linear', div_factor=10,
  //            final_div_factor=100, cycle_momentum=False)
  expect_rates(
      OneCycleLr{.max_lr = 0.1,
                 .total_steps = 8,
                 .pct_start = 0.45,
                 .anneal = Anneal::linear,
                 .div_factor = 10,
                 .final_div_factor = 100},
      {0.01, 0.04461538461538462, 0.07923076923076923, 0.09091818181818183, 0.06821363636363637,
       0.045509090909090916, 0.022804545454545466, 0.00010000000000000286});
  // OneCycleLR(o, 0.1, 4, pct_start=0.0, …) and pct_start=1.0
  expect_rates(OneCycleLr{.max_lr = 0.1, .total_steps = 4, .pct_start = 0},
               {0.08535539763797113, 0.0500002, 0.014645002362028864, 4e-07});
  expect_rates(OneCycleLr{.max_lr = 0.1, .total_steps = 4, .pct_start = 1},
               {0.0040000000000000036, 0.027999999999999997, 0.076, 0.1});
}

TEST(Schedule, OneCycleAtItsEnds) {
  const Schedule lr = OneCycleLr{.max_lr = 1, .total_steps = 100};
  EXPECT_NEAR(lr(0), 1.0 / 25, 1e-15);
  EXPECT_DOUBLE_EQ(lr(29), 1.0);
  EXPECT_DOUBLE_EQ(lr(99), 1.0 / 25 / 1e4);
  EXPECT_EQ(lr(100), lr(99));
  EXPECT_EQ(lr(100000), lr(99));
  // The rise of no length that PyTorch divides by zero for.
  const Schedule short_rise = OneCycleLr{.max_lr = 1, .total_steps = 4, .pct_start = 0.25};
  EXPECT_EQ(short_rise(0), 1.0);
  EXPECT_DOUBLE_EQ(short_rise(3), 1.0 / 25 / 1e4);
  const Schedule one_step = OneCycleLr{.max_lr = 1, .total_steps = 1};
  EXPECT_DOUBLE_EQ(one_step(0), 1.0 / 25 / 1e4);
}

// Bug 34 of the FP16 stacks: only applied steps move the schedule, and nothing is remembered.
TEST(Schedule, IsAFunctionOfTheStepAlone) {
  const Schedule lr = TriangularLr{.min_lr = 1e-6, .max_lr = 1e-5, .stepsize = 100};
  const Schedule copy = lr;
  const double at_50 = lr(50);
  EXPECT_EQ(lr(250), copy(50));
  EXPECT_EQ(lr(50), at_50);
  Schedule other = ConstantLr{.lr = 1};
  other = lr;
  EXPECT_EQ(other(50), at_50);
  EXPECT_TRUE(std::holds_alternative<TriangularLr>(other.curve()));
}

TEST(Schedule, HugeStepsAreStillOnTheCurve) {
  const std::int64_t last = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(Schedule(CosineRestartLr{.lr = 1, .periods = {last, last}})(last), 0);
  EXPECT_EQ(Schedule(CosineLr{.lr = 1, .total_steps = 7})(last), 0);
  EXPECT_EQ(Schedule(TriangularLr{.max_lr = 1, .stepsize = last})(last), 1);
  EXPECT_NEAR(Schedule(OneCycleLr{.max_lr = 1, .total_steps = 7})(last), 4e-6, 1e-15);
}

void expect_refusal(const Curve& curve, const std::string& text) {
  try {
    const Schedule schedule(curve);
    ADD_FAILURE() << "no error, expected: " << text;
  } catch (const ConfigurationError& error) {
    EXPECT_NE(std::string(error.what()).find("schedule: " + text), std::string::npos)
        << error.what();
  }
}

TEST(Schedule, RefusesWhatIsNoCurve) {
  const double inf = std::numeric_limits<double>::infinity();
  expect_refusal(ConstantLr{}, "lr is 0, expected a number above 0");
  expect_refusal(ConstantLr{.lr = inf}, "lr is inf, expected a number above 0");
  expect_refusal(ConstantLr{.lr = 1, .warmup_steps = -1},
                 "warmup_steps is -1, expected at least 0");
  expect_refusal(CosineLr{.lr = 1}, "total_steps is 0, expected at least 1");
  expect_refusal(CosineLr{.lr = 1e-8, .total_steps = 1, .eta_min = 1e-7},
                 "eta_min is 1e-07, expected a number from 0 to the highest rate, 1e-08");
  expect_refusal(CosineLr{.lr = 1, .total_steps = 1, .eta_min = std::nan("")}, "eta_min is nan");
  expect_refusal(MultiStepLr{.lr = 1, .milestones = {5, 5}},
                 "a milestone is 5, expected more than 5, so that milestones ascend");
  expect_refusal(MultiStepLr{.lr = 1, .milestones = {0}}, "a milestone is 0, expected more than 0");
  expect_refusal(MultiStepLr{.lr = 1, .gamma = 0}, "gamma is 0, expected a number above 0");
  expect_refusal(CosineRestartLr{.lr = 1}, "the number of periods is 0, expected at least 1");
  expect_refusal(CosineRestartLr{.lr = 1, .periods = {3, 0}}, "a period is 0, expected at least 1");
  expect_refusal(CosineRestartLr{.lr = 1, .periods = {3, 4}, .restart_weights = {1}},
                 "the number of restart_weights is 1, expected one for each of the 2 periods");
  expect_refusal(CosineRestartLr{.lr = 1, .periods = {3}, .restart_weights = {-1}},
                 "a restart weight is -1, expected a number above 0");
  expect_refusal(TriangularLr{.min_lr = 2, .max_lr = 1, .stepsize = 1},
                 "min_lr is 2, expected a number from 0 to the highest rate, 1");
  expect_refusal(TriangularLr{.max_lr = 1}, "stepsize is 0, expected at least 1");
  expect_refusal(OneCycleLr{.max_lr = 1}, "total_steps is 0, expected at least 1");
  expect_refusal(OneCycleLr{.max_lr = 1, .total_steps = 1, .pct_start = 1.5},
                 "pct_start is 1.5, expected a number from 0 to 1");
  expect_refusal(OneCycleLr{.max_lr = 1, .total_steps = 1, .div_factor = 0}, "div_factor is 0");
  expect_refusal(OneCycleLr{.max_lr = 1, .total_steps = 1, .final_div_factor = -1},
                 "final_div_factor is -1");
}

TEST(Schedule, RefusesStepsBeforeTheFirst) {
  EXPECT_THROW(Schedule(ConstantLr{.lr = 1})(-1), ArgumentError);
}

}  // namespace
}  // namespace vsr::optim
