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

TEST(Memory, OfAParameterThatIsReplacedLaterIsNoticed) {
  const std::vector<NamedParameter> w = {parameter("w", {1, 2})};
  const auto sgd = sgd_for(w, {.leaves = 1});
  torch::Tensor replica = w[0].replica;
  const Tensor flat = replica.detach();
  replica.set_data(torch::zeros({2}, torch::kHalf));
  expect_in("the memory of parameter w was replaced",
            message_of<ArgumentError>([&] { sgd->zero_grad(); }));
  replica.set_data(flat);
  expect_next_step_clean(*sgd, w);
}

TEST(Failure, OfOneRankInTheConstructorIsThatOfAll) {
  const bool is_bad = world().rank() == world().world() - 1;
  const std::vector<NamedParameter> w = {
      parameter("w", {0}, is_bad ? torch::kDouble : torch::kHalf)};
  expect_in("parameter w has type Double",
            message_of<AgreedError>([&] { sgd_for(w, {.leaves = 1}); }));
  const std::vector<NamedParameter> v = {parameter("v", {0})};
  expect_in("ema_decay is 1.5", message_of<AgreedError>([&] {
              sgd_for(v, {.leaves = 1, .ema_decay = is_bad ? 1.5 : 0.5});
            }));
  expect_next_step_clean(*sgd_for(v, {.leaves = 1}), v);
}

TEST(Failure, OfABackwardHalfWayIsNotAddedTwice) {
  const std::vector<NamedParameter> w = {parameter("w", {0}), parameter("v", {0})};
  const auto sgd = sgd_for(w, {.leaves = world().world()});
  bool throws = true;
  w[1].replica.register_hook([&throws](const Tensor& gradient) -> Tensor {
    if (throws) throw std::runtime_error("half-way");
    return gradient;
  });
  sgd->zero_grad();
  EXPECT_THROW(sgd->backward(loss_giving(w, {{5}, {5}})), std::runtime_error);
  throws = false;
  expect_in("failed half-way", message_of<ArgumentError>([&] {
              sgd->backward(loss_giving(w, {{1}, {1}}));
            }));
  sgd->discard_step();
  run_given(*sgd, w, std::vector<std::vector<Numbers>>(4, {{1}, {2}}));
  EXPECT_TRUE(sgd->step().applied);
  EXPECT_EQ(masters_of(*sgd, 0), Numbers{-1});
  EXPECT_EQ(masters_of(*sgd, 1), Numbers{-2});
}

TEST(Failure, AParameterThawedInsideAStepIsNotLost) {
  const std::vector<NamedParameter> w = {parameter("w", {0}), parameter("v", {0})};
  const auto sgd = sgd_for(w, {.leaves = world().world()});
  w[1].replica.set_requires_grad(false);
  sgd->zero_grad();
  w[1].replica.set_requires_grad(true);
  expect_in("v was thawed inside a step", message_of<ArgumentError>([&] {
              sgd->backward(loss_giving(w, {{1}, {1}}));
            }));
  sgd->discard_step();
  run_given(*sgd, w, std::vector<std::vector<Numbers>>(4, {{1}, {2}}));
  EXPECT_TRUE(sgd->step().applied);
  EXPECT_EQ(masters_of(*sgd, 1), Numbers{-2});
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

TEST(Buffers, SetBetweenTwoZeroGradsStay) {
  const std::vector<NamedParameter> w = {parameter("w", {0})};
  const Tensor mean = torch::zeros({2});
  const Tensor count = torch::full({1}, (std::int64_t{1} << 60) + 1, torch::kLong);
  const Tensor third = torch::full({1}, 0.1, torch::kDouble);
  const auto sgd =
      sgd_for(w, {.leaves = 3, .buffers = {{"mean", mean}, {"count", count}, {"third", third}}});
  sgd->zero_grad();
  mean.fill_(7);
  run_given(*sgd, w, {{{1}}, {{1}}, {{1}}});
  EXPECT_TRUE(sgd->step().applied);
  EXPECT_EQ(numbers_of(mean), (Numbers{7, 7}));
  EXPECT_EQ(count.item<std::int64_t>(), (std::int64_t{1} << 60) + 1);
  EXPECT_EQ(third.item<double>(), 0.1);
}

TEST(Buffers, ChangedByAForwardBeforeZeroGradAreNoticed) {
  if (world().world() == 1) GTEST_SKIP() << "needs two ranks";
  const std::vector<NamedParameter> w = {parameter("w", {0})};
  const Tensor mean = torch::zeros({2});
  const auto sgd = sgd_for(w, {.leaves = world().world(), .buffers = {{"mean", mean}}});
  mean.fill_(world().rank());
  run_given(*sgd, w, std::vector<std::vector<Numbers>>(4, {{1}}));
  expect_in("forward passes come after zero_grad", message_of<ArgumentError>([&] { sgd->step(); }));
  mean.fill_(3);
  expect_next_step_clean(*sgd, w);
}

TEST(Replicas, ThatDifferEndTheRunAndAreNamed) {
  if (world().world() == 1) GTEST_SKIP() << "needs two ranks";
  const std::vector<NamedParameter> w = {parameter("w", Numbers(3000, 0.0F)),
                                         parameter("v", Numbers(5, 0.0F))};
  const auto sgd = sgd_for(w, {.leaves = 1, .replica_check_steps = 2});
  const auto step = [&] {
    run_given(*sgd, w, {{Numbers(3000, 1.0F), Numbers(5, 1.0F)}});
    return sgd->step();
  };
  EXPECT_TRUE(step().applied);
  EXPECT_TRUE(step().applied);
  EXPECT_TRUE(step().applied);  // compared before this one, and all were equal
  const int last = world().world() - 1;
  if (world().rank() == last) {
    const torch::NoGradGuard no_grad;
    torch::Tensor overwritten = w[1].replica;
    overwritten[3] = 7;
  }
  EXPECT_TRUE(step().applied);  // not compared, and published over the fault
  if (world().rank() == last) {
    const torch::NoGradGuard no_grad;
    torch::Tensor overwritten = w[1].replica;
    overwritten[3] = 7;
  }
  const std::string message = message_of<DivergedError>([&] { step(); });
  expect_in("the replica of rank " + std::to_string(last) +
                " differs from that of rank 0, first in "
                "parameter v",
            message);
  expect_in("they were equal after 2 applied steps", message);
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
