// SPDX-License-Identifier: Apache-2.0
// The program of docs/half_precision.md, word for word (half_precision_document compares them), and
// what that page says about it: dtypes, learning, equal ranks, and that the other precisions differ
// by one argument.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>

#include "tests/support/half_kernels.hpp"
#include "tests/support/mpi_world.hpp"

// --- docs/half_precision.md
#include <torch/torch.h>

#include <memory>

#include "comm/communicator.hpp"
#include "optim/fp16_optimizer.hpp"
#include "runtime/precision/fp16_module.hpp"

using namespace vsr;

using Net = runtime::Fp16Module<torch::nn::SequentialImpl>;

/// Fits y = f(x), both FP32, in 200 steps; gives the last step's report.
optim::StepReport fit(Net& net, const torch::Tensor& x, const torch::Tensor& y,
                      comm::Communicator& world) {
  optim::Fp16OptimizerOptions options{.dynamic_loss_scale = true};
  options.parameters = net.named_parameters_with_masters();
  options.buffers = net.named_buffers();
  optim::Fp16Optimizer optimizer(std::make_unique<torch::optim::Adam>(net.parameters(), 1e-2),
                                 world, options);
  optim::StepReport report;
  for (int step = 0; step < 200; ++step) {
    optimizer.zero_grad();
    optimizer.backward(torch::mse_loss(net(x), y));
    optimizer.clip_fp32_grads(1.0);
    report = optimizer.step();
  }
  return report;
}

/// FP16 inside; batch normalisation stays in FP32.
Net make_net(runtime::Precision precision = runtime::Precision::fp16) {
  const torch::nn::Sequential layers(torch::nn::Linear(1, 32), torch::nn::BatchNorm1d(32),
                                     torch::nn::ReLU(), torch::nn::Linear(32, 1));
  return Net(layers, precision);
}
// --- end

namespace {

using runtime::Precision;

/// One period of a sine.
torch::Tensor positions() {
  return torch::linspace(-1, 1, 64).unsqueeze(1);
}

TEST(HalfPrecisionPage, TheProgramLearnsInEveryPrecision) {
  const torch::Tensor x = positions();
  const torch::Tensor y = torch::sin(3.14159265 * x);  // mean square 0.5
  for (const auto precision : {Precision::fp16, Precision::bf16, Precision::amp, Precision::fp32}) {
    torch::manual_seed(1);
    Net net = make_net(precision);
    const auto report = fit(net, x, y, test::world());
    EXPECT_TRUE(report.applied);
    EXPECT_GT(report.applied_steps, 190);
    EXPECT_EQ(report.applied_steps + report.skipped_steps, 200);
    EXPECT_LT(report.loss, 0.01) << runtime::name_of(precision);
    EXPECT_GT(report.loss_scale, 1.0F);
    const auto parameters = net.parameters();
    for (const int linear : {0, 1, 4, 5})
      EXPECT_EQ(parameters[linear].scalar_type(), runtime::replica_dtype(precision));
    for (const int norm : {2, 3}) EXPECT_EQ(parameters[norm].scalar_type(), at::kFloat);
    for (const auto& buffer : net.named_buffers())
      EXPECT_NE(buffer.value.scalar_type(), at::kHalf) << buffer.name;
    const torch::Tensor output = net(x);
    EXPECT_EQ(output.scalar_type(), at::kFloat);
    // Every rank holds the same network.
    const auto sum = std::bit_cast<std::uint32_t>(output.sum().item<float>());
    for (const std::uint32_t other : test::world().all_gather(sum)) EXPECT_EQ(other, sum);
  }
}

}  // namespace
