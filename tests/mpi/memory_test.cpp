// SPDX-License-Identifier: Apache-2.0
// Memory per parameter, activations excluded: what a rank holds more, once an optimizer over 64 M
// FP16 parameters has stepped, than before the parameters existed. Measured as PSS, where a page
// that several ranks map counts for each of them in equal parts, so that a replica in shared memory
// counts once.
#include <gtest/gtest.h>
#include <malloc.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "comm/error.hpp"
#include "optim/fp16_optimizer.hpp"
#include "tests/support/mpi_world.hpp"

namespace vsr::optim {
namespace {

using torch::Tensor;
using vsr::test::world;

constexpr std::int64_t kTensors = 64;
constexpr std::int64_t kElements = std::int64_t{1} << 20;
constexpr double kLearningRate = 1.0 / 32;
// For what does not grow with the parameters: records of agree, code paged in, heaps, page borders.
constexpr double kSlack = 1.03;

// Without Pss_File: how much of a library a process is charged for hangs on who else runs it.
std::int64_t pss_bytes() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  std::int64_t bytes = 0;
  int found = 0;
  for (std::string line; std::getline(rollup, line);)
    for (const std::string_view name : {"Pss_Anon:", "Pss_Shmem:"})
      if (line.starts_with(name)) {
        bytes += std::stoll(line.substr(name.size())) * 1024;
        ++found;
      }
  if (found != 2) throw IoError("no Pss_Anon in /proc/self/smaps_rollup; it needs Linux 5.9");
  return bytes;
}

// All ranks read while none of them changes anything.
std::int64_t pss_of_quiet_ranks() {
  world().barrier();
  const std::int64_t bytes = pss_bytes();
  world().barrier();
  return bytes;
}

// Exact in FP16, also times 1024.
double gradient_of(std::int64_t tensor) {
  return static_cast<double>(tensor % 7 + 1) / 64;
}

// A loss with a constant gradient. Each parameter has a node of its own, so that autograd adds its
// gradient to the flat ones, and frees it, before it makes the next.
struct ConstantGradient : public torch::autograd::Function<ConstantGradient> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& parameter,
                        double gradient) {
    context->saved_data["shape"] = parameter.sizes();
    context->saved_data["gradient"] = gradient;
    return torch::zeros({}, torch::kFloat);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list output) {
    const double gradient = context->saved_data["gradient"].toDouble() * output[0].item<double>();
    return {torch::full(context->saved_data["shape"].toIntVector(), gradient, torch::kHalf),
            Tensor()};
  }
};

std::vector<Tensor> make_parameters(std::int64_t tensors, std::int64_t elements) {
  std::vector<Tensor> parameters;
  for (std::int64_t i = 0; i < tensors; ++i)
    parameters.push_back(torch::ones({elements}, torch::kHalf).set_requires_grad(true));
  return parameters;
}

std::unique_ptr<Fp16Optimizer> make_optimizer(const std::vector<Tensor>& parameters, int leaves) {
  Fp16OptimizerOptions options;
  options.static_loss_scale = 1024.0;
  options.leaves = leaves;
  auto adam =
      std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(kLearningRate));
  return std::make_unique<Fp16Optimizer>(std::move(adam), world(), std::move(options));
}

// A step clipped to norm 1; the norm before.
double step(Fp16Optimizer& optimizer, const std::vector<Tensor>& parameters) {
  optimizer.zero_grad();
  for (std::size_t leaf = 0; leaf < optimizer.my_leaves().size(); ++leaf) {
    Tensor loss = torch::zeros({}, torch::kFloat);
    for (std::size_t i = 0; i < parameters.size(); ++i)
      loss =
          loss + ConstantGradient::apply(parameters[i], gradient_of(static_cast<std::int64_t>(i)));
    optimizer.backward(loss);
  }
  const double norm = optimizer.clip_fp32_grads(1.0);
  EXPECT_TRUE(optimizer.step().applied);
  return norm;
}

double per_parameter(std::int64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(kTensors * kElements);
}

void print_row(int leaves_per_rank, double bound, double bytes, double with_heap) {
  const std::vector<double> all = world().all_gather(bytes);
  const std::vector<double> all_with_heap = world().all_gather(with_heap);
  if (world().rank() != 0) return;
  std::printf(
      "%d ranks, %d leaves per rank: bytes per parameter at most %.3f, measured %.3f to %.3f"
      " (%.3f with what free() had not returned yet)\n",
      world().world(), leaves_per_rank, bound, std::ranges::min(all), std::ranges::max(all),
      std::ranges::max(all_with_heap));
}

void expect_bytes_per_parameter(int leaves_per_rank, double shard_bytes) {
  const int leaves = leaves_per_rank * world().world();
  {  // pages the code in, and lets MPI make its buffers
    const std::vector<Tensor> parameters = make_parameters(2, 4096);
    step(*make_optimizer(parameters, leaves), parameters);
  }
  // What earlier cases freed must not hide what this one takes.
  malloc_trim(0);
  const std::int64_t before = pss_of_quiet_ranks();
  const std::vector<Tensor> parameters = make_parameters(kTensors, kElements);
  const auto optimizer = make_optimizer(parameters, leaves);
  if (!optimizer->shared_memory_notice().empty())
    GTEST_SKIP() << "the bound is that of shared memory: " << optimizer->shared_memory_notice();
  double squares = 0.0;
  for (std::int64_t i = 0; i < kTensors; ++i)
    squares += static_cast<double>(kElements) * gradient_of(i) * gradient_of(i);
  // The squares and their sums are small multiples of 2^-12: only the root is rounded.
  for (int t = 0; t < 2; ++t) EXPECT_DOUBLE_EQ(step(*optimizer, parameters), std::sqrt(squares));
  const std::int64_t with_heap = pss_of_quiet_ranks();
  // What autograd and the parameters' first home gave back is the C library's, which may keep it.
  malloc_trim(0);
  const std::int64_t after = pss_of_quiet_ranks();

  const double bytes = per_parameter(after - before);
  const double bound = 4.0 + shard_bytes / world().world();
  print_row(leaves_per_rank, bound, bytes, per_parameter(with_heap - before));
  EXPECT_LE(bytes, kSlack * bound);
  // Replica, gradients, master and two moments must be there: else the measurement is wrong.
  EXPECT_GE(bytes, 4.0 + 12.0 / world().world());
  // Two steps of Adam with a constant gradient move by twice the rate, less 1e-8 (eps) over the
  // clipped gradient, which FP16 rounds away.
  for (const Tensor& parameter : parameters) {
    EXPECT_EQ(parameter.min().item<float>(), 1.0F - 2.0F / 32);
    EXPECT_EQ(parameter.max().item<float>(), 1.0F - 2.0F / 32);
  }
}

TEST(Memory, OneLeafPerRank) {
  expect_bytes_per_parameter(1, 16.0);
}

TEST(Memory, TwoLeavesPerRank) {
  expect_bytes_per_parameter(2, 20.0);
}

}  // namespace
}  // namespace vsr::optim
