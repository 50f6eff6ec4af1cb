// SPDX-License-Identifier: Apache-2.0
// The options of optimizer, learning rate and loss scale, to the numbers that they mean, and each
// message where they contradict each other.
#include "launch/step_settings.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "comm/error.hpp"

namespace vsr::launch {
namespace {

using Words = std::vector<std::string>;

TrainOptions parse(Words words) {
  words.insert(words.begin(), {"--train", "a.mp4"});
  return parse_train_options(words);
}

template <class Exception>
std::string message_of(const Words& words) {
  try {
    parse(words);
  } catch (const Exception& e) {
    return e.what();
  }
  ADD_FAILURE() << "no error of the expected type";
  return {};
}

std::string usage(const Words& words) {
  return message_of<UsageError>(words);
}
std::string configuration(const Words& words) {
  return message_of<ConfigurationError>(words);
}

optim::Schedule schedule(const Words& words) {
  return make_schedule(parse(words));
}

std::vector<std::string> idle(const Words& words) {
  return idle_choices(parse(words));
}

TEST(LossScale, IsToldWithItsRules) {
  const auto text = [](const Words& words) { return loss_scale_text(parse(words)); };
  EXPECT_EQ(text({}),
            "dynamic by the rules of vsr, from 65536, times 2 after 2000 clean steps, times 0.5 on "
            "overflow");
  EXPECT_EQ(text({"--loss-scaler", "megatron", "--loss-scale-window", "1"}),
            "dynamic by the rules of megatron, from 4294967296, times 2 after 1 clean step, times "
            "0.5 on overflow");
  EXPECT_EQ(text({"--precision", "amp", "--loss-scale", "1024"}), "fixed at 1024");
  EXPECT_EQ(text({"--precision", "fp32"}), "none: fp32 gradients are not scaled");
  EXPECT_EQ(text({"--precision", "bf16"}), "none: bf16 gradients are not scaled");
}

TEST(IdleChoices, LambWithoutWeightDecay) {
  EXPECT_EQ(idle({"--optimizer", "lamb"}),
            Words{"--optimizer lamb without --weight-decay adapts no rate and is adam; give a "
                  "decay, for example --weight-decay 0.01"});
  EXPECT_EQ(idle({"--optimizer", "lamb", "--weight-decay", "0.1"}), Words{});
  EXPECT_EQ(idle({"--optimizer", "adamw"}), Words{});
}

TEST(IdleChoices, PointsBeyondTheEnd) {
  const auto milestones = [](const std::string& points) {
    return idle({"--scheduler", "multistep", "--total-iter", "100", "--milestones", points});
  };
  EXPECT_EQ(milestones("50 99"), Words{});
  EXPECT_EQ(milestones("50 100 200"),
            Words{"--milestones: 100 200 are not reached within --total-iter 100"});
  EXPECT_EQ(milestones("100"), Words{"--milestones: 100 is not reached within --total-iter 100; "
                                     "the learning rate is never lowered"});
  const auto stepsize = [](const std::string& steps) {
    return idle({"--scheduler", "triangular", "--total-iter", "100", "--stepsize", steps});
  };
  EXPECT_EQ(stepsize("99"), Words{});
  EXPECT_EQ(stepsize("100"), Words{"--stepsize 100 is not reached within --total-iter 100; the "
                                   "learning rate only rises, and ends below --lr"});
}

TEST(Curves, ConstantAndCosine) {
  EXPECT_EQ(schedule({"--scheduler", "constant", "--lr", "1e-8"})(500), 1e-8);
  const auto cosine = schedule({"--lr", "1e-3", "--total-iter", "100", "--warmup-iter", "10"});
  EXPECT_DOUBLE_EQ(cosine(0), 1e-4);
  EXPECT_DOUBLE_EQ(cosine(50), 1e-7 + (1e-3 - 1e-7) / 2);
  EXPECT_EQ(cosine(100), 1e-7);
  EXPECT_EQ(schedule({"--eta-min", "0"})(1000), 0.0);
}

TEST(Curves, Multistep) {
  const auto plain = schedule({"--scheduler", "multistep", "--milestones", "10", "20"});
  EXPECT_EQ(plain(9), 2e-4);
  EXPECT_DOUBLE_EQ(plain(10), 2e-5);
  EXPECT_DOUBLE_EQ(plain(20), 2e-6);
  const auto half =
      schedule({"--scheduler", "multistep", "--milestones", "10 20", "--gamma", "0.5"});
  EXPECT_EQ(half(20), 5e-5);
}

TEST(Curves, CosineRestart) {
  const auto lr = schedule({"--scheduler", "cosine_restart", "--periods", "400", "600", "--lr", "1",
                            "--restart-weights", "1", "0.5", "--eta-min", "0"});
  EXPECT_EQ(lr(0), 1.0);
  EXPECT_EQ(lr(400), 0.0);
  EXPECT_DOUBLE_EQ(lr(700), 0.25);
  const auto plain =
      schedule({"--scheduler", "cosine_restart", "--periods", "1000", "--warmup-iter", "4"});
  EXPECT_DOUBLE_EQ(plain(0), 5e-5);
  EXPECT_EQ(plain(1000), 1e-7);
}

TEST(Curves, Triangular) {
  const auto lr = schedule(
      {"--scheduler", "triangular", "--stepsize", "100", "--lr", "1e-5", "--eta-min", "1e-6"});
  EXPECT_EQ(lr(0), 1e-6);
  EXPECT_DOUBLE_EQ(lr(50), 5.5e-6);
  EXPECT_DOUBLE_EQ(lr(100), 1e-5);
}

TEST(Curves, OneCycle) {
  const auto plain = schedule({"--scheduler", "one_cycle", "--lr", "1", "--total-iter", "100"});
  EXPECT_NEAR(plain(0), 0.04, 1e-15);
  EXPECT_DOUBLE_EQ(plain(29), 1.0);
  EXPECT_DOUBLE_EQ(plain(99), 4e-6);
  const auto other = schedule({"--scheduler", "one_cycle", "--lr", "1", "--total-iter", "100",
                               "--pct-start", "0.51", "--anneal-strategy", "linear", "--div-factor",
                               "2", "--final-div-factor", "5"});
  EXPECT_DOUBLE_EQ(other(25), 0.75);
  EXPECT_DOUBLE_EQ(other(50), 1.0);
  EXPECT_DOUBLE_EQ(other(99), 0.1);
}

TEST(Curves, OptionsOfAnotherCurveAreRefused) {
  EXPECT_EQ(configuration({"--gamma", "0.5"}),
            "--gamma 0.5 with --scheduler cosine: expected only with multistep; leave --gamma out");
  EXPECT_EQ(configuration({"--scheduler", "constant", "--eta-min", "0"}),
            "--eta-min 0 with --scheduler constant: expected only with cosine, cosine_restart or "
            "triangular; leave --eta-min out");
  EXPECT_EQ(configuration({"--scheduler", "one_cycle", "--warmup-iter", "5"}),
            "--warmup-iter 5 with --scheduler one_cycle: expected only with constant, cosine, "
            "multistep or cosine_restart; leave --warmup-iter out");
  const std::vector<Words> others = {{"--milestones", "5"},      {"--periods", "1000"},
                                     {"--restart-weights", "1"}, {"--stepsize", "5"},
                                     {"--pct-start", "0.5"},     {"--anneal-strategy", "linear"},
                                     {"--div-factor", "4"},      {"--final-div-factor", "4"}};
  for (const Words& words : others)
    EXPECT_NE(configuration(words).find(words[0] + " " + words[1] + " with --scheduler cosine"),
              std::string::npos)
        << words[0];
}

TEST(Curves, WhatACurveNeedsIsAskedFor) {
  EXPECT_EQ(configuration({"--scheduler", "multistep"}),
            "--scheduler multistep: expected --milestones too, for example --milestones 3000 4000");
  EXPECT_EQ(configuration({"--scheduler", "cosine_restart"}),
            "--scheduler cosine_restart: expected --periods too, for example --periods 3000 3000");
  EXPECT_EQ(configuration({"--scheduler", "triangular"}),
            "--scheduler triangular: expected --stepsize too, for example --stepsize 2000");
}

TEST(Curves, Contradictions) {
  EXPECT_EQ(configuration({"--scheduler", "cosine_restart", "--periods", "400", "600",
                           "--restart-weights", "1"}),
            "--restart-weights 1 with --periods 400 600: expected one weight for each period");
  EXPECT_EQ(configuration({"--scheduler", "cosine_restart", "--periods", "400", "500"}),
            "--periods 400 500 with --total-iter 1000: got 900 steps in all, expected periods that "
            "cover the run; lengthen one or add one");
  EXPECT_EQ(configuration({"--scheduler", "triangular", "--stepsize", "5", "--lr", "1e-8"}),
            "--eta-min 1e-7 with --lr 1e-8: expected at most the learning rate; lower --eta-min");
}

TEST(Curves, ValuesOutOfRange) {
  const char* ascending = "\", expected whole numbers of at least 1, each above the one before";
  for (const char* value : {"20 10", "5 5", "0 1", "1,2", "ten"})
    EXPECT_EQ(usage({"--scheduler", "multistep", "--milestones", value}),
              std::string("--milestones: got \"") + value + ascending);
  EXPECT_EQ(usage({"--periods", "10", "0"}),
            "--periods: got \"10 0\", expected whole numbers of at least 1");
  EXPECT_EQ(usage({"--restart-weights", "1", "-1"}),
            "--restart-weights: got \"1 -1\", expected numbers above 0");
  EXPECT_EQ(usage({"--gamma", "0"}), "--gamma: got \"0\", expected a number above 0");
  EXPECT_EQ(usage({"--stepsize", "0"}),
            "--stepsize: got \"0\", expected a whole number of at least 1");
  EXPECT_EQ(usage({"--pct-start", "1.5"}),
            "--pct-start: got \"1.5\", expected a number from 0 to 1");
}

TEST(Optimizers, HaveTheirConstants) {
  EXPECT_EQ(betas_of(parse({})), (std::array<double, 2>{0.9, 0.99}));
  EXPECT_EQ(betas_of(parse({"--optimizer", "lamb", "--betas", "0.8", "0.999"})),
            (std::array<double, 2>{0.8, 0.999}));
  EXPECT_EQ(momentum_of(parse({"--optimizer", "sgd"})), 0.9);
  EXPECT_EQ(momentum_of(parse({"--optimizer", "sgd", "--momentum", "0"})), 0.0);
}

TEST(Optimizers, KeepTheirArrays) {
  for (const char* kind : {"adam", "adamw", "lamb"}) {
    EXPECT_EQ(fp32_arrays(parse({"--optimizer", kind})), 3) << kind;
    EXPECT_EQ(fp32_arrays(parse({"--optimizer", kind, "--ema-decay", "0.5"})), 4) << kind;
  }
  EXPECT_EQ(fp32_arrays(parse({"--optimizer", "sgd"})), 2);
  EXPECT_EQ(fp32_arrays(parse({"--optimizer", "sgd", "--momentum", "0"})), 1);
  EXPECT_EQ(fp32_arrays(parse({"--optimizer", "sgd", "--momentum", "0", "--ema-decay", "0.999"})),
            2);
}

TEST(Optimizers, AsText) {
  EXPECT_EQ(optimizer_text(parse({})), "adam, betas 0.9 0.99");
  EXPECT_EQ(optimizer_text(parse({"--optimizer", "sgd", "--momentum", "0"})), "sgd, momentum 0");
  EXPECT_EQ(optimizer_text(parse({"--optimizer", "sgd", "--nesterov", "--weight-decay", "1e-4"})),
            "sgd, Nesterov momentum 0.9, weight decay 1e-4");
  EXPECT_EQ(optimizer_text(
                parse({"--optimizer", "lamb", "--weight-decay", "0.01", "--ema-decay", "0.999"})),
            "lamb, betas 0.9 0.99, weight decay 0.01; validated on averages of the masters with "
            "decay 0.999");
}

TEST(Optimizers, OptionsOfAnotherKindAreRefused) {
  EXPECT_EQ(configuration({"--optimizer", "sgd", "--betas", "0.9", "0.99"}),
            "--betas 0.9 0.99 with --optimizer sgd: expected only with adam, adamw or lamb; leave "
            "--betas out");
  for (const std::string kind : {"adam", "adamw", "lamb"}) {
    EXPECT_EQ(configuration({"--optimizer", kind, "--momentum", "0.5"}),
              "--momentum 0.5 with --optimizer " + kind +
                  ": expected only with sgd; leave --momentum out");
    EXPECT_EQ(
        configuration({"--optimizer", kind, "--nesterov"}),
        "--nesterov with --optimizer " + kind + ": expected only with sgd; leave --nesterov out");
  }
  EXPECT_EQ(configuration({"--optimizer", "sgd", "--nesterov", "--momentum", "0"}),
            "--nesterov with --momentum 0: expected a momentum above 0; leave one of them out");
}

TEST(LossScalerRules, BecomeConstants) {
  EXPECT_EQ(loss_scaler_options(parse({})), optim::LossScalerOptions{});
  auto expected = optim::LossScalerOptions::megatron();
  EXPECT_EQ(loss_scaler_options(parse({"--loss-scaler", "megatron"})), expected);
  expected.window_steps = 200;
  EXPECT_EQ(loss_scaler_options(parse({"--loss-scaler", "megatron", "--loss-scale-window", "200"})),
            expected);
  const auto fixed = parse({"--loss-scale", "1000"});
  EXPECT_FALSE(has_dynamic_loss_scale(fixed));
  EXPECT_EQ(optim::LossScaler::fixed(fixed.loss_scale.value, loss_scaler_options(fixed)).scale(),
            1000);
  EXPECT_FALSE(has_dynamic_loss_scale(parse({"--precision", "bf16"})));
  EXPECT_TRUE(has_dynamic_loss_scale(parse({"--precision", "amp"})));
}

TEST(LossScalerRules, NeedADynamicScale) {
  EXPECT_EQ(configuration({"--loss-scaler", "apex", "--loss-scale", "1024"}),
            "--loss-scaler apex with --loss-scale 1024: expected --loss-scale dynamic, a fixed "
            "scale follows no rules; leave one of them out");
  EXPECT_EQ(configuration({"--loss-scale-window", "100", "--precision", "fp32"}),
            "--loss-scale-window 100 with --precision fp32: expected none, gradients of this "
            "precision are not scaled; leave --loss-scale-window out");
  EXPECT_EQ(usage({"--loss-scale-window", "0"}),
            "--loss-scale-window: got \"0\", expected a whole number of at least 1");
}

TEST(IdleChoices, OverlapWithoutAReductionThatOverlaps) {
  EXPECT_EQ(idle({"--overlap", "on", "--bucket-mib", "4"}), Words{});
  EXPECT_EQ(idle({"--overlap", "on", "--reduction", "fast"}),
            Words{"--overlap on: gradients leave early with --reduction exact only, not with "
                  "fast"});
  EXPECT_EQ(idle({"--bucket-mib", "4"}),
            Words{"--bucket-mib cuts gradients that leave early; over MPI that takes "
                  "--overlap on"});
}

}  // namespace
}  // namespace vsr::launch
