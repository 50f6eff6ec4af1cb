// SPDX-License-Identifier: Apache-2.0
// What is refused leaves no trace: after each failure the optimizer trains on as if it had not
// been.
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "comm/error.hpp"
#include "tests/mpi/clean_step.hpp"
#include "tests/support/error_messages.hpp"

namespace vsr::optim::test {
namespace {

using vsr::test::expect_in;
using vsr::test::message_of;

// A step with gradients 1 and 2 from masters of 0, after what was given up.
void expect_pair_steps_clean(Fp16Optimizer& sgd, const std::vector<NamedParameter>& pair) {
  sgd.discard_step();
  run_given(sgd, pair, std::vector<std::vector<Numbers>>(4, {{1}, {2}}));
  EXPECT_TRUE(sgd.step().applied);
  EXPECT_EQ(masters_of(sgd, 0), Numbers{-1});
  EXPECT_EQ(masters_of(sgd, 1), Numbers{-2});
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
  expect_pair_steps_clean(*sgd, w);
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
  expect_pair_steps_clean(*sgd, w);
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

}  // namespace
}  // namespace vsr::optim::test
