// SPDX-License-Identifier: Apache-2.0
// The scale after each step against the published sequences of DALI, torch, apex, Megatron and
// DeepSpeed, then what none of them promises: never non-finite, and a state that goes on exactly.
#include "optim/loss_scaler.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "comm/error.hpp"

namespace vsr::optim {
namespace {

using Flags = std::vector<int>;  // 1: overflow
using Scales = std::vector<double>;

Scales scales(LossScaler& scaler, const Flags& flags) {
  Scales after;
  for (const int flag : flags) {
    scaler.update(flag != 0);
    after.push_back(scaler.scale());
  }
  return after;
}

/// The rules called `name` with what a table names; 0 leaves a constant as it is.
LossScalerOptions rules(const char* name, double initial_scale, std::int64_t window = 0,
                        int hysteresis = 0) {
  LossScalerOptions options = LossScalerOptions::named(name);
  options.initial_scale = initial_scale;
  if (window != 0) options.window_steps = window;
  if (hysteresis != 0) options.hysteresis = hysteresis;
  return options;
}

LossScalerOptions consecutive(LossScalerOptions options) {
  options.consecutive_hysteresis = true;
  return options;
}

struct Sequence {
  const char* id;
  LossScalerOptions options;
  Flags flags;
  Scales expected;
};

void PrintTo(const Sequence& sequence, std::ostream* out) {
  *out << sequence.id;
}

class LossScalerSequence : public ::testing::TestWithParam<Sequence> {};

TEST_P(LossScalerSequence, GivesTheScales) {
  LossScaler scaler = LossScaler::dynamic(GetParam().options);
  EXPECT_EQ(scales(scaler, GetParam().flags), GetParam().expected);
}

const Flags kMixed = {0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0};
const Scales kPlain = {1024, 1024, 2048, 1024, 512,  512,  512,  1024, 1024, 1024,
                       512,  512,  512,  1024, 1024, 1024, 2048, 2048, 2048};
const Scales kMegatron2 = {1024, 1024, 2048, 2048, 1024, 1024, 1024, 2048, 2048, 2048,
                           2048, 2048, 2048, 4096, 4096, 4096, 8192, 8192, 8192};
const Scales kDeepspeed1 = {1024, 1024, 1024, 512, 256, 256, 256, 256,  512, 512,
                            256,  256,  256,  256, 512, 512, 512, 1024, 1024};
const Scales kDeepspeed2 = {1024, 1024, 1024, 1024, 512,  512,  512,  512,  1024, 1024,
                            1024, 1024, 1024, 1024, 2048, 2048, 2048, 4096, 4096};

INSTANTIATE_TEST_SUITE_P(
    Vectors, LossScalerSequence,
    ::testing::Values(
        Sequence{"T1_dali", rules("dali", 1024, 3), kMixed, kPlain},
        Sequence{"T1_torch", rules("torch", 1024, 3), kMixed, kPlain},
        Sequence{"T1_apex", rules("apex", 1024, 3), kMixed, kPlain},
        Sequence{"T1_megatron", rules("megatron", 1024, 3, 1), kMixed, kPlain},
        Sequence{"T1_vsr", rules("vsr", 1024, 3), kMixed, kPlain},
        Sequence{"T2_megatron", rules("megatron", 1024, 3), kMixed, kMegatron2},
        Sequence{"T3_deepspeed", rules("deepspeed", 1024, 3, 1), kMixed, kDeepspeed1},
        Sequence{"T4_deepspeed", rules("deepspeed", 1024, 3), kMixed, kDeepspeed2},
        Sequence{"T5_megatron", rules("megatron", 65536), {1, 0, 1}, {65536, 65536, 32768}},
        Sequence{"T5_deepspeed", rules("deepspeed", 65536), {1, 0, 1}, {65536, 65536, 32768}},
        Sequence{"T5_deepspeed_consecutive",
                 consecutive(rules("deepspeed", 65536)),
                 {1, 0, 1},
                 {65536, 65536, 65536}},
        Sequence{"T5_torch", rules("torch", 65536), {1, 0, 1}, {32768, 32768, 16384}},
        Sequence{
            "T6_megatron", rules("megatron", 65536), {1, 1, 1, 1}, {65536, 32768, 16384, 8192}},
        Sequence{
            "T6_deepspeed", rules("deepspeed", 65536), {1, 1, 1, 1}, {65536, 32768, 16384, 8192}},
        Sequence{"T8_dali", rules("dali", 4), {1, 1, 1, 1, 1}, {2, 1, 1, 1, 1}},
        Sequence{"T8_torch", rules("torch", 4), {1, 1, 1, 1, 1}, {2, 1, 0.5, 0.25, 0.125}},
        Sequence{"T8_apex", rules("apex", 4), {1, 1, 1, 1, 1}, {2, 1, 0.5, 0.25, 0.125}},
        Sequence{"T8_megatron", rules("megatron", 4, 0, 1), {1, 1, 1, 1, 1}, {2, 1, 1, 1, 1}},
        Sequence{"T10_torch",
                 rules("torch", 0x1p126, 1),
                 {0, 0, 0, 0},
                 {0x1p127, 0x1p127, 0x1p127, 0x1p127}},
        Sequence{"T10_dali",
                 rules("dali", 0x1p126, 1),
                 {0, 0, 0, 0},
                 {0x1p127, 0x1p128, 0x1p129, 0x1p130}},
        Sequence{"T11_apex", rules("apex", 0x1p23, 1), {0, 0, 0}, {0x1p24, 0x1p24, 0x1p24}},
        Sequence{"a_floor_below_one",
                 {.initial_scale = 4, .floor = 0.25},
                 {1, 1, 1, 1, 1},
                 {2, 1, 0.5, 0.25, 0.25}},
        Sequence{
            "other_factors",
            {.initial_scale = 1024, .growth_factor = 4, .backoff_factor = 0.125, .window_steps = 2},
            {0, 0, 1, 0, 0},
            {1024, 4096, 512, 512, 2048}},
        Sequence{"no_powers_of_two",
                 {.initial_scale = 1000,
                  .growth_factor = 1.5,
                  .backoff_factor = 0.75,
                  .window_steps = 1,
                  .powers_of_two = false},
                 {0, 1, 1},
                 {1500, 1125, 843.75}}),
    [](const auto& tested) { return std::string(tested.param.id); });

// T8: the overflow at the floor is the one that DeepSpeed raises at.
TEST(LossScaler, DeepspeedIsStuckAtTheFirstOverflowOnTheFloor) {
  LossScaler scaler = LossScaler::dynamic(rules("deepspeed", 4, 0, 1));
  EXPECT_EQ(scales(scaler, {1, 1}), (Scales{2, 1}));
  EXPECT_FALSE(scaler.is_stuck());
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_TRUE(scaler.is_stuck());
}

// T1: torch's tracker is what is left of a window.
TEST(LossScaler, CountsCleanStepsSinceTheLastOverflow) {
  LossScaler scaler = LossScaler::dynamic(rules("torch", 1024, 3));
  scales(scaler, kMixed);
  EXPECT_EQ(scaler.state().clean_steps, 8);
  EXPECT_EQ(scaler.state().clean_steps % 3, 2);
}

struct Window {
  const char* name;
  int first, next, after_overflow;
};

void PrintTo(const Window& window, std::ostream* out) {
  *out << window.name;
}

class LossScalerWindow : public ::testing::TestWithParam<Window> {};

// T9, with the windows of the rules themselves. Two overflows, since one may be forgiven.
TEST_P(LossScalerWindow, CleanStepsUntilGrowth) {
  LossScaler scaler = LossScaler::dynamic(rules(GetParam().name, 1024));
  const auto clean_until_growth = [&] {
    const double before = scaler.scale();
    int steps = 0;
    for (; scaler.scale() == before && steps < 10000; ++steps) scaler.update(false);
    EXPECT_EQ(scaler.scale(), 2 * before);
    return steps;
  };
  EXPECT_EQ(clean_until_growth(), GetParam().first);
  EXPECT_EQ(clean_until_growth(), GetParam().next);
  EXPECT_EQ(clean_until_growth(), GetParam().next);
  for (int i = 0; i < 7; ++i) scaler.update(false);
  scaler.update(true);
  EXPECT_EQ(clean_until_growth(), GetParam().after_overflow);
  scaler.update(true);
  scaler.update(true);
  EXPECT_EQ(clean_until_growth(), GetParam().after_overflow);
}

INSTANTIATE_TEST_SUITE_P(
    T9, LossScalerWindow,
    ::testing::Values(Window{"dali", 1000, 1000, 1000}, Window{"megatron", 1000, 1000, 1000},
                      Window{"torch", 2000, 2000, 2000}, Window{"apex", 2000, 2000, 2000},
                      Window{"deepspeed", 1001, 1000, 1001}, Window{"vsr", 2000, 2000, 2000}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(LossScaler, FirstScales) {
  const auto first = [](const char* name) {
    return LossScaler::dynamic(LossScalerOptions::named(name)).scale();
  };
  EXPECT_EQ(first("vsr"), 65536);
  EXPECT_EQ(first("torch"), 65536);
  EXPECT_EQ(first("apex"), 65536);
  EXPECT_EQ(first("deepspeed"), 65536);
  EXPECT_EQ(first("dali"), 0x1p32);
  EXPECT_EQ(first("megatron"), 0x1p32);
  EXPECT_EQ(LossScaler::dynamic(rules("apex", 0x1p32)).scale(), 0x1p24);  // T11
  EXPECT_EQ(LossScaler::dynamic({.initial_scale = 0.5}).scale(), 1);
}

TEST(LossScaler, RulesByName) {
  EXPECT_EQ(LossScalerOptions::named("vsr"), LossScalerOptions{});
  EXPECT_EQ(LossScalerOptions::named("deepspeed"), LossScalerOptions::deepspeed());
  EXPECT_EQ(LossScalerOptions::named("apex"), LossScalerOptions::apex_amp());
  for (const std::string_view name : loss_scaler_rules())
    EXPECT_NO_THROW(LossScaler::dynamic(LossScalerOptions::named(name))) << name;
  try {
    LossScalerOptions::named("pytorch");
    FAIL() << "no error";
  } catch (const ConfigurationError& error) {
    EXPECT_NE(
        std::string(error.what())
            .find("loss scaler: got rules \"pytorch\", expected one of vsr, torch, apex, dali, "
                  "megatron, deepspeed"),
        std::string::npos)
        << error.what();
  }
}

// T13: FP32 would reach 0 with the 166th halving; the floor stands before that.
TEST(LossScaler, TheLastHalvingInFp32NeverHappens) {
  for (const char* name : {"torch", "apex"}) {
    LossScaler scaler = LossScaler::dynamic(rules(name, 65536));
    int halvings = 0;
    for (int i = 0; i < 300; ++i) {
      const double before = scaler.scale();
      scaler.update(true);
      if (scaler.scale() == before) continue;
      ASSERT_EQ(scaler.scale(), before / 2);
      ++halvings;
    }
    EXPECT_EQ(halvings, 165) << name;
    EXPECT_EQ(static_cast<float>(scaler.scale()), std::numeric_limits<float>::denorm_min());
    EXPECT_EQ(static_cast<float>(scaler.scale()) / 2.0F, 0.0F);
    EXPECT_TRUE(scaler.is_stuck());
  }
}

TEST(LossScaler, IsFiniteAndAboveZeroForEver) {
  for (const std::string_view name : loss_scaler_rules()) {
    LossScalerOptions options = LossScalerOptions::named(name);
    options.window_steps = 1;
    for (const bool overflow : {false, true}) {
      LossScaler scaler = LossScaler::dynamic(options);
      for (int i = 0; i < 3000; ++i) {
        scaler.update(overflow);
        ASSERT_TRUE(std::isfinite(scaler.scale()) && scaler.scale() > 0) << name << " step " << i;
      }
      EXPECT_EQ(scaler.scale(), overflow ? options.floor : options.ceiling) << name;
    }
  }
}

TEST(LossScaler, CountsConsecutiveSkipsAtTheFloor) {
  LossScaler scaler = LossScaler::dynamic({.initial_scale = 4, .max_skips_at_floor = 3});
  EXPECT_EQ(scales(scaler, {1, 1, 1, 1}), (Scales{2, 1, 1, 1}));
  EXPECT_EQ(scaler.state().skips_at_floor, 2);
  EXPECT_FALSE(scaler.is_stuck());
  scaler.update(false);
  EXPECT_EQ(scaler.state().skips_at_floor, 0);
  for (int i = 0; i < 3; ++i) scaler.update(true);
  EXPECT_TRUE(scaler.is_stuck());
}

TEST(LossScaler, GrowthAtTheCeilingRefillsHysteresis) {
  LossScaler scaler =
      LossScaler::dynamic({.initial_scale = 4, .window_steps = 2, .hysteresis = 3, .ceiling = 4});
  EXPECT_EQ(scales(scaler, {1, 1, 0}), (Scales{4, 4, 4}));
  EXPECT_EQ(scaler.state().hysteresis_left, 1);
  scaler.update(false);
  EXPECT_EQ(scaler.state().hysteresis_left, 3);
  EXPECT_EQ(scales(scaler, {1, 1, 1, 1}), (Scales{4, 4, 2, 1}));
}

TEST(LossScaler, AFixedScaleCountsSkipsButStays) {
  LossScaler scaler = LossScaler::fixed(128, {.hysteresis = 2, .max_skips_at_floor = 2});
  EXPECT_EQ(scales(scaler, {0, 1, 1}), (Scales{128, 128, 128}));
  EXPECT_TRUE(scaler.is_stuck());
}

TEST(LossScaler, SetScaleRestartsTheCounters) {
  LossScaler scaler = LossScaler::dynamic(rules("megatron", 4, 3));
  scales(scaler, {1, 1, 0, 0});
  scaler.set_scale(0.5);
  EXPECT_EQ(scaler.state(), (LossScalerState{0.5, 0, 2, 0}));
  scaler.set_scale(0x1p127);
  EXPECT_EQ(scales(scaler, {0, 0, 0, 1, 1}), (Scales{0x1p127, 0x1p127, 0x1p127, 0x1p127, 0x1p126}));
}

TEST(LossScaler, AScaleSetAboveTheCeilingDoesNotFallByGrowth) {
  LossScaler scaler = LossScaler::dynamic({.window_steps = 1});
  scaler.set_scale(0x1p30);
  EXPECT_EQ(scales(scaler, {0, 1}), (Scales{0x1p30, 0x1p29}));
}

TEST(LossScaler, StateGoesOnWhereItWas) {
  // T35, torch: the tracker stands at 2 of 3.
  LossScaler torch = LossScaler::dynamic(rules("torch", 65536, 3));
  torch.load_state({2048, 2, 1, 0});
  torch.update(false);
  EXPECT_EQ(torch.scale(), 4096);
  // T35, DALI: iteration 2, last overflow before iteration 0.
  LossScaler dali = LossScaler::dynamic(rules("dali", 1024, 3));
  scales(dali, {0, 0});
  LossScaler resumed = LossScaler::dynamic(rules("dali", 65536, 3));
  resumed.load_state(dali.state());
  resumed.update(false);
  EXPECT_EQ(resumed.scale(), 2 * dali.scale());
}

TEST(LossScaler, ResumingAnywhereGivesTheSameSteps) {
  const Flags flags = {0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 1};
  for (const std::string_view name : loss_scaler_rules()) {
    LossScalerOptions options = LossScalerOptions::named(name);
    options.window_steps = 3;
    options.initial_scale = 4;
    for (const int hysteresis : {1, 2, 3}) {
      options.hysteresis = hysteresis;
      options.consecutive_hysteresis = hysteresis == 3;
      LossScaler whole = LossScaler::dynamic(options);
      for (std::size_t i = 0; i < flags.size(); ++i) {
        LossScaler resumed = LossScaler::dynamic(options);
        resumed.load_state(whole.state());
        EXPECT_EQ(resumed.state(), whole.state());
        LossScaler on = whole;
        for (std::size_t j = i; j < flags.size(); ++j) {
          on.update(flags[j] != 0);
          resumed.update(flags[j] != 0);
          ASSERT_EQ(resumed.state(), on.state()) << name << " from " << i << " at " << j;
        }
        whole.update(flags[i] != 0);
      }
    }
  }
}

// T36.
TEST(LossScaler, StateIsASnapshot) {
  LossScaler scaler = LossScaler::dynamic();
  const LossScalerState saved = scaler.state();
  scaler.update(true);
  EXPECT_EQ(saved.scale, 65536);
  EXPECT_EQ(scaler.scale(), 32768);
}

TEST(LossScaler, AnOlderStateLoadsWithAllItsHysteresis) {
  LossScaler scaler = LossScaler::dynamic(rules("megatron", 65536));
  scales(scaler, {1});
  scaler.load_state({.scale = 1024, .clean_steps = 5});
  EXPECT_EQ(scaler.state(), (LossScalerState{1024, 5, 2, 0}));
}

template <class Exception, class Call>
void expect_refusal(Call call, const std::string& text) {
  try {
    call();
    ADD_FAILURE() << "no error, expected: " << text;
  } catch (const Exception& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST(LossScaler, RefusesConstantsThatCannotWork) {
  const double inf = std::numeric_limits<double>::infinity();
  const auto refuses = [](LossScalerOptions options, const std::string& text) {
    expect_refusal<ConfigurationError>([&] { LossScaler::dynamic(options); }, text);
  };
  refuses({.initial_scale = -1}, "the initial scale is -1, expected a positive finite number");
  refuses({.growth_factor = 0.5},
          "the growth factor is 0.5, expected a finite number of at least 1");
  refuses({.growth_factor = inf}, "the growth factor is inf");
  refuses({.backoff_factor = 1}, "the backoff factor is 1, expected a number between 0 and 1");
  refuses({.window_steps = 0}, "the window is 0, expected at least 1 step");
  refuses({.growth_delay = -1}, "the growth delay is -1, expected at least 0 steps");
  refuses({.hysteresis = 0}, "the hysteresis is 0, expected at least 1 overflow");
  refuses({.floor = 2, .ceiling = 1},
          "the ceiling is 1, expected a finite number that is not below");
  refuses({.floor = 0}, "the floor is 0, expected a positive finite number");
  refuses({.ceiling = inf}, "the ceiling is inf");
  refuses({.max_skips_at_floor = 0}, "max_skips_at_floor is 0, expected at least 1");
  expect_refusal<ConfigurationError>([] { LossScaler::fixed(0); }, "the static scale is 0");
  expect_refusal<ConfigurationError>([&] { LossScaler::fixed(inf); }, "the static scale is inf");
  expect_refusal<ConfigurationError>([] { LossScaler::fixed(1, {.hysteresis = 0}); }, "hysteresis");
}

TEST(LossScaler, RefusesWhatIsNoPowerOfTwoUnlessAsked) {
  const auto refuses = [](LossScalerOptions options, const std::string& text) {
    expect_refusal<ConfigurationError>([&] { LossScaler::dynamic(options); }, text);
    options.powers_of_two = false;
    EXPECT_NO_THROW(LossScaler::dynamic(options));
  };
  refuses({.initial_scale = 1000},
          "the initial scale is 1000, expected a power of two (others cost bits of each gradient): "
          "use 512 or 1024, or set powers_of_two to false");
  refuses({.growth_factor = 1.5}, "the growth factor is 1.5");
  refuses({.backoff_factor = 0.75}, "use 0.5 or 1, or set powers_of_two to false");
  refuses({.floor = 3}, "the floor is 3, expected a power of two");
  refuses({.ceiling = 16777217}, "the ceiling is 16777217, expected a power of two");
  expect_refusal<ConfigurationError>([] { LossScaler::fixed(1000); }, "use 512 or 1024");
  EXPECT_EQ(LossScaler::fixed(1000, {.powers_of_two = false}).scale(), 1000);
  LossScaler scaler = LossScaler::dynamic();
  expect_refusal<ArgumentError>([&] { scaler.set_scale(3); }, "use 2 or 4");
}

TEST(LossScaler, RefusesStatesThatCannotBe) {
  LossScaler scaler = LossScaler::dynamic({.hysteresis = 2});
  const auto refuses = [&](const LossScalerState& state, const std::string& text) {
    expect_refusal<ArgumentError>([&] { scaler.load_state(state); }, text);
  };
  refuses({.scale = -1}, "got -1 as loss scale");
  refuses({.scale = std::nan("")}, "got nan as loss scale");
  refuses({.scale = 0x1p128}, "as loss scale, expected a number from");
  refuses({.scale = 0x1p-150}, "as loss scale, expected a number from");
  refuses({.clean_steps = -1}, "a counter of the loss scaler is negative");
  refuses({.skips_at_floor = -1}, "a counter of the loss scaler is negative");
  refuses({.hysteresis_left = 3}, "got hysteresis_left 3, expected at most the hysteresis, 2");
  EXPECT_EQ(scaler.state(), (LossScalerState{65536, 0, 2, 0}));
  expect_refusal<ArgumentError>([&] { scaler.set_scale(std::nan("")); }, "got nan as loss scale");
  LossScaler wide = LossScaler::dynamic(LossScalerOptions::dali());
  wide.load_state({.scale = 0x1p130});
  EXPECT_EQ(wide.scale(), 0x1p130);
}

}  // namespace
}  // namespace vsr::optim
