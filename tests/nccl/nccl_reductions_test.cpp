// SPDX-License-Identifier: Apache-2.0
// The three reductions, with several leaves per rank and every element type: whole training steps
// over NCCL give the bits that they give over MPI, and put as many bytes on the wire.
#include <cstdlib>

#include "comm/communicator.hpp"
#include "optim/fp16_optimizer.hpp"
#include "tests/support/fake_nccl.hpp"
#include "tests/support/mpi_world.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace vsr::optim {
namespace {

using vsr::test::world;

struct Case {
  Reduction reduction;
  torch::ScalarType type;
  int leaves;
};

struct Result {
  std::string hash;
  std::vector<double> norms;
  std::int64_t sent_bytes = 0;
};

// Three steps of Adam with clipping on gradients that round in FP16, the second of which overflows.
Result train(comm::Communicator& ranks, const Case& c) {
  torch::manual_seed(5);
  std::vector<NamedParameter> parameters;
  for (const auto& [name, elements] : std::initializer_list<std::pair<const char*, std::int64_t>>{
           {"wide", 5003}, {"none", 0}, {"one", 1}, {"narrow", 1200}}) {
    const torch::Tensor values = torch::randn({elements});
    parameters.push_back({name, values.to(c.type).set_requires_grad(true), values});
  }
  std::vector<torch::Tensor> tensors;
  for (const NamedParameter& one : parameters) tensors.push_back(one.replica);
  Fp16OptimizerOptions options;
  options.reduction = c.reduction;
  options.static_loss_scale = 64;
  options.leaves = c.leaves;
  options.parameters = parameters;
  Fp16Optimizer optimizer(std::make_unique<torch::optim::Adam>(tensors, 1e-2), ranks, options);
  Result result;
  const std::int64_t before = ranks.sent_bytes();
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    for (const int leaf : optimizer.my_leaves()) {
      torch::manual_seed(100 * step + leaf);
      torch::Tensor loss = torch::zeros({});
      for (const NamedParameter& one : parameters)
        loss = loss + (one.replica.to(torch::kFloat) * torch::randn({one.replica.numel()})).sum();
      if (step == 1 && leaf == c.leaves - 1) loss = loss * INFINITY;
      optimizer.backward(loss);
    }
    result.norms.push_back(optimizer.clip_fp32_grads(0.5));
    EXPECT_EQ(optimizer.step().applied, step != 1);
  }
  result.hash = optimizer.masters_hash();
  result.sent_bytes = ranks.sent_bytes() - before;
  return result;
}

class Reductions : public testing::TestWithParam<Case> {};

TEST_P(Reductions, AreThoseOfTheMpiBackend) {
  torch::set_num_threads(1);
  ASSERT_EQ(world().backend(), "nccl");
  const auto mpi = comm::make_communicator(comm::Backend::mpi);
  const Result here = train(world(), GetParam());
  for (const char* shared : {"1", "0"}) {
    setenv("VSR_COMM_SHARED", shared, 1);
    const Result there = train(*mpi, GetParam());
    EXPECT_EQ(here.hash, there.hash);
    EXPECT_EQ(here.norms, there.norms);
    // A reduce-scatter takes the zeros of ranks without a leaf along, which MPI leaves out.
    const bool is_every_rank_busy = GetParam().leaves >= world().world();
    if (GetParam().reduction != Reduction::fast || is_every_rank_busy) {
      EXPECT_EQ(here.sent_bytes, there.sent_bytes);
    }
  }
  unsetenv("VSR_COMM_SHARED");
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Reduction reduction : {Reduction::exact, Reduction::allreduce, Reduction::fast})
    for (const auto type : {torch::kHalf, torch::kBFloat16, torch::kFloat})
      for (const int leaves : {1, 4, 7}) all.push_back({reduction, type, leaves});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Nccl, Reductions, testing::ValuesIn(cases()), [](const auto& one) {
  return std::string(reduction_name(one.param.reduction)) + torch::toString(one.param.type) +
         std::to_string(one.param.leaves);
});

}  // namespace
}  // namespace vsr::optim
