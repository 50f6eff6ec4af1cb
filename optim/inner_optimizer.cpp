// SPDX-License-Identifier: Apache-2.0
#include "optim/inner_optimizer.hpp"

#include <c10/util/Type.h>

#include <cmath>
#include <typeinfo>
#include <unordered_map>

#include "comm/error.hpp"
#include "optim/hash.hpp"

namespace vsr::optim {
namespace {

const void* identity(const torch::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl();
}

// Options are cast to the optimizer's own type wherever they are read.
void require_kind(const torch::optim::OptimizerParamGroup& group,
                  const torch::optim::Optimizer& inner) {
  if (!group.has_options()) return;
  const torch::optim::OptimizerOptions& options = group.options();
  const torch::optim::OptimizerOptions& expected = inner.defaults();
  if (typeid(options) != typeid(expected))
    throw ConfigurationError(
        "a param group has the options of another kind of optimizer; give it those of the inner "
        "optimizer");
}

}  // namespace

InnerOptimizer::InnerOptimizer(std::unique_ptr<torch::optim::Optimizer> inner)
    : inner_(std::move(inner)) {
  VSR_CHECK(inner_ != nullptr, "there is no inner optimizer");
  for (const auto& group : inner_->param_groups()) require_kind(group, *inner_);
  rule_ = make_update_rule(*inner_);
  check_options();
}

std::vector<NamedParameter> InnerOptimizer::parameters() const {
  std::vector<NamedParameter> parameters;
  for (const auto& group : inner_->param_groups())
    for (const torch::Tensor& tensor : group.params())
      parameters.push_back({"param_" + std::to_string(parameters.size()), tensor, {}});
  return parameters;
}

void InnerOptimizer::bind(std::span<const NamedParameter> parameters) {
  std::unordered_map<const void*, std::ptrdiff_t> group_of;
  std::ptrdiff_t index = 0;
  for (const auto& group : inner_->param_groups()) {
    for (const torch::Tensor& tensor : group.params()) group_of.emplace(identity(tensor), index);
    ++index;
  }
  groups_.clear();
  for (const NamedParameter& parameter : parameters) {
    const auto found = group_of.find(identity(parameter.replica));
    if (found == group_of.end() && parameter.replica.requires_grad())
      throw ConfigurationError("parameter " + parameter.name +
                               " is trainable but in no param group of the inner optimizer; add it "
                               "there or freeze it");
    groups_.push_back(found == group_of.end() ? -1 : found->second);
    if (found != group_of.end()) group_of.erase(found);
  }
  if (!group_of.empty())
    throw ConfigurationError("the inner optimizer holds " + std::to_string(group_of.size()) +
                             " parameters that are not among the named ones; name all of them");
}

void InnerOptimizer::require_groups(std::span<const NamedParameter> parameters) const {
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (groups_[i] < 0 && parameters[i].replica.requires_grad())
      throw ConfigurationError("parameter " + parameters[i].name +
                               " was thawed but is in no param group; give it to add_param_group");
}

std::vector<std::ptrdiff_t> InnerOptimizer::groups_with(
    const torch::optim::OptimizerParamGroup& group,
    std::span<const NamedParameter> parameters) const {
  std::unordered_map<const void*, std::size_t> index_of;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    index_of.emplace(identity(parameters[i].replica), i);
  std::vector<std::ptrdiff_t> groups = groups_;
  groups.resize(parameters.size(), -1);
  for (const torch::Tensor& tensor : group.params()) {
    const auto found = index_of.find(identity(tensor));
    VSR_CHECK(found != index_of.end(), "a parameter of the new group is not among all parameters");
    if (groups[found->second] >= 0)
      throw ConfigurationError("parameter " + parameters[found->second].name +
                               " is in a param group already");
    groups[found->second] = static_cast<std::ptrdiff_t>(inner_->param_groups().size());
  }
  return groups;
}

void InnerOptimizer::check_group(const torch::optim::OptimizerParamGroup& group,
                                 std::span<const NamedParameter> parameters) const {
  require_kind(group, *inner_);
  groups_with(group, parameters);
  if (group.has_options()) optim::check_options(group.options(), "the new param group");
}

void InnerOptimizer::add_group(const torch::optim::OptimizerParamGroup& group,
                               std::span<const NamedParameter> parameters) {
  std::vector<std::ptrdiff_t> groups = groups_with(group, parameters);
  inner_->add_param_group(group);
  groups_ = std::move(groups);
}

void InnerOptimizer::remove_last_group() {
  inner_->param_groups().pop_back();
  const auto removed = static_cast<std::ptrdiff_t>(inner_->param_groups().size());
  for (std::ptrdiff_t& group : groups_)
    if (group == removed) group = -1;
}

std::optional<ParameterState> InnerOptimizer::state_of(std::size_t parameter,
                                                       const torch::Tensor& replica) {
  const auto found = inner_->state().find(replica.unsafeGetTensorImpl());
  if (found == inner_->state().end() || groups_[parameter] < 0) return std::nullopt;
  return rule_->read_state(*found->second, static_cast<std::size_t>(groups_[parameter]));
}

std::string InnerOptimizer::kind() const {
  const torch::optim::Optimizer& inner = *inner_;
  return c10::demangle(typeid(inner).name());
}

void InnerOptimizer::check_options() const {
  std::size_t index = 0;
  for (const auto& group : inner_->param_groups())
    optim::check_options(group.options(), "param group " + std::to_string(index++));
  rule_->check_arrays();
}

std::uint64_t InnerOptimizer::options_hash() const {
  std::string bytes;
  for (const auto& group : inner_->param_groups()) append_options(group.options(), bytes);
  return xxh3_64_of_text(bytes);
}

void InnerOptimizer::require_unstepped() const {
  VSR_CHECK(rule_->is_state_ours() || inner_->state().empty(),
            "step() of the inner optimizer was called, which knows nothing of masters and ranks; "
            "call step() of the Fp16Optimizer only");
}

double InnerOptimizer::lr() const {
  VSR_CHECK(!inner_->param_groups().empty(), "the inner optimizer has no param group");
  return inner_->param_groups().front().options().get_lr();
}

void InnerOptimizer::set_lr(double lr) {
  VSR_CHECK(std::isfinite(lr) && lr >= 0.0,
            "got learning rate " + std::to_string(lr) + ", expected a finite number of at least 0");
  for (auto& group : inner_->param_groups()) group.options().set_lr(lr);
}

std::vector<std::map<std::string, double>> InnerOptimizer::options() const {
  std::vector<std::map<std::string, double>> groups;
  for (const auto& group : inner_->param_groups()) groups.push_back(read_options(group.options()));
  return groups;
}

void InnerOptimizer::check_numbers(std::span<const std::map<std::string, double>> groups) const {
  VSR_CHECK(groups.size() == inner_->param_groups().size(),
            "the state has " + std::to_string(groups.size()) +
                " param groups, this optimizer has " +
                std::to_string(inner_->param_groups().size()));
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto options = inner_->param_groups()[i].options().clone();
    write_options(*options, groups[i]);
    optim::check_options(*options, "param group " + std::to_string(i) + " of the state");
  }
}

void InnerOptimizer::set_options(std::span<const std::map<std::string, double>> groups) {
  for (std::size_t i = 0; i < groups.size(); ++i)
    write_options(inner_->param_groups()[i].options(), groups[i]);
}

}  // namespace vsr::optim
