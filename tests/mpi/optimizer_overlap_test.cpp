// SPDX-License-Identifier: Apache-2.0
// Gradients that leave while the backward pass is still at work: never another bit, and a pass that
// fails half-way is given up on all ranks together.
#include <cstdlib>
#include <stdexcept>

#include "comm/error.hpp"
#include "tests/mpi/optimizer_oracle.hpp"
#include "tests/support/error_messages.hpp"

namespace vsr::optim::test {
namespace {

using vsr::test::expect_in;
using vsr::test::message_of;

struct Case {
  torch::ScalarType type;
  int leaves;
};

class Overlapping : public testing::Test {
 protected:
  // Only messages can leave early.
  Overlapping() {
    setenv("VSR_COMM_SHARED", "0", 1);
    torch::set_num_threads(1);
  }
  ~Overlapping() override { unsetenv("VSR_COMM_SHARED"); }

  static Fp16OptimizerOptions options(int leaves, Overlap overlap = Overlap::on) {
    Fp16OptimizerOptions made;
    made.static_loss_scale = 1024;
    made.leaves = leaves;
    made.overlap = overlap;
    made.bucket_bytes = 2048;  // a norm block of FP16
    return made;
  }
};

class OverlapBits : public Overlapping, public testing::WithParamInterface<Case> {};

TEST_P(OverlapBits, AreThoseOfThePlainLoop) {
  const auto [type, leaves] = GetParam();
  Oracle oracle(type, leaves);
  const Net net(type);
  const auto optimizer = make_optimizer(net, options(leaves));
  for (int step = 0; step < 3; ++step) {
    run_leaves(net, *optimizer, step);
    optimizer->clip_fp32_grads(0.05);
    const StepReport report = optimizer->step();
    oracle.step(step, 1024, 0.05);
    EXPECT_EQ(report.grad_norm, oracle.norm(1024));
    EXPECT_EQ(optimizer->masters_hash(), oracle.hash()) << "step " << step;
    EXPECT_GE(report.exposed_ms, 0.0);
    EXPECT_LE(report.exposed_ms, report.reduce_ms);
    expect_equal_replicas(*optimizer);
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizer, OverlapBits,
                         testing::Values(Case{torch::kHalf, 1}, Case{torch::kHalf, 4},
                                         Case{torch::kBFloat16, 7}, Case{torch::kFloat, 4}),
                         [](const auto& one) {
                           return std::string(torch::toString(one.param.type)) +
                                  std::to_string(one.param.leaves);
                         });

TEST_F(Overlapping, GradientsLeaveWithinTheBackwardPass) {
  const int ranks = world().world();
  if (ranks == 1) GTEST_SKIP() << "needs two ranks";
  for (const Overlap overlap : {Overlap::on, Overlap::off}) {
    const Net net(torch::kHalf);
    const auto optimizer = make_optimizer(net, options(ranks, overlap));
    optimizer->zero_grad();
    const std::int64_t before = world().sent_bytes();
    std::int64_t in_the_middle = 0;
    // Runs when the second layer's gradients are there and the first layer's are not.
    net[0].register_hook([&](const Tensor& gradient) {
      in_the_middle = world().sent_bytes() - before;
      return gradient;
    });
    optimizer->backward(net.loss(0, world().rank()));
    // The second bias alone is a bucket that is complete then: of another rank's shard on all but
    // one.
    const std::vector<std::int64_t> all = world().all_gather(in_the_middle);
    std::int64_t sum = 0;
    for (const std::int64_t bytes : all) sum += bytes;
    EXPECT_EQ(sum > 0, overlap == Overlap::on);
    EXPECT_TRUE(optimizer->step().applied);
  }
}

TEST_F(Overlapping, AFailedPassIsGivenUpOnAllRanks) {
  const int ranks = world().world();
  Oracle oracle(torch::kHalf, ranks);
  const Net net(torch::kHalf);
  const auto optimizer = make_optimizer(net, options(ranks));
  bool fails = world().rank() == ranks - 1;
  net[0].register_hook([&](const Tensor& gradient) {
    if (fails) throw std::runtime_error("the pass broke");
    return gradient;
  });
  for (int attempt = 0; attempt < 2; ++attempt) {
    optimizer->zero_grad();
    const std::string message = message_of<AgreedError>([&] {
      world().agree_all_ok("a leaf", [&] { optimizer->backward(net.loss(9, world().rank())); });
    });
    expect_in("the pass broke", message);
    optimizer->discard_step();
  }
  fails = false;
  run_leaves(net, *optimizer, 0);
  EXPECT_TRUE(optimizer->step().applied);
  oracle.step(0, 1024, 0.0);
  EXPECT_EQ(optimizer->masters_hash(), oracle.hash());
}

TEST_F(Overlapping, ZeroGradDoesNotTakeBackWhatHasLeft) {
  const int ranks = world().world();
  if (ranks == 1) GTEST_SKIP() << "needs two ranks";
  const Net net(torch::kHalf);
  const auto optimizer = make_optimizer(net, options(ranks));
  optimizer->zero_grad();
  // A bucket waits for the parameter that no leaf uses, so some leave within the pass, not all.
  optimizer->backward(net.loss(0, world().rank()));
  expect_in("discard_step", message_of<ArgumentError>([&] { optimizer->zero_grad(); }));
  optimizer->discard_step();
  run_leaves(net, *optimizer, 0);
  EXPECT_TRUE(optimizer->step().applied);
}

TEST_F(Overlapping, RanksThatDisagreeAreRefused) {
  if (world().world() == 1) GTEST_SKIP() << "needs two ranks";
  const Net net(torch::kHalf);
  Fp16OptimizerOptions mine = options(world().world());
  if (world().rank() == 1) mine.bucket_bytes = 4096;
  EXPECT_THROW(make_optimizer(net, mine), ConfigurationError);
}

}  // namespace
}  // namespace vsr::optim::test
