// SPDX-License-Identifier: Apache-2.0
// What the optimizer promises around the step: the other reductions, resuming, requests, ties, and
// refusals that all ranks share.
#include "comm/error.hpp"
#include "tests/mpi/optimizer_oracle.hpp"

namespace vsr::optim::test {
namespace {

template <typename Exception, typename Action>
void expect_throw_saying(const Action& action, const std::string& part) {
  try {
    action();
    ADD_FAILURE() << "nothing was thrown; expected: " << part;
  } catch (const Exception& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

// With eps = 1 the first update is lr × g / (|g| + 1): it moves by less than lr times an error in
// g. Leaves added in FP16 are off by half a unit in the last place (2^-11) at each of at most
// `leaves` additions, of sums that are at most leaves × the largest leaf gradient; twice that, for
// the unscaling and roundings after it.
TEST(Reduction, AllreduceAndFastStayWithinTheRoundingOfTheirSums) {
  constexpr int kLeaves = 4;
  Oracle oracle(torch::kHalf, kLeaves);
  oracle.sum_leaves(0, 256);
  double largest = 0.0;
  for (const auto& values : oracle.sums)
    for (const double value : values) largest = std::max(largest, std::fabs(value) / 256);
  const double bound = 1e-2 * 2 * kLeaves * largest * std::exp2(-11) + 1e-6;
  const auto run = [&](Reduction reduction, const Net& net) {
    Fp16OptimizerOptions options = {
        .static_loss_scale = 256, .leaves = kLeaves, .reduction = reduction};
    options.parameters = net.parameters;
    auto adam = std::make_unique<torch::optim::Adam>(net.trainable(),
                                                     torch::optim::AdamOptions(1e-2).eps(1.0));
    auto optimizer = std::make_unique<Fp16Optimizer>(std::move(adam), world(), std::move(options));
    run_leaves(net, *optimizer, 0);
    EXPECT_TRUE(optimizer->step().applied);
    expect_equal_replicas(*optimizer);
    return optimizer;
  };
  const Net exact_net(torch::kHalf);
  const auto exact = run(Reduction::exact, exact_net);
  for (const Reduction reduction : {Reduction::allreduce, Reduction::fast}) {
    const Net net(torch::kHalf);
    const Net again_net(torch::kHalf);
    const auto optimizer = run(reduction, net);
    const auto again = run(reduction, again_net);
    EXPECT_EQ(optimizer->masters_hash(), again->masters_hash());
    const auto pieces = optimizer->shard().pieces;
    const auto exact_pieces = exact->shard().pieces;
    for (std::size_t i = 0; i < pieces.size(); ++i)
      for (std::size_t j = 0; j < pieces[i].values[0].size(); ++j)
        ASSERT_NEAR(pieces[i].values[0][j], exact_pieces[i].values[0][j], bound);
  }
}

TEST(Reduction, AllreduceAndFastSkipTogether) {
  for (const Reduction reduction : {Reduction::allreduce, Reduction::fast}) {
    const Net net(torch::kHalf);
    const auto optimizer =
        make_optimizer(net, {.dynamic_loss_scale = true, .leaves = 4, .reduction = reduction});
    const Snapshot before(net, *optimizer);
    run_leaves(net, *optimizer, 0, 3, 1e9F);
    const StepReport report = optimizer->step();
    EXPECT_FALSE(report.applied);
    EXPECT_EQ(report.next_loss_scale, 32768.0F);
    EXPECT_EQ(report.first_bad_parameter, "first.weight");
    EXPECT_EQ(report.first_bad_leaf, -1);
    const Snapshot after(net, *optimizer);
    EXPECT_EQ(before.shard, after.shard);
    EXPECT_EQ(before.replica, after.replica);
  }
}

TEST(Optimizer, GoesOnBitForBitFromLoadedState) {
  const Net net(torch::kHalf);
  const auto optimizer = make_optimizer(net, {.dynamic_loss_scale = true, .leaves = 3});
  optimizer->set_loss_scale(512);
  for (int step = 0; step < 2; ++step) {
    run_leaves(net, *optimizer, step);
    optimizer->step();
  }
  const Net fresh(torch::kHalf, 42.0);
  const auto resumed = make_optimizer(fresh, {.dynamic_loss_scale = true, .leaves = 3});
  EXPECT_NE(resumed->masters_hash(), optimizer->masters_hash());
  const ShardView from = optimizer->shard();
  const ShardView to = resumed->shard();
  ASSERT_EQ(from.intervals(), to.intervals());
  for (std::size_t i = 0; i < from.pieces.size(); ++i)
    for (std::size_t array = 0; array < from.arrays.size(); ++array)
      std::ranges::copy(from.pieces[i].values[array], to.pieces[i].values[array].begin());
  resumed->load_state(optimizer->state());
  resumed->publish_masters();
  fresh.statistics.copy_(net.statistics);
  fresh.calls.copy_(net.calls);
  EXPECT_EQ(resumed->replica_hash(), optimizer->replica_hash());
  EXPECT_EQ(resumed->loss_scale(), 512.0F);
  run_leaves(net, *optimizer, 2);
  run_leaves(fresh, *resumed, 2);
  optimizer->step();
  resumed->step();
  EXPECT_EQ(resumed->masters_hash(), optimizer->masters_hash());
  EXPECT_EQ(resumed->state(), optimizer->state());
  EXPECT_TRUE(torch::equal(fresh.statistics, net.statistics));
}

TEST(Optimizer, ShardsCoverTheLogicalIndexOnce) {
  const Net net(torch::kHalf);
  const auto optimizer = make_optimizer(net, {});
  std::int64_t mine = 0;
  for (const comm::Interval interval : optimizer->shard().intervals()) mine += interval.size();
  std::int64_t all = 0;
  for (const std::int64_t elements : world().all_gather(mine)) all += elements;
  EXPECT_EQ(all, 2000 + 100 + 3000 + 21 + 0 + 30 + 30);
  EXPECT_EQ(all, optimizer->layout().logical_elements());
}

TEST(Optimizer, RequestsOfAnyRankReachAllOnce) {
  const Net net(torch::kFloat);
  const auto optimizer = make_optimizer(net, {});
  optimizer->request(std::uint64_t{1} << world().rank());
  run_leaves(net, *optimizer, 0);
  EXPECT_EQ(optimizer->step().requests, (std::uint64_t{1} << world().world()) - 1);
  run_leaves(net, *optimizer, 1);
  EXPECT_EQ(optimizer->step().requests, 0U);
}

TEST(Optimizer, ReadsTheRateAtEachStep) {
  const Net net(torch::kFloat);
  const auto optimizer = make_optimizer(net, {}, 0.0);
  EXPECT_EQ(optimizer->lr(), 1e-2);
  optimizer->set_lr(0.0);
  const std::string before = optimizer->masters_hash();
  run_leaves(net, *optimizer, 0);
  EXPECT_TRUE(optimizer->step().applied);
  EXPECT_EQ(optimizer->masters_hash(), before);
}

TEST(Optimizer, ATiedParameterIsStoredOnceUnderItsFirstName) {
  Net net(torch::kHalf);
  net.parameters.push_back({"tied", net[0], {}});
  const auto optimizer = make_optimizer(net, {});
  EXPECT_EQ(optimizer->layout().parameters().size(), 7U);
  run_leaves(net, *optimizer, 0);
  EXPECT_TRUE(optimizer->step().applied);
}

TEST(Optimizer, TakesItsParametersFromTheInnerOptimizer) {
  const Net net(torch::kFloat);
  auto adam = std::make_unique<torch::optim::AdamW>(net.trainable());
  Fp16Optimizer optimizer(std::move(adam), world(), {});
  EXPECT_EQ(optimizer.layout().parameters()[1].name, "param_1");
  optimizer.zero_grad();
  for (const int leaf : optimizer.my_leaves()) optimizer.backward(net.loss(0, leaf));
  EXPECT_TRUE(optimizer.step().applied);
}

TEST(Optimizer, AReplacedGradientIsBroughtBack) {
  Oracle oracle(torch::kHalf, 1);
  const Net net(torch::kHalf);
  const auto optimizer = make_optimizer(net, {.static_loss_scale = 64, .leaves = 1});
  optimizer->zero_grad();
  for (const Tensor& tensor : net.trainable()) tensor.mutable_grad().reset();
  if (world().rank() == 0) optimizer->backward(net.loss(0, 0));
  optimizer->step();
  oracle.step(0, 64, 0.0);
  EXPECT_EQ(optimizer->masters_hash(), oracle.hash());
}

TEST(Optimizer, StuckAtTheLowestScaleDivergesOnAllRanks) {
  const Net net(torch::kHalf);
  const auto optimizer = make_optimizer(
      net, {.static_loss_scale = 8, .scaler = {.max_skips_at_floor = 2}, .leaves = 2});
  run_leaves(net, *optimizer, 0, 1, 1e12F);
  EXPECT_FALSE(optimizer->step().applied);
  run_leaves(net, *optimizer, 1, 1, 1e12F);
  const std::string rank = std::to_string(1 % world().world());
  expect_throw_saying<DivergedError>([&] { optimizer->step(); },
                                     "parameter first.weight, rank " + rank + ", leaf 1");
}

TEST(Optimizer, AMissingLeafIsRefusedByAllRanks) {
  const Net net(torch::kFloat);
  const auto optimizer = make_optimizer(net, {});
  optimizer->zero_grad();
  if (world().rank() > 0) optimizer->backward(net.loss(0, world().rank()));
  expect_throw_saying<ArgumentError>([&] { optimizer->step(); }, "rank 0 called backward 0 times");
}

TEST(Optimizer, CallsOutOfOrderAreRefused) {
  const Net net(torch::kFloat);
  const auto optimizer = make_optimizer(net, {});
  EXPECT_THROW(optimizer->backward(net.loss(0, 0)), ArgumentError);
  EXPECT_THROW(optimizer->step(), ArgumentError);
  optimizer->zero_grad();
  EXPECT_THROW(optimizer->backward(net[1]), ArgumentError);
  EXPECT_THROW(optimizer->clip_fp32_grads(1.0), ArgumentError);  // before backward
  EXPECT_THROW(optimizer->clip_fp32_grads(1.0), ArgumentError);  // between steps
  optimizer->zero_grad();
  optimizer->backward(net.loss(0, 0));
  expect_throw_saying<ArgumentError>([&] { optimizer->backward(net.loss(0, 0)); },
                                     "was called for all");
  EXPECT_TRUE(optimizer->step().applied);
}

TEST(Optimizer, WhatItCannotStepIsRefused) {
  const Net net(torch::kFloat);
  const auto make = [&](std::unique_ptr<torch::optim::Optimizer> inner) {
    Fp16Optimizer(std::move(inner), world(), {.parameters = net.parameters});
  };
  expect_throw_saying<AgreedError>(
      [&] { make(std::make_unique<torch::optim::LBFGS>(net.trainable())); },
      "mixes all parameters");
  expect_throw_saying<AgreedError>(
      [&] { make(std::make_unique<torch::optim::Adam>(std::vector<Tensor>{net[0]})); },
      "first.bias");
  const Tensor wide = torch::zeros({2}, torch::kDouble).set_requires_grad(true);
  expect_throw_saying<AgreedError>(
      [&] {
        Fp16Optimizer(std::make_unique<torch::optim::Adam>(std::vector<Tensor>{wide}), world(), {});
      },
      "Double");
}

TEST(Optimizer, RanksThatDisagreeAreRefusedTogether) {
  if (world().world() == 1) GTEST_SKIP() << "needs two ranks";
  const Net net(torch::kFloat);
  const double scale = world().rank() == 1 ? 2.0 : 1.0;
  expect_throw_saying<ConfigurationError>(
      [&] { make_optimizer(net, {.static_loss_scale = scale}); }, "rank 1 has other");
}

}  // namespace
}  // namespace vsr::optim::test
