// SPDX-License-Identifier: Apache-2.0
// Include in a test whose networks run as a rank of the program runs them: one thread, our kernels.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "runtime/precision/cpu_kernels.hpp"

namespace vsr::test {

class HalfKernels : public ::testing::Environment {
  void SetUp() override {
    torch::set_num_threads(1);
    runtime::install_cpu_half_kernels();
  }
};
[[maybe_unused]] inline const auto* const half_kernels =
    ::testing::AddGlobalTestEnvironment(new HalfKernels);

}  // namespace vsr::test
