// SPDX-License-Identifier: Apache-2.0
// What an optimizer refuses: options, param groups, parameters of others, norms. On all ranks, and
// before anything changed.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "comm/error.hpp"
#include "tests/mpi/clean_step.hpp"
#include "tests/support/error_messages.hpp"

namespace vsr::optim::test {
namespace {

using vsr::test::expect_in;
using vsr::test::message_of;

torch::optim::AdamOptions& adam_options(Fp16Optimizer& optimizer) {
  return static_cast<torch::optim::AdamOptions&>(optimizer.inner().param_groups()[0].options());
}

TEST(Options, ChangedOnOneRankAreRefusedByAll) {
  if (world().world() == 1) GTEST_SKIP() << "needs two ranks";
  const std::vector<NamedParameter> w = {parameter("w", {0, 0})};
  const auto sgd = sgd_for(w, {.leaves = 1});
  if (world().rank() == 1) sgd->set_lr(0.5);
  run_given(*sgd, w, {{{1, 1}}});
  expect_in("rank 1 has other optimizer options", message_of<ArgumentError>([&] { sgd->step(); }));
  sgd->set_lr(1.0);
  expect_next_step_clean(*sgd, w);
}

TEST(Options, MayChangeAfterClippingAlikeOnAllRanks) {
  const std::vector<NamedParameter> w = {parameter("w", {0, 0})};
  const auto sgd = sgd_for(w, {.leaves = 1});
  run_given(*sgd, w, {{{1, 1}}});
  sgd->clip_fp32_grads(100.0);
  sgd->set_lr(2.0);
  sgd->step();
  EXPECT_EQ(masters_of(*sgd, 0), (Numbers{-2, -2}));
  if (world().world() == 1) return;
  for (const double other : {0.5, -1.0}) {  // also one that cannot work there
    run_given(*sgd, w, {{{1, 1}}});
    sgd->clip_fp32_grads(100.0);
    auto& options =
        static_cast<torch::optim::SGDOptions&>(sgd->inner().param_groups()[0].options());
    if (world().rank() == 1) options.lr(other);
    expect_in("rank 1 has other optimizer options",
              message_of<ArgumentError>([&] { sgd->step(); }));
    options.lr(1.0);
    expect_next_step_clean(*sgd, w);
  }
}

TEST(Options, ThatCannotWorkAreRefused) {
  const std::vector<NamedParameter> w = {parameter("w", {0, 0})};
  const auto adam =
      optimizer_for<torch::optim::Adam>(w, torch::optim::AdamOptions(0.1), {.leaves = 1});
  const Numbers before = masters_of(*adam, 0);
  const auto expect_refused = [&](const auto& change, const std::string& part) {
    const torch::optim::AdamOptions good = adam_options(*adam);
    for (const bool after_clipping : {false, true}) {
      run_given(*adam, w, {{{1, 1}}});
      if (after_clipping) adam->clip_fp32_grads(1.0);
      change(adam_options(*adam));
      expect_in(part, message_of<ConfigurationError>([&] { adam->step(); }));
      adam_options(*adam) = good;
    }
    EXPECT_EQ(masters_of(*adam, 0), before);
  };
  using Options = torch::optim::AdamOptions;
  expect_refused([](Options& o) { o.betas(std::make_tuple(1.5, 0.999)); },
                 "param group 0: beta1 is 1.5");
  expect_refused([](Options& o) { o.betas(std::make_tuple(0.9, 1.0)); }, "beta2 is 1.0");
  expect_refused([](Options& o) { o.lr(-1.0); }, "lr is -1.0");
  expect_refused([](Options& o) { o.lr(std::nan("")); }, "lr is nan");
  expect_refused([](Options& o) { o.eps(-1.0); }, "eps is -1.0");
  expect_refused([](Options& o) { o.weight_decay(INFINITY); }, "weight_decay is inf");
  expect_refused([](Options& o) { o.amsgrad(true); }, "amsgrad");
  run_given(*adam, w, {{{1, 1}}});
  EXPECT_TRUE(adam->step().applied);
  EXPECT_EQ(adam->state().parameters[0].steps, 1);

  const auto group_with = [](double momentum, double dampening) {
    return torch::optim::SGDOptions(0.1).momentum(momentum).dampening(dampening).nesterov(true);
  };
  for (const auto& [momentum, dampening] : {std::pair(0.0, 0.0), std::pair(0.9, 0.5)}) {
    const std::vector<NamedParameter> v = {parameter("v", {0})};
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(
        tensors_of(v), std::make_unique<torch::optim::SGDOptions>(group_with(momentum, dampening)));
    expect_in("nesterov needs momentum", message_of<AgreedError>([&] {
                Fp16Optimizer(
                    std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.1)),
                    world(), {.leaves = 1, .parameters = v});
              }));
  }
}

TEST(Groups, ARefusedGroupLeavesNoTrace) {
  const std::vector<NamedParameter> w = {parameter("w", Numbers(3000, 0.0F))};
  const auto sgd = sgd_for(w, {.leaves = 1});
  const Tensor fresh = torch::zeros({2}, torch::kHalf).set_requires_grad(true);
  const auto options = [] { return std::make_unique<torch::optim::SGDOptions>(1.0); };
  const auto expect_unchanged = [&] {
    EXPECT_EQ(sgd->inner().param_groups().size(), 1U);
    EXPECT_EQ(sgd->layout().parameters().size(), 1U);
    EXPECT_EQ(sgd->state_dict().groups.size(), 1U);
    expect_next_step_clean(*sgd, w);
  };
  const Tensor wide = torch::zeros({2}, torch::kDouble).set_requires_grad(true);
  expect_in("param_1", message_of<AgreedError>([&] {
              sgd->add_param_group({{fresh, wide}, options()}, {"fresh", "param_1"});
            }));
  expect_unchanged();
  expect_in("two parameters are called w", message_of<AgreedError>([&] {
              sgd->add_param_group({{fresh}, options()}, {"w"});
            }));
  expect_unchanged();
  expect_in("parameter w is in a param group already", message_of<AgreedError>([&] {
              sgd->add_param_group({{w[0].replica}, options()});
            }));
  expect_unchanged();
  auto moving = options();
  moving->momentum(0.9);
  expect_in("but the optimizer was made without", message_of<AgreedError>([&] {
              sgd->add_param_group({{fresh}, std::move(moving)});
            }));
  expect_unchanged();
  auto falling = options();
  falling->lr(-1.0);
  expect_in("the new param group: lr is -1.0", message_of<AgreedError>([&] {
              sgd->add_param_group({{fresh}, std::move(falling)});
            }));
  expect_unchanged();
  if (world().world() > 1) {
    const Tensor uneven = torch::zeros({2 + world().rank()}, torch::kHalf).set_requires_grad(true);
    expect_in("has other parameters", message_of<ConfigurationError>([&] {
                sgd->add_param_group({{uneven}, options()});
              }));
    expect_unchanged();
    auto unequal = options();
    unequal->lr(world().rank() + 1.0);
    expect_in("optimizer options", message_of<ConfigurationError>([&] {
                sgd->add_param_group({{fresh}, std::move(unequal)});
              }));
    expect_unchanged();
  }
  sgd->add_param_group({{fresh}, options()}, {"fresh"});
  run_given(*sgd, {w[0], {"fresh", fresh, {}}}, {{Numbers(3000, 0.0F), {1, 2}}});
  EXPECT_TRUE(sgd->step().applied);
  EXPECT_EQ(numbers_of(fresh), (Numbers{-1, -2}));
}

TEST(Groups, ThatCallForArraysNobodyKeepsAreRefused) {
  const std::vector<NamedParameter> w = {parameter("w", {0})};
  const Tensor fresh = torch::zeros({2}, torch::kHalf).set_requires_grad(true);
  const auto expect_refused = [&](Fp16Optimizer& optimizer, auto options, const char* part) {
    using Options = decltype(options);
    expect_in(part, message_of<AgreedError>([&] {
                optimizer.add_param_group({{fresh}, std::make_unique<Options>(options)});
              }));
    run_given(optimizer, w, {{{1}}});
    EXPECT_TRUE(optimizer.step().applied);
  };
  {
    const torch::optim::AdamOptions options(0.1);
    const auto adam = optimizer_for<torch::optim::Adam>(w, options, {.leaves = 1});
    expect_refused(*adam, torch::optim::AdamOptions(0.1).amsgrad(true), "amsgrad");
  }
  const torch::optim::RMSpropOptions options(0.1);
  const auto rmsprop = optimizer_for<torch::optim::RMSprop>(w, options, {.leaves = 1});
  expect_refused(*rmsprop, torch::optim::RMSpropOptions(0.1).momentum(0.5), "momentum_buffer");
  expect_refused(*rmsprop, torch::optim::RMSpropOptions(0.1).centered(true), "grad_avg");
}

TEST(Claim, AParameterHasOneOptimizerAtATime) {
  const std::vector<NamedParameter> w = {parameter("w", {0})};
  {
    const auto first = sgd_for(w, {.leaves = 1});
    expect_in("parameter w is trained by another Fp16Optimizer",
              message_of<AgreedError>([&] { sgd_for(w, {.leaves = 1}); }));
    const std::vector<NamedParameter> v = {parameter("v", {0})};
    const auto second = sgd_for(v, {.leaves = 1});
    expect_in("is trained by another", message_of<AgreedError>([&] {
                second->add_param_group(
                    {{w[0].replica}, std::make_unique<torch::optim::SGDOptions>(1.0)});
              }));
    expect_next_step_clean(*second, v);
    expect_next_step_clean(*first, w);
  }
  const auto after = sgd_for({{"w", w[0].replica, {}}}, {.leaves = 1});
  expect_next_step_clean(*after, w);
  EXPECT_EQ(masters_of(*after, 0), Numbers{-2});
}

TEST(Claim, ParametersOverOneMemoryAreRefused) {
  const NamedParameter a = parameter("a", {1, 2, 3});
  const Tensor same = a.replica.detach().set_requires_grad(true);
  expect_in("a and b share memory", message_of<AgreedError>([&] {
              sgd_for({a, {"b", same, {}}}, {.leaves = 1});
            }));
  const Tensor base = torch::zeros({2, 3}, torch::kHalf);
  const Tensor left = base.slice(1, 0, 1).detach().set_requires_grad(true);
  const Tensor right = base.slice(1, 1, 3).detach().set_requires_grad(true);
  const std::vector<NamedParameter> beside = {{"left", left, {}}, {"right", right, {}}};
  const auto sgd = sgd_for(beside, {.leaves = 1});
  EXPECT_EQ(sgd->layout().parameters().size(), 2U);
}

TEST(Clip, BadNumbersOfOneRankAreRefusedByAll) {
  const std::vector<NamedParameter> w = {parameter("w", {0})};
  const auto sgd = sgd_for(w, {.leaves = 1});
  const double nan = std::nan("");
  for (const auto& [max_norm, norm_type] :
       {std::pair(nan, 2.0), std::pair(0.0, 2.0), std::pair(-1.0, 2.0), std::pair(1.0, nan),
        std::pair(1.0, 0.0), std::pair(1.0, -2.0)}) {
    for (const bool everywhere : {true, false}) {
      if (!everywhere && world().world() == 1) continue;
      const bool is_bad = everywhere || world().rank() == 1;
      run_given(*sgd, w, {{{1}}});
      const std::string message = message_of<ArgumentError>(
          [&] { sgd->clip_fp32_grads(is_bad ? max_norm : 1.0, is_bad ? norm_type : 2.0); });
      expect_in(everywhere ? "expected" : "clips with another norm", message);
    }
  }
  expect_next_step_clean(*sgd, w);
}

TEST(Clip, APNormThatUnderflowsIsRefusedByAll) {
  const std::vector<NamedParameter> w = {parameter("w", Numbers(10, 0.0F))};
  const auto sgd = sgd_for(w, {.leaves = 1});
  run_given(*sgd, w, {{Numbers(10, 0.125F)}});
  expect_in("400-norm of the gradients does not fit FP64",
            message_of<ArgumentError>([&] { sgd->clip_fp32_grads(0.01, 400); }));
  run_given(*sgd, w, {{Numbers(10, 0.0F)}});
  EXPECT_EQ(sgd->clip_fp32_grads(0.01, 400), 0.0);  // no gradient at all
  EXPECT_TRUE(sgd->step().applied);
}

TEST(Sgd, MomentumBeginsWithItsFirstStep) {
  const std::vector<NamedParameter> w = {parameter("w", {0})};
  const auto sgd = optimizer_for<torch::optim::SGD>(
      w, torch::optim::SGDOptions(1.0).momentum(0.5).dampening(0.5), {.leaves = 1});
  auto& options = static_cast<torch::optim::SGDOptions&>(sgd->inner().param_groups()[0].options());
  options.momentum(0.0);
  const auto step = [&] {
    run_given(*sgd, w, {{{1}}});
    sgd->step();
    return masters_of(*sgd, 0)[0];
  };
  EXPECT_EQ(step(), -1.0F);
  EXPECT_EQ(step(), -2.0F);
  options.momentum(0.5);
  EXPECT_EQ(step(), -3.0F);  // the buffer starts as the gradient, undampened
  EXPECT_EQ(step(), -4.0F);  // 0.5 × 1 + 0.5 × 1
}

class Faster : public torch::optim::SGD {
 public:
  using SGD::SGD;
};

TEST(Inner, AStepOfItsOwnAndDerivedKindsAreRefused) {
  const std::vector<NamedParameter> w = {parameter("w", {0})};
  const auto adam =
      optimizer_for<torch::optim::Adam>(w, torch::optim::AdamOptions(0.1), {.leaves = 1});
  run_given(*adam, w, {{{1}}});
  adam->step();
  w[0].replica.mutable_grad() = torch::ones({1}, torch::kHalf);
  adam->inner().step();
  expect_in("step() of the inner optimizer was called",
            message_of<ArgumentError>([&] { adam->zero_grad(); }));

  const std::vector<NamedParameter> v = {parameter("v", {0})};
  const torch::optim::SGDOptions options(0.1);
  expect_in("does not know",
            message_of<AgreedError>([&] { optimizer_for<Faster>(v, options, {.leaves = 1}); }));
}

}  // namespace
}  // namespace vsr::optim::test
