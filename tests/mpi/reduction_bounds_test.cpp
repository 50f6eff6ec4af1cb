// SPDX-License-Identifier: Apache-2.0
// How far the reductions that add in FP16 may be from the exact sum, as docs/optimizer.md states
// it.
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "optim/reduction.hpp"
#include "tests/mpi/given_gradients.hpp"

namespace vsr::optim::test {
namespace {

constexpr double kUnitRoundoff = 0x1p-11;  // of FP16
constexpr std::int64_t kElements = 3000;

// Whole numbers of 11 bits in units of a power of two are FP16 values for any power-of-two scale,
// so that a leaf's own gradient is not rounded, and all that is left is the sum's.
std::vector<Numbers> random_leaves(int leaves, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> digits(-2047, 2047);
  std::uniform_int_distribution<int> exponent(-8, -2);
  std::vector<Numbers> made(static_cast<std::size_t>(leaves));
  for (Numbers& leaf : made)
    for (std::int64_t i = 0; i < kElements; ++i)
      leaf.push_back(std::ldexp(static_cast<float>(digits(random)), exponent(random)));
  return made;
}

TEST(ReductionBounds, SumsInHalfPrecisionStayWithinTheirs) {
  for (const Reduction reduction : {Reduction::exact, Reduction::allreduce, Reduction::fast}) {
    for (const int leaves : {1, 2, 3, 5, 8}) {
      const std::vector<Numbers> gradients =
          random_leaves(leaves, 40U + static_cast<unsigned>(leaves));
      const std::vector<NamedParameter> w = {parameter("w", Numbers(kElements, 0.0F))};
      Fp16OptimizerOptions options;
      options.static_loss_scale = 4;
      options.leaves = leaves;
      options.reduction = reduction;
      const auto optimizer = sgd_for(w, options, 0.0);
      std::vector<std::vector<Numbers>> given;
      for (const Numbers& leaf : gradients) given.push_back({leaf});
      run_given(*optimizer, w, given);
      const Numbers means = numbers_of(optimizer->inspect_fp32_grad_data()[0]);
      EXPECT_TRUE(optimizer->step().applied);
      const double steps = (leaves - 1) * kUnitRoundoff;
      const double gamma = reduction == Reduction::exact ? 0.0 : steps / (1.0 - steps);
      int rounded = 0;
      for (std::size_t i = 0; i < means.size(); ++i) {
        double sum = 0.0, magnitudes = 0.0;
        for (const Numbers& leaf : gradients) {
          sum += leaf[i];
          magnitudes += std::abs(leaf[i]);
        }
        const double exact = sum / leaves;
        const double error = std::abs(means[i] - exact);
        // The last term: the mean itself is FP32.
        ASSERT_LE(error, gamma * magnitudes / leaves + std::abs(exact) * 0x1p-23)
            << reduction_name(reduction) << ' ' << leaves << ' ' << i;
        if (error > std::abs(exact) * 0x1p-23) ++rounded;
      }
      // The bound is there for something.
      EXPECT_EQ(rounded > 0, reduction != Reduction::exact && leaves > 1)
          << reduction_name(reduction) << ' ' << leaves;
    }
  }
}

// What the division before backward costs at the low end: a bit for each halving. A loss scale that
// fits gives them back.
TEST(ReductionBounds, GradientsBelowTheSmallestHalfVanishInHalfPrecisionSums) {
  constexpr int kLeaves = 8;  // divided by 4 before backward
  for (const Reduction reduction : {Reduction::exact, Reduction::allreduce, Reduction::fast}) {
    for (const double scale : {1.0, 4.0}) {
      const std::vector<NamedParameter> w = {parameter("w", {0.0F, 0.0F})};
      Fp16OptimizerOptions options;
      options.static_loss_scale = scale;
      options.leaves = kLeaves;
      options.reduction = reduction;
      const auto optimizer = sgd_for(w, options);
      const Numbers gradients = {0x1p-24F, 0x1p-20F};
      run_given(*optimizer, w, std::vector<std::vector<Numbers>>(kLeaves, {gradients}));
      EXPECT_TRUE(optimizer->step().applied);
      const bool is_lost = reduction != Reduction::exact && scale == 1.0;
      EXPECT_EQ(masters_of(*optimizer, 0), (Numbers{is_lost ? 0.0F : -0x1p-24F, -0x1p-20F}))
          << reduction_name(reduction) << ' ' << scale;
    }
  }
}

}  // namespace
}  // namespace vsr::optim::test
