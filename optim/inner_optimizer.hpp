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
  /// @throws ConfigurationError for an optimizer that cannot be sharded, with the reason, and for
  ///         options no step makes sense with
  explicit InnerOptimizer(std::unique_ptr<torch::optim::Optimizer> inner);

  /// All parameters in group order, named param_0, param_1, …
  std::vector<NamedParameter> parameters() const;
  /// Fix the order of parameters for group_of().
  /// @throws ConfigurationError when a trainable one is in no group, or a group holds one that is
  ///         not given here
  void bind(std::span<const NamedParameter> parameters);
  /// @throws ConfigurationError when a trainable one is in no group: it was thawed since bind()
  void require_groups(std::span<const NamedParameter> parameters) const;
  /// @throws ConfigurationError when `group` cannot be appended: it holds a parameter that another
  ///         group has or that is not among `parameters`, options of another kind, or such as no
  ///         step makes sense with
  void check_group(const torch::optim::OptimizerParamGroup& group,
                   std::span<const NamedParameter> parameters) const;
  /// Append a group that check_group() lets pass; `parameters` are all parameters afterwards, the
  /// bound ones first.
  void add_group(const torch::optim::OptimizerParamGroup& group,
                 std::span<const NamedParameter> parameters);
  /// Take back the last add_group(), before the rule is attached again.
  void remove_last_group();
  /// What the optimizer remembers of parameter `parameter`, before the shard takes it over.
  std::optional<ParameterState> state_of(std::size_t parameter, const torch::Tensor& replica);

  /// Group of each bound parameter, or -1 for a frozen one outside all groups.
  GroupOf group_of() const noexcept { return groups_; }
  UpdateRule& rule() const noexcept { return *rule_; }

  /// The type of the optimizer, such as "torch::optim::AdamW".
  std::string kind() const;
  /// Rate of the first group.
  double lr() const;
  /// Sets the rate of all groups. @throws ArgumentError unless finite and at least 0
  void set_lr(double lr);
  /// @throws ConfigurationError for options that no step makes sense with, or that call for arrays
  ///         the rule does not keep; they may have changed since they were checked last
  void check_options() const;
  /// XXH3-64 of the options of all groups.
  std::uint64_t options_hash() const;
  /// Numbers of all groups, in group order.
  std::vector<std::map<std::string, double>> options() const;
  /// @throws ArgumentError when the number of groups or their kind differs, or ConfigurationError
  ///         for numbers no step makes sense with
  void check_numbers(std::span<const std::map<std::string, double>> groups) const;
  /// What check_numbers() lets pass.
  void set_options(std::span<const std::map<std::string, double>> groups);
  /// @throws ArgumentError when somebody called step() of the inner optimizer itself
  void require_unstepped() const;
  torch::optim::Optimizer& get() noexcept { return *inner_; }

 private:
  /// groups_ with `group` appended.
  std::vector<std::ptrdiff_t> groups_with(const torch::optim::OptimizerParamGroup& group,
                                          std::span<const NamedParameter> parameters) const;

  std::unique_ptr<torch::optim::Optimizer> inner_;
  std::unique_ptr<UpdateRule> rule_;
  std::vector<std::ptrdiff_t> groups_;
};

}  // namespace vsr::optim
