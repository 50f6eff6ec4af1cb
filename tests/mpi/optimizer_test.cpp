// SPDX-License-Identifier: Apache-2.0
// The step against the plain loop of one process: the same bits for every number of ranks, leaves,
// element type and way of communication.
#include "tests/mpi/optimizer_oracle.hpp"

#include <cstdlib>

namespace vsr::optim::test {
namespace {

struct Case {
  torch::ScalarType type;
  int leaves;
  bool shared;
};

class SameBits : public testing::TestWithParam<Case> {
 protected:
  SameBits() { setenv("VSR_COMM_SHARED", GetParam().shared ? "1" : "0", 1); }
  ~SameBits() override { unsetenv("VSR_COMM_SHARED"); }
};

TEST_P(SameBits, AsThePlainLoop) {
  torch::set_num_threads(1);
  const Case c = GetParam();
  Oracle oracle(c.type, c.leaves);
  const Net net(c.type, world().rank() == 0 ? 0.0 : 99.0);  // rank 0's values count
  const auto optimizer = make_optimizer(
      net, {.static_loss_scale = 1024, .leaves = c.leaves, .replica_check_steps = 1});
  EXPECT_EQ(optimizer->masters_hash(), oracle.hash());
  for (int step = 0; step < 3; ++step) {
    run_leaves(net, *optimizer, step);
    const double max_norm = step == 1 ? 0.05 : 0.0;
    if (max_norm > 0) optimizer->clip_fp32_grads(max_norm);
    const StepReport report = optimizer->step();
    oracle.step(step, 1024, max_norm);
    EXPECT_TRUE(report.applied);
    EXPECT_EQ(report.loss, oracle.loss);
    EXPECT_EQ(report.grad_norm, oracle.norm(1024));
    EXPECT_EQ(report.clip_factor < 1.0, step == 1);
    EXPECT_EQ(report.leaf_losses.size(), static_cast<std::size_t>(c.leaves));
    EXPECT_EQ(report.applied_steps, step + 1);
    EXPECT_EQ(optimizer->masters_hash(), oracle.hash()) << "step " << step;
    EXPECT_TRUE(torch::equal(net.statistics, oracle.net.statistics));
    EXPECT_EQ(net.calls.item<std::int64_t>(), step + 1);
    for (std::size_t i = 0; i < net.parameters.size(); ++i)
      EXPECT_TRUE(torch::equal(net[i], oracle.net[i])) << net.parameters[i].name;
    expect_equal_replicas(*optimizer);
  }
  const OptimizerState state = optimizer->state();
  for (std::size_t i = 0; i < state.parameters.size(); ++i) {
    const bool is_used = i == 0 || i == 1 || i == 2 || i == 6;
    EXPECT_EQ(state.parameters[i].steps, is_used ? 3 : 0) << net.parameters[i].name;
    EXPECT_EQ(state.parameters[i].beta1_power, is_used ? 0.9 * 0.9 * 0.9 : 1.0);
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizer, SameBits,
                         testing::Values(Case{torch::kHalf, 4, true},
                                         Case{torch::kBFloat16, 4, true},
                                         Case{torch::kFloat, 4, true}, Case{torch::kHalf, 1, true},
                                         Case{torch::kHalf, 2, true}, Case{torch::kHalf, 3, true},
                                         Case{torch::kFloat, 7, true}, Case{torch::kHalf, 4, false},
                                         Case{torch::kFloat, 7, false},
                                         Case{torch::kBFloat16, 3, false}),
                         [](const auto& one) {
                           return std::string(torch::toString(one.param.type)) +
                                  std::to_string(one.param.leaves) +
                                  (one.param.shared ? "Memory" : "Messages");
                         });

TEST(Optimizer, OverflowOfOneLeafSkipsOnAllRanksAndChangesNothing) {
  for (int spoilt = 0; spoilt < 4; ++spoilt) {
    for (const float spoil : {1e9F, std::nanf("")}) {
      const Net net(torch::kHalf);
      const auto optimizer = make_optimizer(net, {.dynamic_loss_scale = true, .leaves = 4});
      optimizer->set_loss_scale(1024);
      run_leaves(net, *optimizer, 0);
      EXPECT_TRUE(optimizer->step().applied);
      const Snapshot before(net, *optimizer);
      run_leaves(net, *optimizer, 1, spoilt, spoil);
      if (spoilt % 2 == 0) {
        EXPECT_EQ(optimizer->clip_fp32_grads(1.0), -1.0);
      }
      const StepReport report = optimizer->step();
      const Snapshot after(net, *optimizer);
      EXPECT_FALSE(report.applied);
      EXPECT_EQ(report.grad_norm, -1.0);
      EXPECT_GT(report.inf_count + report.nan_count, 0);
      EXPECT_EQ(report.first_bad_parameter, "first.weight");
      EXPECT_EQ(report.first_bad_leaf, spoilt);
      EXPECT_EQ(report.first_bad_rank, spoilt % world().world());
      EXPECT_EQ(report.loss_scale, 1024.0F);
      EXPECT_EQ(report.next_loss_scale, 512.0F);
      EXPECT_EQ(report.skipped_steps, 1);
      EXPECT_EQ(report.applied_steps, 1);
      EXPECT_EQ(optimizer->loss_scale(), 512.0F);
      EXPECT_EQ(before.shard, after.shard);
      EXPECT_EQ(before.replica, after.replica);
      EXPECT_EQ(before.statistics, after.statistics);
      EXPECT_EQ(before.calls, after.calls);
      EXPECT_EQ(before.state.parameters, after.state.parameters);
      run_leaves(net, *optimizer, 2);
      EXPECT_TRUE(optimizer->step().applied);
    }
  }
}

TEST(Optimizer, ClipsJustAboveAndNotJustBelow) {
  Oracle oracle(torch::kHalf, 4);
  oracle.sum_leaves(0, 1024);
  const double norm = oracle.norm(1024);
  const Net plain_net(torch::kHalf);
  const auto plain = make_optimizer(plain_net, {.static_loss_scale = 1024, .leaves = 4});
  run_leaves(plain_net, *plain, 0);
  plain->step();
  for (const double max_norm : {norm * 1.00001 + 1e-6, norm * 0.99999}) {
    const Net net(torch::kHalf);
    const auto optimizer = make_optimizer(net, {.static_loss_scale = 1024, .leaves = 4});
    run_leaves(net, *optimizer, 0);
    EXPECT_EQ(optimizer->clip_fp32_grads(max_norm), norm);
    const StepReport report = optimizer->step();
    EXPECT_EQ(report.clip_factor, std::min(1.0, max_norm / (norm + 1e-6)));
    EXPECT_EQ(report.clip_factor < 1.0, max_norm < norm);
    EXPECT_EQ(optimizer->masters_hash() == plain->masters_hash(), max_norm > norm);
  }
}

TEST(Optimizer, OtherNormsAreThoseOfTheMeanGradient) {
  Oracle oracle(torch::kFloat, 3);
  oracle.sum_leaves(0, 8);
  double sum = 0.0;
  double largest = 0.0;
  for (const auto& values : oracle.sums)
    for (const double value : values) {
      sum += std::fabs(value) / 24;
      largest = std::max(largest, std::fabs(value) / 24);
    }
  const Net net(torch::kFloat);
  const auto optimizer = make_optimizer(net, {.static_loss_scale = 8, .leaves = 3});
  run_leaves(net, *optimizer, 0);
  EXPECT_NEAR(optimizer->clip_fp32_grads(1.0, 1.0), sum, 1e-9 * sum);
  optimizer->step();
  const Net other(torch::kFloat);
  const auto second = make_optimizer(other, {.static_loss_scale = 8, .leaves = 3});
  run_leaves(other, *second, 0);
  EXPECT_DOUBLE_EQ(second->clip_fp32_grads(1.0, std::numeric_limits<double>::infinity()), largest);
  second->step();
}

}  // namespace
}  // namespace vsr::optim::test
