// SPDX-License-Identifier: Apache-2.0
// The learning rate at the points where its formula has a closed value.
#include "optim/schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "comm/error.hpp"

namespace vsr::optim {
namespace {

TEST(Schedule, CosineAtKeySteps) {
  const Schedule lr{ScheduleKind::cosine, 2e-4, 1e-7, 0, 1200};
  const double span = 2e-4 - 1e-7;
  EXPECT_DOUBLE_EQ(lr(0), 2e-4);
  EXPECT_DOUBLE_EQ(lr(300), 1e-7 + span * (2 + std::sqrt(2.0)) / 4);
  EXPECT_DOUBLE_EQ(lr(400), 1e-7 + span * 0.75);
  EXPECT_DOUBLE_EQ(lr(600), 1e-7 + span * 0.5);
  EXPECT_DOUBLE_EQ(lr(800), 1e-7 + span * 0.25);
  EXPECT_EQ(lr(1200), 1e-7);
  EXPECT_EQ(lr(5000), 1e-7);
}

TEST(Schedule, CosineFalls) {
  const Schedule lr{ScheduleKind::cosine, 1.0, 0.0, 0, 100};
  for (int t = 0; t < 100; ++t) EXPECT_GT(lr(t), lr(t + 1)) << t;
}

TEST(Schedule, ConstantStays) {
  const Schedule lr{ScheduleKind::constant, 3e-4, 1e-7, 0, 10};
  for (const int t : {0, 5, 10, 1000}) EXPECT_EQ(lr(t), 3e-4);
}

TEST(Schedule, WarmUpIsLinearAndThenOnTheCurve) {
  const Schedule lr{ScheduleKind::constant, 1.0, 0, 8, 100};
  EXPECT_EQ(lr(0), 0.125);
  EXPECT_EQ(lr(3), 0.5);
  EXPECT_EQ(lr(6), 0.875);
  EXPECT_EQ(lr(7), 1.0);
  EXPECT_EQ(lr(8), 1.0);
  // The cosine counts from the start of the run, not from the end of warm-up.
  const Schedule cosine{ScheduleKind::cosine, 1.0, 0, 8, 14};
  EXPECT_EQ(cosine(6), 0.875);
  EXPECT_DOUBLE_EQ(cosine(7), 0.5);
  EXPECT_EQ(cosine(14), 0.0);
}

TEST(Schedule, RefusesImpossibleSteps) {
  EXPECT_THROW((Schedule{ScheduleKind::cosine, 1, 0, 0, 10}(-1)), ArgumentError);
  EXPECT_THROW((Schedule{ScheduleKind::cosine, 1, 0, 0, 0}(0)), ArgumentError);
  EXPECT_THROW((Schedule{ScheduleKind::cosine, 1, 0, -1, 10}(0)), ArgumentError);
}

}  // namespace
}  // namespace vsr::optim
