// SPDX-License-Identifier: Apache-2.0
// The worked numbers of mixed-precision training, by their usual labels (T16 …), through the whole
// optimizer on any number of ranks. Values a known defect gives are named beside the right ones.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "comm/error.hpp"
#include "optim/reduction.hpp"
#include "tests/mpi/given_gradients.hpp"

namespace vsr::optim::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
using torch::optim::AdamOptions;

void expect_near(const Numbers& got, const Numbers& expected, double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], tolerance) << i;
}

// FP16 alone would stay at 1 for ever.
TEST(Vectors, T16MastersCollectWhatTheReplicaCannotHold) {
  const std::vector<NamedParameter> w = {parameter("w", {1.0F})};
  const auto optimizer = sgd_for(w, {.leaves = 1});
  const Numbers masters = {1.000244140625F, 1.00048828125F, 1.000732421875F, 1.0009765625F};
  const Numbers replicas = {1.0F, 1.0F, 1.0009765625F, 1.0009765625F};
  for (std::size_t step = 0; step < 4; ++step) {
    run_given(*optimizer, w, {{{-0.000244140625F}}});
    EXPECT_TRUE(optimizer->step().applied);
    EXPECT_EQ(masters_of(*optimizer, 0), Numbers{masters[step]});
    EXPECT_EQ(numbers_of(w[0].replica), Numbers{replicas[step]});
  }
}

// Masters made again from the replica would give 1.000244140625 and 1.
TEST(Vectors, T17ResumeKeepsTheMasters) {
  const std::vector<NamedParameter> w = {parameter("w", {1.0F})};
  const auto optimizer = sgd_for(w, {.leaves = 1});
  for (int step = 0; step < 2; ++step) {
    run_given(*optimizer, w, {{{-0.000244140625F}}});
    optimizer->step();
  }
  const std::vector<NamedParameter> fresh = {parameter("w", {7.0F})};
  const auto resumed = sgd_for(fresh, {.leaves = 1});
  resumed->load_state_dict(optimizer->state_dict());
  run_given(*resumed, fresh, {{{-0.000244140625F}}});
  resumed->step();
  EXPECT_EQ(masters_of(*resumed, 0), Numbers{1.000732421875F});
  EXPECT_EQ(numbers_of(fresh[0].replica), Numbers{1.0009765625F});
}

TEST(Vectors, T18WorkedStepWithTwoTypesAndClipping) {
  const std::vector<NamedParameter> all = {parameter("w", {1, 2}),
                                           parameter("bn", {0.5F}, torch::kFloat)};
  const auto optimizer = sgd_for(all, {.static_loss_scale = 1024, .leaves = 1}, 0.1);
  run_given(*optimizer, all, {{{0.5F, -0.25F}, {2.0F}}});
  EXPECT_NEAR(optimizer->clip_fp32_grads(1.0), 2.0766559657, 1e-6);
  EXPECT_NEAR(optimizer->step().clip_factor, 0.4815431805, 1e-6);
  expect_near(masters_of(*optimizer, 0), {0.975922823F, 2.012038469F}, 1e-6);
  EXPECT_EQ(numbers_of(all[0].replica), (Numbers{0.97607421875F, 2.01171875F}));
  expect_near(numbers_of(all[1].replica), {0.4036913514F}, 1e-6);
}

// T21: clipping still scaled gradients would leave 0.000586 and 0.000781.
TEST(Vectors, T19AndT21ClippingComesAfterUnscaling) {
  for (const double scale : {1.0, 1024.0}) {
    const std::vector<NamedParameter> w = {parameter("w", {0, 0})};
    const auto optimizer = sgd_for(w, {.static_loss_scale = scale, .leaves = 1});
    run_given(*optimizer, w, {{{3, 4}}});
    EXPECT_EQ(optimizer->clip_fp32_grads(1.0), 5.0);
    const std::vector<Tensor> gradients = optimizer->inspect_fp32_grad_data();
    expect_near(numbers_of(gradients[0]), {0.59999988F, 0.79999984F}, 1e-7);
    EXPECT_NEAR(optimizer->step().clip_factor, 0.19999996, 1e-8);
    expect_near(masters_of(*optimizer, 0), {-0.59999988F, -0.79999984F}, 1e-7);
  }
}

// Unscaling twice would give the FP32 parameter 3.25, a scale that grows between the calls 4.
TEST(Vectors, T23TwoBackwardPassesAddUpForBothTypes) {
  const std::vector<NamedParameter> all = {parameter("half", {0}),
                                           parameter("single", {0}, torch::kFloat)};
  const auto optimizer = sgd_for(
      all,
      {.dynamic_loss_scale = true, .scaler = {.initial_scale = 8, .window_steps = 1}, .leaves = 1});
  optimizer->zero_grad();
  if (!optimizer->my_leaves().empty()) {
    optimizer->backward(loss_giving(all, {{2}, {2}}), false);
    optimizer->backward(loss_giving(all, {{3}, {3}}));
  }
  const std::vector<Tensor> gradients = optimizer->inspect_fp32_grad_data();
  EXPECT_EQ(numbers_of(gradients[0]), Numbers{5});
  EXPECT_EQ(numbers_of(gradients[1]), Numbers{5});
  EXPECT_EQ(optimizer->step().loss_scale, 8.0F);
  EXPECT_EQ(masters_of(*optimizer, 0), Numbers{-5});
}

// Using the grown scale would move by 0.5.
TEST(Vectors, T24AGrowthStepUsesTheScaleOfItsBackward) {
  const std::vector<NamedParameter> w = {parameter("w", {0})};
  LossScalerOptions scaler = LossScalerOptions::deepspeed();
  scaler.initial_scale = 4;
  scaler.window_steps = 1;
  const auto optimizer = sgd_for(w, {.dynamic_loss_scale = true, .scaler = scaler, .leaves = 1});
  for (int step = 1; step <= 2; ++step) {
    run_given(*optimizer, w, {{{1}}});
    const StepReport report = optimizer->step();
    EXPECT_EQ(report.loss_scale, 4.0F);
    EXPECT_EQ(report.next_loss_scale, step == 2 ? 8.0F : 4.0F);
    EXPECT_EQ(masters_of(*optimizer, 0), Numbers{static_cast<float>(-step)});
  }
}

TEST(Vectors, T25MicroBatchesAreAddedBeyondFp16) {
  const std::vector<NamedParameter> w = {parameter("w", {0})};
  const auto leaves = sgd_for(w, {.leaves = 4});
  run_given(*leaves, w, {{{20000}}, {{20000}}, {{20000}}, {{20000}}});
  EXPECT_EQ(numbers_of(leaves->inspect_fp32_grad_data()[0]), Numbers{80000.0F / 4});
  EXPECT_TRUE(leaves->step().applied);

  // Losses of one leaf are added by autograd in FP16: 80000 is infinite there, a quarter is not.
  for (const float part : {20000.0F, 5000.0F}) {
    const std::vector<NamedParameter> v = {parameter("v", {0})};
    const auto optimizer = sgd_for(v, {.leaves = 1});
    optimizer->zero_grad();
    if (!optimizer->my_leaves().empty()) {
      for (int i = 0; i < 4; ++i) optimizer->backward(loss_giving(v, {{part}}), false);
      optimizer->update_fp32_grads();
    }
    const StepReport report = optimizer->step();
    EXPECT_EQ(report.applied, part == 5000.0F);
    EXPECT_EQ(masters_of(*optimizer, 0), Numbers{part == 5000.0F ? -20000.0F : 0.0F});
  }
}

// A sum in FP16 that is divided afterwards would be infinite.
TEST(Vectors, T26TheMeanOfEightLeavesFitsInEveryReduction) {
  for (const Reduction reduction : {Reduction::exact, Reduction::allreduce, Reduction::fast}) {
    const std::vector<NamedParameter> w = {parameter("w", {0})};
    const auto optimizer = sgd_for(w, {.leaves = 8, .reduction = reduction});
    run_given(*optimizer, w, std::vector<std::vector<Numbers>>(8, {{10000}}));
    EXPECT_TRUE(optimizer->step().applied);
    const float mean = -masters_of(*optimizer, 0)[0];
    if (reduction == Reduction::exact) {
      EXPECT_EQ(mean, 10000.0F);
    }
    EXPECT_NEAR(mean, 10000.0F, 8.0F);
  }
}

TEST(Vectors, T28DividingBeforeAndAfterASum) {
  const std::vector<std::tuple<int, double, double>> expected = {
      {1, 1, 1}, {2, 2, 1},  {3, 2, 1.5}, {4, 2, 2},     {6, 4, 1.5},
      {8, 4, 2}, {16, 4, 4}, {64, 8, 8},  {1024, 32, 32}};
  for (const auto& [summands, before, after] : expected) {
    EXPECT_EQ(split_divide(summands).before, before) << summands;
    EXPECT_EQ(split_divide(summands).after, after) << summands;
  }
  EXPECT_THROW(split_divide(0), ArgumentError);
}

TEST(Vectors, T29OverflowOfOneRankIsThatOfAll) {
  const std::vector<std::vector<std::vector<Numbers>>> cases = {
      {{{1, kInf}}, {{1, 1}}}, {{{kInf, 1}}, {{-kInf, 1}}}, {{{1, 1}}, {{1, std::nanf("")}}}};
  for (const auto& leaves : cases) {
    for (const Reduction reduction : {Reduction::exact, Reduction::allreduce, Reduction::fast}) {
      const std::vector<NamedParameter> w = {parameter("w", {0.5F, 0.5F})};
      const auto optimizer = sgd_for(w, {.dynamic_loss_scale = true,
                                         .scaler = {.initial_scale = 4},
                                         .leaves = 2,
                                         .reduction = reduction});
      run_given(*optimizer, w, leaves);
      const StepReport report = optimizer->step();
      EXPECT_FALSE(report.applied);
      EXPECT_EQ(optimizer->loss_scale(), 2.0F);
      EXPECT_EQ(masters_of(*optimizer, 0), (Numbers{0.5F, 0.5F}));
      EXPECT_EQ(numbers_of(w[0].replica), (Numbers{0.5F, 0.5F}));
    }
  }
}

// Whichever parameter holds it, and on whichever rank it is owned.
TEST(Vectors, EveryGradientIsChecked) {
  std::vector<NamedParameter> all;
  for (int i = 0; i < 5; ++i)
    all.push_back(parameter(std::string(1, static_cast<char>('a' + i)), Numbers(1500, 1.0F),
                            i % 2 == 0 ? torch::kHalf : torch::kFloat));
  for (std::size_t spoilt = 0; spoilt < all.size(); ++spoilt) {
    for (const std::size_t place : {0U, 777U, 1499U}) {
      const auto optimizer = sgd_for(all, {.leaves = 1});
      std::vector<Numbers> gradients(all.size(), Numbers(1500, 1.0F));
      gradients[spoilt][place] = kInf;
      run_given(*optimizer, all, {gradients});
      const StepReport report = optimizer->step();
      EXPECT_FALSE(report.applied);
      EXPECT_EQ(report.inf_count, 1);
      EXPECT_EQ(report.first_bad_parameter, all[spoilt].name);
      EXPECT_EQ(report.first_bad_rank, 0);
    }
  }
}

// Norms of 2^24 and above are no overflow, nor are gradients whose FP32 square would be infinite.
TEST(Vectors, F5LargeFiniteGradientsAreNoOverflow) {
  for (const float large : {0x1p25F, 1e30F}) {
    const std::vector<NamedParameter> w = {parameter("w", {1, 1}, torch::kFloat)};
    const auto optimizer = sgd_for(w, {.leaves = 1}, 0.0);
    run_given(*optimizer, w, {{{large, large}}});
    EXPECT_NEAR(optimizer->clip_fp32_grads(1.0) / (large * std::sqrt(2.0)), 1.0, 1e-12);
    EXPECT_TRUE(optimizer->step().applied);
  }
}

// A static scale is checked too: the step is skipped, the scale stays.
TEST(Vectors, F3StaticScalesAreChecked) {
  const std::vector<NamedParameter> w = {parameter("w", {1})};
  const auto optimizer = sgd_for(w, {.static_loss_scale = 128, .leaves = 1});
  run_given(*optimizer, w, {{{1000}}});  // 128000 is beyond FP16
  const StepReport report = optimizer->step();
  EXPECT_FALSE(report.applied);
  EXPECT_EQ(report.next_loss_scale, 128.0F);
  EXPECT_EQ(masters_of(*optimizer, 0), Numbers{1});
}

// Counting the skipped step would give -0.18584625.
TEST(Vectors, T32ASkippedStepIsNoStepOfAdam) {
  const std::vector<NamedParameter> w = {parameter("w", {0})};
  const auto optimizer = optimizer_for<torch::optim::Adam>(w, AdamOptions(0.1), {.leaves = 1});
  for (const float gradient : {1.0F, kInf, 1.0F}) {
    run_given(*optimizer, w, {{{gradient}}});
    EXPECT_EQ(optimizer->step().applied, gradient == 1.0F);
  }
  EXPECT_NEAR(masters_of(*optimizer, 0)[0], -0.199999998F, 1e-7);
  EXPECT_EQ(optimizer->state().parameters[0].steps, 2);
}

// With the usual eps a gradient that is still scaled makes no visible difference.
TEST(Vectors, T33UnscalingShowsWithALargeEps) {
  for (const double eps : {1e-8, 1e-3}) {
    const std::vector<NamedParameter> w = {parameter("w", {0}, torch::kFloat)};
    const auto optimizer = optimizer_for<torch::optim::Adam>(
        w, AdamOptions(1.0).eps(eps), {.static_loss_scale = 65536, .leaves = 1});
    run_given(*optimizer, w, {{{1e-3F}}});
    optimizer->step();
    EXPECT_NEAR(-masters_of(*optimizer, 0)[0], eps == 1e-8 ? 0.99999000009999 : 0.5, 1e-6);
  }
}

TEST(Vectors, T34OverflowThenAStep) {
  const std::vector<NamedParameter> w = {parameter("w", {1})};
  const auto optimizer =
      optimizer_for<torch::optim::Adam>(w, AdamOptions(0.1), {.static_loss_scale = 4, .leaves = 1});
  run_given(*optimizer, w, {{{kInf}}});
  optimizer->step();
  EXPECT_EQ(masters_of(*optimizer, 0), Numbers{1});
  EXPECT_EQ(optimizer->state().parameters[0].steps, 0);
  run_given(*optimizer, w, {{{2}}});  // 8 when scaled
  optimizer->step();
  EXPECT_NEAR(masters_of(*optimizer, 0)[0], 0.9, 1e-6);
  EXPECT_EQ(optimizer->state().parameters[0].steps, 1);
  for (const ShardPiece& piece : optimizer->shard().pieces)
    EXPECT_NEAR(piece.values[optimizer->shard().index_of("exp_avg")][0], 0.2, 1e-6);
}

TEST(Vectors, T36AStateDictIsASnapshot) {
  const std::vector<NamedParameter> w = {parameter("w", {1})};
  const auto optimizer = sgd_for(w, {.dynamic_loss_scale = true, .leaves = 1});
  const StateDict dict = optimizer->state_dict();
  run_given(*optimizer, w, {{{kInf}}});
  optimizer->step();
  run_given(*optimizer, w, {{{1}}});
  optimizer->step();
  EXPECT_EQ(dict.state.scaler.scale, 65536.0);
  EXPECT_EQ(dict.state.skipped_steps, 0);
  for (const float value : dict.arrays.at("master")) EXPECT_EQ(value, 1.0F);
  EXPECT_EQ(optimizer->loss_scale(), 32768.0F);
}

TEST(Vectors, T38MastersStandInLogicalOrder) {
  const Tensor a = torch::tensor({{1.0F, 2.0F}, {3.0F, 4.0F}});
  const Tensor image = torch::arange(8, torch::kFloat)
                           .reshape({1, 2, 2, 2})
                           .contiguous(torch::MemoryFormat::ChannelsLast);
  std::vector<NamedParameter> all;
  all.push_back({"a", a.clone().set_requires_grad(true), {}});
  all.push_back({"transposed", a.clone().t().set_requires_grad(true), {}});
  all.push_back({"channels_last", image.to(torch::kHalf).set_requires_grad(true), image});
  ASSERT_FALSE(all[1].replica.is_contiguous());
  ASSERT_FALSE(all[2].replica.is_contiguous());
  const auto optimizer = sgd_for(all, {.leaves = 1});
  EXPECT_EQ(masters_of(*optimizer, 0), (Numbers{1, 2, 3, 4}));
  EXPECT_EQ(masters_of(*optimizer, 1), (Numbers{1, 3, 2, 4}));
  EXPECT_EQ(masters_of(*optimizer, 2), (Numbers{0, 1, 2, 3, 4, 5, 6, 7}));
  optimizer->zero_grad();
  if (!optimizer->my_leaves().empty()) {
    const Tensor weights = torch::arange(8, torch::kFloat).reshape({1, 2, 2, 2});
    optimizer->backward((all[2].replica.to(torch::kFloat) * weights * 2).sum() +
                        (all[1].replica * a).sum());
  }
  optimizer->step();
  EXPECT_EQ(numbers_of(all[2].replica), (Numbers{0, -1, -2, -3, -4, -5, -6, -7}));
  EXPECT_EQ(numbers_of(all[1].replica), (Numbers{0, 1, -1, 0}));
}

// Counted once for each use the norm would be 40.
TEST(Vectors, T43ATiedWeightCountsOnceInTheNorm) {
  const std::vector<NamedParameter> tied = {parameter("w", {0, 0})};
  std::vector<NamedParameter> all = tied;
  all.push_back({"head", tied[0].replica, tied[0].master});
  Fp16OptimizerOptions options = {.leaves = 1, .parameters = all};
  Fp16Optimizer optimizer(
      std::make_unique<torch::optim::SGD>(tensors_of(tied), torch::optim::SGDOptions(1.0)), world(),
      std::move(options));
  optimizer.zero_grad();
  if (!optimizer.my_leaves().empty()) optimizer.backward(loss_giving(all, {{15, 5}, {5, 15}}));
  EXPECT_NEAR(optimizer.clip_fp32_grads(1e9), std::sqrt(800.0), 1e-12);
  optimizer.step();
  EXPECT_EQ(numbers_of(tied[0].replica), (Numbers{-20, -20}));
}

}  // namespace
}  // namespace vsr::optim::test
