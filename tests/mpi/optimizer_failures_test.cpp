// SPDX-License-Identifier: Apache-2.0
// What is refused leaves no trace: after each failure the optimizer trains on as if it had not
// been.
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <tuple>

#include "comm/error.hpp"
#include "optim/lamb.hpp"
#include "tests/mpi/given_gradients.hpp"
#include "tests/support/error_messages.hpp"

namespace vsr::optim::test {
namespace {

using vsr::test::expect_in;
using vsr::test::message_of;

torch::optim::AdamOptions& adam_options(Fp16Optimizer& optimizer) {
  return static_cast<torch::optim::AdamOptions&>(optimizer.inner().param_groups()[0].options());
}

// One step from 0 with gradient 1 and lr 1, which shows that nothing of what failed is left.
void expect_next_step_clean(Fp16Optimizer& sgd, const std::vector<NamedParameter>& w) {
  const Numbers before = masters_of(sgd, 0);
  const std::int64_t applied = sgd.applied_steps();
  run_given(sgd, w, std::vector<std::vector<Numbers>>(16, {Numbers(before.size(), 1.0F)}));
  EXPECT_TRUE(sgd.step().applied);
  EXPECT_EQ(sgd.applied_steps(), applied + 1);
  Numbers expected;
  for (const float value : before) expected.push_back(value - 1.0F);
  EXPECT_EQ(masters_of(sgd, 0), expected);
}

TEST(Failure, AMissingLeafIsForgotten) {
  const std::vector<NamedParameter> w = {parameter("w", Numbers(1500, 0.0F))};
  for (const int leaves : {1, world().world(), 2 * world().world() + 1}) {
    const auto sgd = sgd_for(w, {.leaves = leaves});
    sgd->zero_grad();
    const auto mine = static_cast<int>(sgd->my_leaves().size());
    for (int i = 0; i + (world().rank() == 0 ? 1 : 0) < mine; ++i)
      sgd->backward(loss_giving(w, {Numbers(1500, 5.0F)}));
    expect_in("rank 0 called backward", message_of<ArgumentError>([&] { sgd->step(); }));
    expect_next_step_clean(*sgd, w);
  }
}

TEST(Failure, OtherClippingOnAnotherRankIsForgotten) {
  if (world().world() == 1) GTEST_SKIP() << "needs two ranks";
  const std::vector<NamedParameter> w = {parameter("w", {0, 0})};
  const auto sgd = sgd_for(w, {.leaves = 2});
  run_given(*sgd, w, {{{5, 5}}, {{5, 5}}});
  expect_in("clips with another norm", message_of<ArgumentError>([&] {
              sgd->clip_fp32_grads(world().rank() == 1 ? 2.0 : 1.0);
            }));
  expect_next_step_clean(*sgd, w);
}

TEST(Discard, GivesTheStepUpWhereverItStands) {
  const std::vector<NamedParameter> w = {parameter("w", Numbers(1500, 0.0F))};
  const Tensor mean = torch::zeros({2});
  const auto sgd = sgd_for(w, {.dynamic_loss_scale = true,
                               .scaler = {.initial_scale = 256},
                               .leaves = 3 * world().world(),
                               .buffers = {{"mean", mean}}});
  const std::vector<std::vector<Numbers>> leaves(12, {Numbers(1500, 5.0F)});
  sgd->discard_step();  // between steps: nothing

  sgd->zero_grad();
  mean.fill_(3);
  sgd->discard_step();
  EXPECT_EQ(numbers_of(mean), (Numbers{0, 0}));

  sgd->zero_grad();
  mean.fill_(3);
  sgd->backward(loss_giving(w, leaves[0]));  // reduced at once, as more leaves follow
  expect_in("discard_step", message_of<ArgumentError>([&] { sgd->zero_grad(); }));
  sgd->discard_step();
  EXPECT_EQ(numbers_of(mean), (Numbers{0, 0}));

  run_given(*sgd, w, leaves);
  EXPECT_GT(sgd->clip_fp32_grads(1.0), 1.0);
  expect_in("discard_step", message_of<ArgumentError>([&] { sgd->zero_grad(); }));
  sgd->discard_step();
  run_given(*sgd, w, leaves);
  EXPECT_EQ(sgd->inspect_fp32_grad_data().size(), 1U);
  sgd->discard_step();
  EXPECT_THROW(sgd->step(), ArgumentError);

  EXPECT_EQ(sgd->state().skipped_steps, 0);
  EXPECT_EQ(sgd->loss_scale(), 256.0F);
  const StateDict now = sgd->state_dict();
  run_given(*sgd, w, leaves);
  sgd->clip_fp32_grads(1.0);
  expect_in("discard_step", message_of<AgreedError>([&] { sgd->load_state_dict(now); }));
  sgd->discard_step();
  sgd->load_state_dict(now);
  run_given(*sgd, w, std::vector<std::vector<Numbers>>(12, {Numbers(1500, 1.0F)}));
  EXPECT_TRUE(sgd->step().applied);
  EXPECT_EQ(masters_of(*sgd, 0), Numbers(1500, -1.0F));
}

TEST(Discard, ServesAClosureThatThrows) {
  const std::vector<NamedParameter> w = {parameter("w", {0})};
  const auto sgd = sgd_for(w, {.leaves = 2 * world().world()});
  EXPECT_THROW(sgd->step([&]() -> Tensor {
    sgd->backward(loss_giving(w, {{5}}));
    throw std::runtime_error("no more data");
  }),
               std::runtime_error);
  sgd->discard_step();
  expect_next_step_clean(*sgd, w);
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

TEST(Options, ChangedOnOneRankAfterClippingEndTheRun) {
  const std::vector<NamedParameter> w = {parameter("w", {0, 0})};
  const auto sgd = sgd_for(w, {.leaves = 1});
  run_given(*sgd, w, {{{1, 1}}});
  sgd->clip_fp32_grads(100.0);
  sgd->set_lr(2.0);  // alike on all: allowed
  sgd->step();
  EXPECT_EQ(masters_of(*sgd, 0), (Numbers{-2, -2}));
  if (world().world() == 1) return;
  run_given(*sgd, w, {{{1, 1}}});
  sgd->clip_fp32_grads(100.0);
  if (world().rank() == 1) sgd->set_lr(0.5);
  sgd->step();
  sgd->set_lr(1.0);
  run_given(*sgd, w, {{{1, 1}}});
  expect_in("with other optimizer options on rank 1",
            message_of<DivergedError>([&] { sgd->step(); }));
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
    expect_in("nesterov needs momentum", message_of<ConfigurationError>([&] {
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
  expect_in("but the optimizer was made without", message_of<ConfigurationError>([&] {
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
    expect_in(part, message_of<ConfigurationError>([&] {
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
              message_of<ConfigurationError>([&] { sgd_for(w, {.leaves = 1}); }));
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
  expect_in("does not know", message_of<ConfigurationError>(
                                 [&] { optimizer_for<Faster>(v, options, {.leaves = 1}); }));
}

}  // namespace
}  // namespace vsr::optim::test
