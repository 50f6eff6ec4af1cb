// SPDX-License-Identifier: Apache-2.0
// The LibTorch optimizer that a user hands over, read as plain options for each parameter.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "optim/arithmetic.hpp"
#include "optim/module_tensors.hpp"

namespace vsr::optim {

/// Adam or AdamW with its param groups; only options are used, never its step or its state.
class InnerOptimizer {
 public:
  /// @throws ConfigurationError for any other optimizer and for amsgrad
  explicit InnerOptimizer(std::unique_ptr<torch::optim::Optimizer> inner);

  /// All parameters in group order, named param_0, param_1, …
  std::vector<NamedParameter> parameters() const;
  /// Fix the order in which options() answers.
  /// @throws ConfigurationError when a trainable one is in no group, or a group holds one that is
  ///         not given here
  void bind(std::span<const NamedParameter> parameters);
  /// The options of each parameter at this moment; a frozen one outside all groups has defaults.
  std::vector<AdamOptions> options() const;

  double lr() const;
  void set_lr(double lr);
  torch::optim::Optimizer& get() noexcept { return *inner_; }

 private:
  std::unique_ptr<torch::optim::Optimizer> inner_;
  bool decoupled_ = false;
  std::vector<std::ptrdiff_t> groups_;  // of each parameter, or -1
};

}  // namespace vsr::optim
