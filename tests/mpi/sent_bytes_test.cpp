// SPDX-License-Identifier: Apache-2.0
// What the plan of a run says a step sends is what its ranks then count.
#include <gtest/gtest.h>

#include <cstdlib>

#include "launch/plan.hpp"
#include "optim/reduction.hpp"
#include "tests/mpi/given_gradients.hpp"

namespace vsr::optim::test {
namespace {

// A multiple of the blocks of up to four ranks, so that no rank sends padding.
constexpr std::int64_t kElements = 3 << 17;

// The mean over ranks, as in the plan.
double counted(Reduction reduction, int leaves) {
  const std::vector<NamedParameter> w = {
      parameter("w", Numbers(static_cast<std::size_t>(kElements)))};
  const auto optimizer = sgd_for(w, {.leaves = leaves, .reduction = reduction});
  const std::vector<Numbers> ones = {Numbers(static_cast<std::size_t>(kElements), 1.0F)};
  const std::int64_t before = world().sent_bytes();
  run_given(*optimizer, w,
            std::vector<std::vector<Numbers>>(static_cast<std::size_t>(leaves), ones));
  EXPECT_TRUE(optimizer->step().applied);
  double sum = 0.0;
  for (const std::int64_t bytes : world().all_gather(world().sent_bytes() - before))
    sum += static_cast<double>(bytes);
  return sum / world().world();
}

TEST(SentBytes, AreThoseOfThePlan) {
  for (const char* shared : {"1", "0"}) {
    setenv("VSR_COMM_SHARED", shared, 1);
    for (const Reduction reduction : {Reduction::exact, Reduction::fast}) {
      for (const int leaves : {1, world().world(), 2 * world().world(), 4 * world().world() + 1}) {
        launch::PlanNumbers numbers;
        numbers.world = world().world();
        numbers.leaves = leaves;
        numbers.parameters = kElements;
        const auto planned = static_cast<double>(
            launch::sent_bytes_per_step(numbers, reduction == Reduction::exact));
        const double sent = counted(reduction, leaves);
        // Beside the gradients and the replica: what ranks agree on, and the norms of blocks.
        EXPECT_GE(sent, planned) << reduction_name(reduction) << ' ' << leaves << ' ' << shared;
        EXPECT_LE(sent, planned + 0.01 * 2 * kElements)
            << reduction_name(reduction) << ' ' << leaves << ' ' << shared;
      }
    }
  }
  unsetenv("VSR_COMM_SHARED");
}

}  // namespace
}  // namespace vsr::optim::test
