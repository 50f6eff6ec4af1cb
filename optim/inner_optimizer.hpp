// SPDX-License-Identifier: Apache-2.0
// The LibTorch optimizer that a user hands over: its param groups, its options, and the rule that
// steps shards with them.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "optim/module_tensors.hpp"
#include "optim/update_rule.hpp"

namespace vsr::optim {

/// An element-wise optimizer, or Lamb, with its param groups in stable order.
class InnerOptimizer {
 public:
  /// @throws ConfigurationError for an optimizer that cannot be sharded, with the reason
  explicit InnerOptimizer(std::unique_ptr<torch::optim::Optimizer> inner);

  /// All parameters in group order, named param_0, param_1, …
  std::vector<NamedParameter> parameters() const;
  /// Fix the order of parameters for group_of().
  /// @throws ConfigurationError when a trainable one is in no group, or a group holds one that is
  ///         not given here
  void bind(std::span<const NamedParameter> parameters);
  /// @throws ConfigurationError when a trainable one is in no group: it was thawed since bind()
  void require_groups(std::span<const NamedParameter> parameters) const;
  /// Append a group; `parameters` are all parameters afterwards, the bound ones first.
  /// @throws ConfigurationError when it holds a parameter that another group has or that is not
  ///         given here
  void add_group(const torch::optim::OptimizerParamGroup& group,
                 std::span<const NamedParameter> parameters);
  /// What the optimizer remembers of parameter `parameter`, before the shard takes it over.
  std::optional<ParameterState> state_of(std::size_t parameter, const torch::Tensor& replica);

  /// Group of each bound parameter, or -1 for a frozen one outside all groups.
  GroupOf group_of() const noexcept { return groups_; }
  UpdateRule& rule() const noexcept { return *rule_; }

  /// The type of the optimizer, for comparing ranks.
  std::string kind() const;
  /// Rate of the first group.
  double lr() const;
  /// Sets the rate of all groups. @throws ArgumentError unless finite and at least 0
  void set_lr(double lr);
  /// Numbers of all groups, in group order.
  std::vector<std::map<std::string, double>> options() const;
  /// @throws ArgumentError when the number of groups or their kind differs, before anything changed
  void set_options(std::span<const std::map<std::string, double>> groups);
  torch::optim::Optimizer& get() noexcept { return *inner_; }

 private:
  std::unique_ptr<torch::optim::Optimizer> inner_;
  std::unique_ptr<UpdateRule> rule_;
  std::vector<std::ptrdiff_t> groups_;
};

}  // namespace vsr::optim
