// SPDX-License-Identifier: Apache-2.0
// Parameters with gradients to order: the loss is the sum of products with the gradients wanted, so
// each parameter gets exactly those, times the loss scale.
#pragma once

#include <torch/torch.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "optim/fp16_optimizer.hpp"
#include "tests/support/mpi_world.hpp"

namespace vsr::optim::test {

using torch::Tensor;
using vsr::test::world;
using Numbers = std::vector<float>;

inline Tensor numbers(const Numbers& values) {
  return torch::tensor(values, torch::kFloat);
}

/// One parameter in `type` whose master is `values`.
inline NamedParameter parameter(const std::string& name, const Numbers& values,
                                torch::ScalarType type = torch::kHalf) {
  return {name, numbers(values).to(type).set_requires_grad(true), numbers(values)};
}

/// The loss whose gradients are `gradients`, one list a parameter.
inline Tensor loss_giving(const std::vector<NamedParameter>& parameters,
                          const std::vector<Numbers>& gradients) {
  Tensor loss = torch::zeros({});
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (!gradients[i].empty())
      loss = loss + (parameters[i].replica.to(torch::kFloat) * numbers(gradients[i])).sum();
  return loss;
}

inline std::vector<Tensor> tensors_of(const std::vector<NamedParameter>& parameters) {
  std::vector<Tensor> tensors;
  for (const NamedParameter& one : parameters) tensors.push_back(one.replica);
  return tensors;
}

template <typename Inner, typename Options>
std::unique_ptr<Fp16Optimizer> optimizer_for(const std::vector<NamedParameter>& parameters,
                                             const Options& inner, Fp16OptimizerOptions options) {
  options.parameters = parameters;
  return std::make_unique<Fp16Optimizer>(std::make_unique<Inner>(tensors_of(parameters), inner),
                                         world(), std::move(options));
}

/// Plain SGD with lr 1 unless said otherwise: a step subtracts the gradient.
inline std::unique_ptr<Fp16Optimizer> sgd_for(const std::vector<NamedParameter>& parameters,
                                              Fp16OptimizerOptions options, double lr = 1.0) {
  return optimizer_for<torch::optim::SGD>(parameters, torch::optim::SGDOptions(lr),
                                          std::move(options));
}

/// zero_grad and one backward a leaf; `leaves[l]` are the gradients of leaf l, one list a
/// parameter.
inline void run_given(Fp16Optimizer& optimizer, const std::vector<NamedParameter>& parameters,
                      const std::vector<std::vector<Numbers>>& leaves) {
  optimizer.zero_grad();
  for (const int leaf : optimizer.my_leaves())
    optimizer.backward(loss_giving(parameters, leaves[static_cast<std::size_t>(leaf)]));
}

/// The masters of parameter `index`, whole, on all ranks.
inline Numbers masters_of(Fp16Optimizer& optimizer, std::size_t index) {
  const ShardView view = optimizer.shard();
  Numbers mine;
  for (const ShardPiece& piece : view.pieces)
    if (piece.parameter == index)
      mine.insert(mine.end(), piece.values[0].begin(), piece.values[0].end());
  std::vector<std::size_t> counts;
  for (const std::size_t count : world().all_gather(mine.size())) counts.push_back(count);
  return world().all_gather(std::span<const float>(mine), counts);
}

inline Numbers numbers_of(const Tensor& tensor) {
  const Tensor flat = tensor.detach().to(torch::kFloat).contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

}  // namespace vsr::optim::test
