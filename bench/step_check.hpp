// SPDX-License-Identifier: Apache-2.0
// What the step benchmark steps, and the plain loop that its result is compared with before it is
// timed: a wrong step can be as fast as it likes.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "bench/bench_support.hpp"
#include "optim/fp16_optimizer.hpp"

namespace vsr::bench {

/// Loss scale of all measurements, ours and the peers': no gradient here overflows.
inline constexpr double kLossScale = 1024.0;
inline constexpr double kMaxNorm = 1.0;

/// FP16 weights and biases of a stack of linear layers, the same on all ranks.
std::vector<torch::Tensor> make_parameters(const Options& options);
/// FP16 gradients of one leaf for these parameters; `seed` tells leaves and steps apart.
std::vector<torch::Tensor> make_gradients(const std::vector<torch::Tensor>& parameters,
                                          std::uint64_t seed);
/// A loss (zero) whose backward pass costs next to nothing and gives each parameter its gradient.
torch::Tensor loss_with_gradients(const std::vector<torch::Tensor>& parameters,
                                  const std::vector<torch::Tensor>& gradients);
/// Adam as in all measurements over these parameters. Collective.
std::unique_ptr<optim::Fp16Optimizer> make_optimizer(const std::vector<torch::Tensor>& parameters,
                                                     comm::Communicator& world, double lr,
                                                     optim::Reduction reduction);

/// Two steps of a small network against a plain FP64 loop: masters to FP32 accuracy, replicas
/// exactly the rounded masters. Collective.
/// @returns the relative error of the movement of the masters, the largest of all ranks
/// @throws DivergedError when it is larger than the rounding of the reduction allows
double check_step(comm::Communicator& world, optim::Reduction reduction);

}  // namespace vsr::bench
