// SPDX-License-Identifier: Apache-2.0
// What a user may do around the step: closures, several losses, inspection, freezing, groups,
// averages, state; and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "comm/error.hpp"
#include "tests/mpi/given_gradients.hpp"
#include "tests/support/error_messages.hpp"

namespace vsr::optim::test {
namespace {

using vsr::test::expect_in;
using vsr::test::message_of;

// FP16 holds 1 × scale up to 2^15, so a start at 2^20 overflows five times.
TEST(Closure, IsRunAgainAfterOverflowUntilTheStepApplies) {
  const std::vector<NamedParameter> w = {parameter("w", {0})};
  const auto optimizer =
      sgd_for(w, {.dynamic_loss_scale = true, .scaler = {.initial_scale = 0x1p20F}, .leaves = 2});
  int calls = 0;
  const StepReport report = optimizer->step([&] {
    ++calls;
    run_given(*optimizer, w, {{{1}}, {{3}}});
    EXPECT_GE(optimizer->clip_fp32_grads(100), -1.0);
    return Tensor();
  });
  EXPECT_TRUE(report.applied);
  EXPECT_EQ(report.closure_calls, calls);
  EXPECT_EQ(report.skipped_steps, calls - 1);
  EXPECT_EQ(report.loss_scale, 0x1p14F);  // 3 × 2^14 fits, 3 × 2^15 does not
  EXPECT_EQ(calls, 7);
  EXPECT_EQ(masters_of(*optimizer, 0), Numbers{-2});
  EXPECT_EQ(report.applied_steps, 1);
}

TEST(Closure, RetriesAreBoundedAndAStaticScaleHasNone) {
  const std::vector<NamedParameter> w = {parameter("w", {0})};
  const float inf = std::numeric_limits<float>::infinity();
  for (const bool dynamic : {true, false}) {
    const auto optimizer = sgd_for(w, {.dynamic_loss_scale = dynamic, .leaves = 1});
    int calls = 0;
    const auto closure = [&] {
      ++calls;
      if (!optimizer->my_leaves().empty()) optimizer->backward(loss_giving(w, {{inf}}));
      return Tensor();
    };
    const StepReport report = optimizer->step(closure, 3);
    EXPECT_FALSE(report.applied);
    EXPECT_EQ(calls, dynamic ? 4 : 1);
    EXPECT_EQ(report.closure_calls, calls);
  }
}

TEST(Leaf, AnOpenLeafIsNotALeafYet) {
  const std::vector<NamedParameter> w = {parameter("w", {0})};
  const auto optimizer = sgd_for(w, {});
  EXPECT_THROW(optimizer->update_fp32_grads(), ArgumentError);
  optimizer->zero_grad();
  optimizer->backward(loss_giving(w, {{1}}), false);
  expect_in("called backward 0 times", message_of<ArgumentError>([&] { optimizer->step(); }));
}

TEST(Leaf, ItsLossIsTheSumOfItsLosses) {
  const std::vector<NamedParameter> w = {parameter("w", {2})};
  const auto optimizer = sgd_for(w, {.leaves = 3});
  optimizer->zero_grad();
  for (const int leaf : optimizer->my_leaves()) {
    optimizer->backward(loss_giving(w, {{1}}), false);
    optimizer->backward(loss_giving(w, {{static_cast<float>(leaf)}}), false);
    optimizer->update_fp32_grads();
  }
  const StepReport report = optimizer->step();
  EXPECT_EQ(report.leaf_losses, (std::vector<double>{2, 4, 6}));
  EXPECT_EQ(masters_of(*optimizer, 0), Numbers{2 - (1 + 2 + 3) / 3.0F});
}

TEST(Inspect, ShowsWholeGradientsOnAllRanksAndNoneWhereUnused) {
  Numbers ramp(3000);
  for (std::size_t i = 0; i < ramp.size(); ++i) ramp[i] = static_cast<float>(i % 64);
  const std::vector<NamedParameter> all = {parameter("ramp", Numbers(3000)),
                                           parameter("unused", {1, 2}),
                                           parameter("empty", {}, torch::kFloat)};
  const auto optimizer = sgd_for(all, {.static_loss_scale = 64, .leaves = 2});
  EXPECT_THROW(optimizer->inspect_fp32_grad_data(), ArgumentError);
  run_given(*optimizer, all, {{ramp, {}, {}}, {ramp, {}, {}}});
  const std::vector<Tensor> gradients = optimizer->inspect_fp32_grad_data();
  ASSERT_EQ(gradients.size(), 3U);
  EXPECT_EQ(numbers_of(gradients[0]), ramp);
  EXPECT_FALSE(gradients[1].defined());
  EXPECT_FALSE(gradients[2].defined());
  EXPECT_THROW(optimizer->clip_fp32_grads(1.0), ArgumentError);
  EXPECT_TRUE(optimizer->step().applied);
  EXPECT_EQ(optimizer->state().parameters[1].steps, 0);
}

TEST(Clip, APNormIsTheRootOfTheSumOfPowers) {
  const std::vector<NamedParameter> w = {parameter("w", {0, 0, 0})};
  for (const double p : {0.5, 3.0}) {
    const auto optimizer = sgd_for(w, {.static_loss_scale = 256, .leaves = 1});
    run_given(*optimizer, w, {{{1, -2, 4}}});
    const double norm = std::pow(1 + std::pow(2, p) + std::pow(4, p), 1 / p);
    EXPECT_NEAR(optimizer->clip_fp32_grads(1.0, p), norm, 1e-12 * norm);
    EXPECT_NEAR(optimizer->step().clip_factor, 1 / (norm + 1e-6), 1e-12);
  }
}

TEST(Clip, APNormBeyondFp64IsRefusedByAll) {
  const std::vector<NamedParameter> w = {parameter("w", {0}, torch::kFloat)};
  const auto optimizer = sgd_for(w, {.leaves = 1});
  run_given(*optimizer, w, {{{1e30F}}});
  expect_in("does not fit FP64",
            message_of<ArgumentError>([&] { optimizer->clip_fp32_grads(1.0, 20.0); }));
  EXPECT_THROW(optimizer->step(), ArgumentError);  // nothing is stepped unclipped
  run_given(*optimizer, w, {{{2}}});
  EXPECT_EQ(optimizer->clip_fp32_grads(10.0, 20.0), 2.0);
  optimizer->step();
  EXPECT_EQ(masters_of(*optimizer, 0), Numbers{-2});
}

TEST(Freezing, KeepsStateAndIsAgreedOn) {
  const std::vector<NamedParameter> all = {parameter("a", Numbers(2000, 1.0F)),
                                           parameter("b", Numbers(2000, 1.0F))};
  const auto optimizer =
      optimizer_for<torch::optim::Adam>(all, torch::optim::AdamOptions(0.1), {.leaves = 1});
  const auto step = [&] {
    run_given(
        *optimizer, all,
        {{Numbers(2000, 1.0F), all[1].replica.requires_grad() ? Numbers(2000, 1.0F) : Numbers()}});
    EXPECT_TRUE(optimizer->step().applied);
  };
  step();
  const std::string both = optimizer->masters_hash();
  const Numbers before = masters_of(*optimizer, 1);
  all[1].replica.set_requires_grad(false);
  step();
  EXPECT_FALSE(all[1].replica.grad().defined());
  EXPECT_EQ(masters_of(*optimizer, 1), before);
  EXPECT_NE(optimizer->masters_hash(), both);
  all[1].replica.set_requires_grad(true);
  step();
  EXPECT_EQ(optimizer->state().parameters[0].steps, 3);
  EXPECT_EQ(optimizer->state().parameters[1].steps, 2);
  EXPECT_NEAR(masters_of(*optimizer, 1)[1999], 0.8F, 1e-6);
  if (world().world() == 1) return;
  all[1].replica.set_requires_grad(world().rank() != 1);
  run_given(*optimizer, all, {{Numbers(2000, 1.0F), {}}});
  expect_in("parameter b is frozen on rank 1 but not on rank 0",
            message_of<ArgumentError>([&] { optimizer->step(); }));
}

TEST(LossScale, MustBeTheSameOnAllRanks) {
  if (world().world() == 1) GTEST_SKIP() << "needs two ranks";
  const std::vector<NamedParameter> w = {parameter("w", {1})};
  const auto optimizer = sgd_for(w, {.dynamic_loss_scale = true});
  optimizer->set_loss_scale(world().rank() == 1 ? 512.0F : 1024.0F);
  optimizer->zero_grad();
  optimizer->backward(loss_giving(w, {{1}}));
  expect_in("rank 1 holds loss scale 512", message_of<ArgumentError>([&] { optimizer->step(); }));
}

TEST(Groups, AThawedParameterNeedsAGroup) {
  std::vector<NamedParameter> all = {parameter("a", {1}), parameter("b", {1})};
  all[1].replica.set_requires_grad(false);
  Fp16OptimizerOptions options = {.leaves = 1, .parameters = all};
  Fp16Optimizer optimizer(std::make_unique<torch::optim::SGD>(std::vector<Tensor>{all[0].replica},
                                                              torch::optim::SGDOptions(1.0)),
                          world(), std::move(options));
  all[1].replica.set_requires_grad(true);
  expect_in("parameter b was thawed but is in no param group",
            message_of<ConfigurationError>([&] { optimizer.zero_grad(); }));
  optimizer.add_param_group({{all[1].replica}, std::make_unique<torch::optim::SGDOptions>(0.5)});
  run_given(optimizer, all, {{{1}, {1}}});
  EXPECT_TRUE(optimizer.step().applied);
  EXPECT_EQ(numbers_of(all[0].replica), Numbers{0});
  EXPECT_EQ(numbers_of(all[1].replica), Numbers{0.5F});
}

TEST(Groups, OptionsOfAnotherOptimizerAreRefused) {
  const std::vector<NamedParameter> all = {parameter("a", {1})};
  const auto optimizer = sgd_for(all, {.leaves = 1});
  const Tensor fresh = torch::ones({3}, torch::kHalf).set_requires_grad(true);
  expect_in(
      "another kind of optimizer", message_of<AgreedError>([&] {
        optimizer->add_param_group({{fresh}, std::make_unique<torch::optim::AdamOptions>(1.0)});
      }));
  EXPECT_THROW(optimizer->set_lr(std::nan("")), ArgumentError);
  EXPECT_THROW(optimizer->set_lr(-1.0), ArgumentError);
}

TEST(Groups, OtherRatesOnAnotherRankAreRefusedByAll) {
  if (world().world() == 1) GTEST_SKIP() << "needs two ranks";
  const std::vector<NamedParameter> all = {parameter("a", {1})};
  const double lr = world().rank() == 1 ? 0.1 : 0.001;
  expect_in("rank 1 has other",
            message_of<ConfigurationError>([&] { sgd_for(all, {.leaves = 1}, lr); }));
}

TEST(Leaf, AForwardPassThatWasGivenUpLeavesNoTrace) {
  const std::vector<NamedParameter> w = {parameter("w", {0})};
  const Tensor mean = torch::zeros({2});
  const auto optimizer = sgd_for(w, {.leaves = 1, .buffers = {{"mean", mean}}});
  optimizer->zero_grad();
  mean.fill_(9);
  EXPECT_THROW(optimizer->backward(torch::ones({})), std::exception);  // it needs no gradient
  optimizer->discard_step();
  EXPECT_EQ(numbers_of(mean), (Numbers{0, 0}));
  optimizer->zero_grad();
  if (!optimizer->my_leaves().empty()) optimizer->backward(loss_giving(w, {{1}}) + 2.5);
  EXPECT_EQ(optimizer->step().loss, 2.5);
}

TEST(Groups, WhatDoesNotFitIsRefused) {
  const std::vector<NamedParameter> all = {parameter("a", {1})};
  const auto optimizer = sgd_for(all, {.leaves = 1});
  const Tensor fresh = torch::ones({3}, torch::kHalf).set_requires_grad(true);
  const auto add = [&](const std::vector<std::string>& names) {
    optimizer->add_param_group({{fresh}, std::make_unique<torch::optim::SGDOptions>(1.0)}, names);
  };
  expect_in("has 1 new parameters, but 2 names", message_of<AgreedError>([&] { add({"x", "y"}); }));
  run_given(*optimizer, all, {{{1}}});
  expect_in("between steps", message_of<AgreedError>([&] { add({}); }));
  optimizer->step();
  add({});
  EXPECT_EQ(optimizer->layout().parameters()[1].name, "param_1");
}

TEST(Ema, FollowsAppliedStepsOnlyAndCanBePublished) {
  const std::vector<NamedParameter> w = {parameter("w", Numbers(5000, 1.0F))};
  const auto optimizer = sgd_for(w, {.leaves = 1, .ema_decay = 0.75});
  const float inf = std::numeric_limits<float>::infinity();
  for (const float gradient : {1.0F, inf, 1.0F}) {
    run_given(*optimizer, w, {{Numbers(5000, gradient)}});
    optimizer->step();
  }
  // 1 → 0.75 (master 0) → 0.75 + (-1 - 0.75) / 4
  optimizer->publish_ema();
  EXPECT_EQ(numbers_of(w[0].replica), Numbers(5000, 0.3125F));
  expect_in("publish_masters", message_of<ArgumentError>([&] { optimizer->zero_grad(); }));
  optimizer->publish_masters();
  optimizer->zero_grad();
  EXPECT_THROW(optimizer->publish_ema(), ArgumentError);
  EXPECT_EQ(numbers_of(w[0].replica), Numbers(5000, -1.0F));
  run_given(*optimizer, w, {{Numbers(5000, 0.0F)}});
  EXPECT_TRUE(optimizer->step().applied);

  const std::vector<NamedParameter> v = {parameter("v", {1})};
  const auto plain = sgd_for(v, {.leaves = 1});
  EXPECT_THROW(plain->publish_ema(), ArgumentError);
  EXPECT_THROW(sgd_for(v, {.leaves = 1, .ema_decay = 1.0}), AgreedError);
}

TEST(StateDict, OfAnotherOptimizerIsRefusedBeforeAnythingChanged) {
  const std::vector<NamedParameter> w = {parameter("w", {1, 2})};
  const auto optimizer =
      optimizer_for<torch::optim::Adam>(w, torch::optim::AdamOptions(0.1), {.leaves = 1});
  const StateDict good = optimizer->state_dict();
  const auto expect_refused = [&](const StateDict& dict, const std::string& part) {
    expect_in(part, message_of<AgreedError>([&] { optimizer->load_state_dict(dict); }));
    EXPECT_EQ(optimizer->state_dict().arrays, good.arrays);
    EXPECT_EQ(optimizer->state(), good.state);
  };
  StateDict bad = good;
  bad.parameters[0] = "v";
  expect_refused(bad, "is called v in the state and w here");
  bad = good;
  bad.arrays.erase("exp_avg_sq");
  expect_refused(bad, "lacks the array exp_avg_sq");
  bad = good;
  bad.groups.clear();
  expect_refused(bad, "0 param groups");
  bad = good;
  bad.groups[0].erase("eps");
  expect_refused(bad, "lacks eps");
  bad = good;
  bad.state.scaler.scale = 0;
  expect_refused(bad, "loss scale");
  bad = good;
  bad.parameters.emplace_back("more");
  expect_refused(bad, "2 parameters");
  bad = good;
  bad.optimizer = "torch::optim::AdamW";
  expect_refused(bad, "of torch::optim::AdamW, the inner optimizer here is torch::optim::Adam");
  bad = good;
  bad.groups[0]["beta1"] = 1.5;
  expect_refused(bad, "beta1 is 1.5");
  bad = good;
  for (float& value : bad.arrays["master"]) value = std::nanf("");
  if (world().rank() != 0) bad.arrays = good.arrays;  // the fault of one rank is that of all
  expect_refused(bad, "master of the state holds values that are not finite");
}

TEST(StateDict, ThatNoOptimizerCanHaveIsRefused) {
  const std::vector<NamedParameter> w = {parameter("w", {1, 2})};
  const auto sgd = optimizer_for<torch::optim::SGD>(w, torch::optim::SGDOptions(0.5),
                                                    {.leaves = 1, .ema_decay = 0.5});
  const StateDict good = sgd->state_dict();
  const auto expect_refused = [&](const auto& change, const std::string& part) {
    StateDict bad = good;
    change(bad);
    expect_in(part, message_of<AgreedError>([&] { sgd->load_state_dict(bad); }));
    EXPECT_EQ(sgd->state(), good.state);
    EXPECT_EQ(sgd->lr(), 0.5);
  };
  for (const double power : {std::nan(""), 1 / 0.9, -0.5, 5e299})
    expect_refused([&](StateDict& d) { d.state.parameters[0].beta1_power = power; },
                   "powers of betas");
  expect_refused([](StateDict& d) { d.state.parameters[0].steps = -3; }, "counts -3 steps");
  expect_refused([](StateDict& d) { d.state.applied_steps = -5; }, "counts -5 applied");
  expect_refused([](StateDict& d) { d.shapes[0] = {2, 1}; }, "w has another shape");
  expect_refused([](StateDict& d) { d.arrays["exp_avg"] = d.arrays["master"]; },
                 "has the array exp_avg, which this optimizer");
  // Options that call for an array nobody keeps; alike on all ranks, so it is found after they met.
  StateDict moving = good;
  moving.groups[0]["momentum"] = 0.9;
  expect_in("began without momentum",
            message_of<ConfigurationError>([&] { sgd->load_state_dict(moving); }));
  EXPECT_EQ(sgd->state_dict().groups, good.groups);
  EXPECT_THROW(sgd->load_state({}), ArgumentError);
  // A step that was begun only is begun anew afterwards.
  sgd->zero_grad();
  sgd->load_state_dict(good);
  EXPECT_THROW(sgd->step(), ArgumentError);
}

TEST(StateDict, MustBeOfTheSameStepOnAllRanks) {
  if (world().world() == 1) GTEST_SKIP() << "needs two ranks";
  const std::vector<NamedParameter> w = {parameter("w", {1, 2})};
  const auto optimizer =
      optimizer_for<torch::optim::Adam>(w, torch::optim::AdamOptions(0.1), {.leaves = 1});
  const StateDict good = optimizer->state_dict();
  StateDict other = good;
  if (world().rank() == 1) other.groups[0]["lr"] = 0.5;
  expect_in("rank 1 has another state",
            message_of<ConfigurationError>([&] { optimizer->load_state_dict(other); }));
  EXPECT_EQ(optimizer->lr(), 0.1);
  other = good;
  if (world().rank() == 1) other.state.parameters[0].steps = 7;
  EXPECT_THROW(optimizer->load_state_dict(other), ConfigurationError);
  EXPECT_EQ(optimizer->state(), good.state);
}

}  // namespace
}  // namespace vsr::optim::test
