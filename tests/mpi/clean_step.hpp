// SPDX-License-Identifier: Apache-2.0
// Whether an optimizer that refused something trains on as if it had not.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "tests/mpi/given_gradients.hpp"

namespace vsr::optim::test {

/// One step with gradient 1 and lr 1, which shows that nothing of what failed is left.
inline void expect_next_step_clean(Fp16Optimizer& sgd, const std::vector<NamedParameter>& w) {
  const Numbers before = masters_of(sgd, 0);
  const std::int64_t applied = sgd.applied_steps();
  run_given(sgd, w, std::vector<std::vector<Numbers>>(16, {Numbers(before.size(), 1.0F)}));
  EXPECT_TRUE(sgd.step().applied);
  EXPECT_EQ(sgd.applied_steps(), applied + 1);
  Numbers expected;
  for (const float value : before) expected.push_back(value - 1.0F);
  EXPECT_EQ(masters_of(sgd, 0), expected);
}

}  // namespace vsr::optim::test
