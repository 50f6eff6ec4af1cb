// SPDX-License-Identifier: Apache-2.0
// The plan and the version: exact texts.
#include "launch/plan.hpp"

#include <gtest/gtest.h>

#include "comm/error.hpp"
#include "launch/version.hpp"
#include "optim/schedule.hpp"

namespace vsr::launch {
namespace {

PlanNumbers demo_numbers() {
  PlanNumbers n;
  n.model = "vespcn";
  n.precision = "fp16";
  n.reduction = "exact";
  n.optimizer = "adam, betas 0.9 0.99";
  n.loss_scale = "fixed at 1024";
  n.world = 2;
  n.leaves = 8;
  n.batch = 2;
  n.clips = 1;
  n.samples = 100;
  n.total_iter = 1000;
  n.parameters = 1 << 20;
  n.held_out = {{"bigbuckbunny", 26}};
  n.learning_rate = optim::Schedule(optim::CosineLr{.lr = 2e-4, .total_steps = 1000});
  return n;
}

TEST(Plan, ExactText) {
  EXPECT_EQ(plan_text(demo_numbers()),
            "network          vespcn, 1 048 576 parameters, fp16\n"
            "data             100 samples per epoch from 1 clip\n"
            "held out         26 frames, in no training window (bigbuckbunny 26)\n"
            "leaves           8 per step of 2 samples, 4 per rank on 2 ranks\n"
            "reduction        exact, 5.0 MiB sent per rank and step; fast would send 2.0 MiB\n"
            "optimizer        adam, betas 0.9 0.99\n"
            "loss scale       fixed at 1024\n"
            "iterations       1 000, 6.25 per epoch, 160.00 epochs\n"
            "learning rate    2.00e-04 at step 0, 1.71e-04 at step 250, 1.00e-04 at step 500, "
            "2.93e-05 at step 750, 4.93e-10 at step 999\n"
            "memory per rank  14.0 MiB for parameters, gradients and optimizer, without "
            "activations and frames\n"
            "checkpoint       12.0 MiB\n");
}

TEST(Plan, WarnsOfIdleRanksAndShowsWarmUp) {
  auto n = demo_numbers();
  n.world = 4;
  n.leaves = 3;
  n.warmup_iter = 100;
  n.held_out = {};
  n.learning_rate = optim::Schedule(optim::ConstantLr{.lr = 1e-3, .warmup_steps = 100});
  const auto text = plan_text(n);
  for (const char* line :
       {"\nleaves           3 per step of 2 samples, 0 to 1 per rank on 4 ranks\n",
        "\nwarning          ranks without a leaf: 1 of 4; use --leaves 4 or fewer ranks\n",
        "\nheld out         none\n",
        "\nlearning rate    1.00e-05 at step 0, 1.00e-03 at step 99, 1.00e-03 at step 250, "
        "1.00e-03 at step 500, 1.00e-03 at step 750, 1.00e-03 at step 999\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "in\n" << text;
}

TEST(Plan, EndsWithTheNotices) {
  auto n = demo_numbers();
  n.notices = {"first", "second"};
  EXPECT_TRUE(plan_text(n).ends_with("MiB\nnotice           first\nnotice           second\n"));
}

TEST(Plan, MemoryByTheFormulas) {
  auto n = demo_numbers();
  n.parameters = 1000;
  n.world = 1;
  n.leaves = 1;
  EXPECT_EQ(state_bytes_per_rank(n), 20000);  // 4 + 16
  n.leaves = 2;
  EXPECT_EQ(state_bytes_per_rank(n), 24000);  // 4 + 20
  n.world = 4;
  n.leaves = 4;
  EXPECT_EQ(state_bytes_per_rank(n), 8000);  // 4 + 16/4
  n.leaves = 8;
  EXPECT_EQ(state_bytes_per_rank(n), 9000);  // 4 + 20/4
  EXPECT_EQ(checkpoint_bytes(n), 12000);
  n.fp32_arrays = 1;                         // sgd without momentum
  EXPECT_EQ(state_bytes_per_rank(n), 7000);  // 4 + 12/4
  EXPECT_EQ(checkpoint_bytes(n), 4000);
  n.fp32_arrays = 4;                          // adam with an average
  EXPECT_EQ(state_bytes_per_rank(n), 10000);  // 4 + 24/4
  EXPECT_EQ(checkpoint_bytes(n), 16000);
}

TEST(Plan, SentBytesByTheFormula) {
  auto n = demo_numbers();
  n.parameters = 1000;
  EXPECT_EQ(sent_bytes_per_step(n, true), 5000);   // (2k + 2)·Ψ·(P−1)/P, k = 4 leaves a rank
  EXPECT_EQ(sent_bytes_per_step(n, false), 2000);  // as with k = 1
  n.gradient_bytes = 4;
  EXPECT_EQ(sent_bytes_per_step(n, true), 10000);
  n.world = 4;
  n.leaves = 2;  // two ranks have none
  EXPECT_EQ(sent_bytes_per_step(n, true), 4500);
  EXPECT_EQ(sent_bytes_per_step(n, false), 4500);
  n.world = 1;
  EXPECT_EQ(sent_bytes_per_step(n, true), 0);
}

TEST(Plan, ShowsTheCostOfExactWhereFastSendsLess) {
  auto n = demo_numbers();
  const auto shows = [&](const char* line) {
    return plan_text(n).find(std::string("\nreduction        ") + line + "\n") != std::string::npos;
  };
  n.leaves = 2;  // one a rank
  EXPECT_TRUE(shows("exact"));
  n.leaves = 8;
  n.reduction = "fast";
  EXPECT_TRUE(shows("fast"));
  n.reduction = "exact";
  n.world = 1;
  EXPECT_TRUE(shows("exact"));
}

TEST(Plan, RefusesWhatItCannotDivideBy) {
  auto n = demo_numbers();
  n.samples = 0;
  EXPECT_THROW(plan_text(n), ArgumentError);
  n = demo_numbers();
  n.world = 0;
  EXPECT_THROW(plan_text(n), ArgumentError);
  n = demo_numbers();
  n.learning_rate = nullptr;
  EXPECT_THROW(plan_text(n), ArgumentError);
}

TEST(Version, NamesEveryPart) {
  const auto text = version_text();
  EXPECT_EQ(text.find("vsr_dist 0."), 0U);
  for (const char* line : {"\ncommit    ", "\ncompiler  ", "\nLibTorch  ", "\nMPI       ",
                           "\nNCCL      ", "\nCUDA      ", "\nHDF5      ", "\nFFmpeg    "}) {
    const auto at = text.find(line);
    ASSERT_NE(at, std::string::npos) << line;
    EXPECT_NE(text.at(at + std::string(line).size()), '\n') << "no value in" << line;
  }
  EXPECT_NE(text.find("commit    " + std::string(source_commit()) + "\n"), std::string::npos);
  EXPECT_EQ(text.back(), '\n');
}

}  // namespace
}  // namespace vsr::launch
