// SPDX-License-Identifier: Apache-2.0
#include "optim/lamb.hpp"

#include <cmath>
#include <memory>

#include "optim/update_rule.hpp"

namespace vsr::optim {
namespace {

void step_parameter(torch::Tensor& parameter, LambParamState& state, const LambOptions& o) {
  const torch::Tensor& gradient = parameter.grad();
  if (!state.exp_avg().defined()) {
    state.exp_avg(torch::zeros_like(parameter));
    state.exp_avg_sq(torch::zeros_like(parameter));
  }
  state.step(state.step() + 1);
  const auto [beta1, beta2] = o.betas();
  const auto t = static_cast<double>(state.step());
  state.exp_avg().mul_(beta1).add_(gradient, 1 - beta1);
  state.exp_avg_sq().mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
  const torch::Tensor root = (state.exp_avg_sq() / (1 - std::pow(beta2, t))).sqrt_();
  torch::Tensor direction = state.exp_avg() / (1 - std::pow(beta1, t)) / root.add_(o.eps());
  direction.add_(parameter, o.weight_decay());
  double ratio = 1.0;
  if (o.weight_decay() != 0.0 || o.adapt_always()) {
    const auto master = parameter.norm().item<double>();
    const auto length = direction.norm().item<double>();
    if (master > 0 && length > 0) ratio = master / length;
  }
  parameter.add_(direction, -o.lr() * ratio);
}

}  // namespace

LambOptions::LambOptions(double lr) : lr_(lr) {}

Lamb::Lamb(std::vector<torch::optim::OptimizerParamGroup> param_groups, LambOptions defaults)
    : Optimizer(std::move(param_groups), std::make_unique<LambOptions>(defaults)) {
  for (const auto& group : param_groups_) check_options(group.options(), "Lamb");
}

Lamb::Lamb(std::vector<torch::Tensor> params, LambOptions defaults)
    : Lamb({torch::optim::OptimizerParamGroup(std::move(params))}, std::move(defaults)) {}

torch::Tensor Lamb::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure != nullptr) {
    const torch::AutoGradMode with_gradients(true);
    loss = closure();
  }
  const torch::NoGradGuard no_gradients;
  for (auto& group : param_groups_) {
    const auto& options = static_cast<const LambOptions&>(group.options());
    for (torch::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto& state = state_[parameter.unsafeGetTensorImpl()];
      if (state == nullptr) state = std::make_unique<LambParamState>();
      step_parameter(parameter, static_cast<LambParamState&>(*state), options);
    }
  }
  return loss;
}

}  // namespace vsr::optim
