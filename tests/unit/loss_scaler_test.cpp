// SPDX-License-Identifier: Apache-2.0
// The scale after each step against the tables of torch's and apex's rules, and the floor.
#include "optim/loss_scaler.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "comm/error.hpp"

namespace vsr::optim {
namespace {

std::vector<float> scales(LossScaler& scaler, const std::vector<int>& flags) {
  std::vector<float> after;
  for (const int flag : flags) {
    scaler.update(flag != 0);
    after.push_back(scaler.scale());
  }
  return after;
}

TEST(LossScaler, GrowsAfterTheWindowAndHalvesAtOnce) {
  LossScaler scaler = LossScaler::dynamic({.initial_scale = 1024, .window_steps = 3});
  const std::vector<int> flags = {0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0};
  const std::vector<float> expected = {1024, 1024, 2048, 1024, 512,  512,  512,  1024, 1024, 1024,
                                       512,  512,  512,  1024, 1024, 1024, 2048, 2048, 2048};
  EXPECT_EQ(scales(scaler, flags), expected);
  EXPECT_EQ(scaler.state().clean_steps, 2);
}

TEST(LossScaler, EachOverflowHalves) {
  LossScaler scaler = LossScaler::dynamic();
  EXPECT_EQ(scales(scaler, {1, 0, 1}), (std::vector<float>{32768, 32768, 16384}));
}

TEST(LossScaler, StopsAtTheFloorAndCountsSkipsThere) {
  LossScaler scaler = LossScaler::dynamic({.initial_scale = 4, .max_skips_at_floor = 3});
  EXPECT_EQ(scales(scaler, {1, 1, 1, 1}), (std::vector<float>{2, 1, 1, 1}));
  EXPECT_EQ(scaler.state().skips_at_floor, 2);
  EXPECT_FALSE(scaler.is_stuck());
  scaler.update(false);
  EXPECT_EQ(scaler.state().skips_at_floor, 0);
  for (int i = 0; i < 3; ++i) scaler.update(true);
  EXPECT_TRUE(scaler.is_stuck());
}

TEST(LossScaler, AFloorBelowOneIsReached) {
  LossScaler scaler = LossScaler::dynamic({.initial_scale = 4, .floor = 0.125F});
  EXPECT_EQ(scales(scaler, {1, 1, 1, 1, 1, 1}),
            (std::vector<float>{2, 1, 0.5F, 0.25F, 0.125F, 0.125F}));
}

TEST(LossScaler, DefaultWindowIs2000BeforeEachGrowthAndAfterAnOverflow) {
  LossScaler scaler = LossScaler::dynamic();
  const auto clean_until_growth = [&] {
    const float before = scaler.scale();
    int steps = 0;
    while (scaler.scale() == before) {
      scaler.update(false);
      ++steps;
    }
    return steps;
  };
  EXPECT_EQ(clean_until_growth(), 2000);
  EXPECT_EQ(clean_until_growth(), 2000);
  for (int i = 0; i < 7; ++i) scaler.update(false);
  scaler.update(true);
  EXPECT_EQ(clean_until_growth(), 2000);
}

TEST(LossScaler, CeilingHoldsAtConstructionAndAtGrowth) {
  LossScaler scaler = LossScaler::dynamic({.initial_scale = 0x1p23F, .window_steps = 1});
  EXPECT_EQ(scales(scaler, {0, 0, 0}), (std::vector<float>{0x1p24F, 0x1p24F, 0x1p24F}));
  EXPECT_EQ(LossScaler::dynamic({.initial_scale = 0x1p32F}).scale(), 0x1p24F);
}

TEST(LossScaler, NeverBecomesInfinite) {
  LossScaler scaler =
      LossScaler::dynamic({.initial_scale = 0x1p126F, .window_steps = 1, .ceiling = 0x1p127F});
  EXPECT_EQ(scales(scaler, {0, 0, 0, 0}),
            (std::vector<float>{0x1p127F, 0x1p127F, 0x1p127F, 0x1p127F}));
}

TEST(LossScaler, AFixedScaleCountsSkipsButStays) {
  LossScaler scaler = LossScaler::fixed(128, {.max_skips_at_floor = 2});
  EXPECT_EQ(scales(scaler, {0, 1, 1}), (std::vector<float>{128, 128, 128}));
  EXPECT_TRUE(scaler.is_stuck());
}

TEST(LossScaler, StateIsASnapshotAndGoesOnWhereItWas) {
  LossScaler scaler = LossScaler::dynamic({.initial_scale = 2048, .window_steps = 3});
  scaler.update(false);
  scaler.update(false);
  const LossScalerState saved = scaler.state();
  scaler.update(true);
  EXPECT_EQ(saved.scale, 2048.0F);
  LossScaler resumed = LossScaler::dynamic({.window_steps = 3});
  resumed.load_state(saved);
  resumed.update(false);
  EXPECT_EQ(resumed.scale(), 4096.0F);
}

TEST(LossScaler, RefusesConstantsThatCannotWork) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_THROW(LossScaler::fixed(0), ConfigurationError);
  EXPECT_THROW(LossScaler::fixed(inf), ConfigurationError);
  EXPECT_THROW(LossScaler::dynamic({.growth_factor = 0.5F}), ConfigurationError);
  EXPECT_THROW(LossScaler::dynamic({.backoff_factor = 1.0F}), ConfigurationError);
  EXPECT_THROW(LossScaler::dynamic({.window_steps = 0}), ConfigurationError);
  EXPECT_THROW(LossScaler::dynamic({.floor = 2, .ceiling = 1}), ConfigurationError);
  EXPECT_THROW(LossScaler::dynamic({.max_skips_at_floor = 0}), ConfigurationError);
  LossScaler scaler = LossScaler::dynamic();
  EXPECT_THROW(scaler.set_scale(std::nanf("")), ArgumentError);
  EXPECT_THROW(scaler.load_state({-1.0F, 0, 0}), ArgumentError);
  EXPECT_THROW(scaler.load_state({1.0F, -1, 0}), ArgumentError);
}

}  // namespace
}  // namespace vsr::optim
