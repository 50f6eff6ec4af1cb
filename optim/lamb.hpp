// SPDX-License-Identifier: Apache-2.0
// LAMB as a LibTorch optimizer: LibTorch has none, so this is what a user hands to Fp16Optimizer to
// train with it, and what steps FP32 parameters without Fp16Optimizer.
#pragma once

#include <torch/torch.h>

#include <tuple>
#include <utility>
#include <vector>

namespace vsr::optim {

/// Options of Lamb; the defaults are those of the paper.
struct LambOptions : public torch::optim::OptimizerCloneableOptions<LambOptions> {
  explicit LambOptions(double lr = 1e-3);
  TORCH_ARG(double, lr) = 1e-3;
  typedef std::tuple<double, double> betas_t;
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-6;
  /// Decoupled: added to the direction before its norm is taken.
  TORCH_ARG(double, weight_decay) = 0.0;
  /// Adapt parameters without weight decay too; otherwise their trust ratio is 1.
  TORCH_ARG(bool, adapt_always) = false;

 public:
  double get_lr() const override { return lr(); }
  void set_lr(const double lr) override { this->lr(lr); }
};

/// State of one parameter: FP32, of the parameter's shape.
struct LambParamState : public torch::optim::OptimizerCloneableParamState<LambParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(torch::Tensor, exp_avg);
  TORCH_ARG(torch::Tensor, exp_avg_sq);
};

/// Layer-wise adaptive Adam. Source: You et al., arXiv 1904.00962, algorithm 2, with bias
/// correction and phi(x) = x. Trust ratios are per parameter.
class Lamb : public torch::optim::Optimizer {
 public:
  /// @throws ConfigurationError for a negative rate, eps or decay and for betas outside [0, 1)
  explicit Lamb(std::vector<torch::optim::OptimizerParamGroup> param_groups,
                LambOptions defaults = LambOptions());
  explicit Lamb(std::vector<torch::Tensor> params, LambOptions defaults = LambOptions());

  torch::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace vsr::optim
