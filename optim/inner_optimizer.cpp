// SPDX-License-Identifier: Apache-2.0
#include "optim/inner_optimizer.hpp"

#include <string>
#include <unordered_map>

#include "comm/error.hpp"

namespace vsr::optim {
namespace {

template <typename Options>
AdamOptions read(const torch::optim::OptimizerOptions& base, bool decoupled) {
  const auto& options = static_cast<const Options&>(base);
  if (options.amsgrad())
    throw ConfigurationError("amsgrad is not supported in this version; use Adam or AdamW without");
  return {options.lr(),  std::get<0>(options.betas()), std::get<1>(options.betas()),
          options.eps(), options.weight_decay(),       decoupled};
}

AdamOptions read_group(const torch::optim::OptimizerParamGroup& group, bool decoupled) {
  return decoupled ? read<torch::optim::AdamWOptions>(group.options(), true)
                   : read<torch::optim::AdamOptions>(group.options(), false);
}

}  // namespace

InnerOptimizer::InnerOptimizer(std::unique_ptr<torch::optim::Optimizer> inner)
    : inner_(std::move(inner)) {
  VSR_CHECK(inner_ != nullptr, "there is no inner optimizer");
  decoupled_ = dynamic_cast<torch::optim::AdamW*>(inner_.get()) != nullptr;
  if (!decoupled_ && dynamic_cast<torch::optim::Adam*>(inner_.get()) == nullptr)
    throw ConfigurationError(
        "the inner optimizer has an unsupported type; this version steps torch::optim::Adam and "
        "torch::optim::AdamW");
  for (const auto& group : inner_->param_groups()) read_group(group, decoupled_);
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
    for (const torch::Tensor& tensor : group.params())
      group_of.emplace(tensor.unsafeGetTensorImpl(), index);
    ++index;
  }
  groups_.clear();
  for (const NamedParameter& parameter : parameters) {
    const auto found = group_of.find(parameter.replica.unsafeGetTensorImpl());
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

std::vector<AdamOptions> InnerOptimizer::options() const {
  std::vector<AdamOptions> of_group;
  for (const auto& group : inner_->param_groups())
    of_group.push_back(read_group(group, decoupled_));
  std::vector<AdamOptions> options;
  for (const std::ptrdiff_t group : groups_)
    options.push_back(group < 0 ? AdamOptions() : of_group[static_cast<std::size_t>(group)]);
  return options;
}

double InnerOptimizer::lr() const {
  return read_group(inner_->param_groups().front(), decoupled_).lr;
}

void InnerOptimizer::set_lr(double lr) {
  for (auto& group : inner_->param_groups()) group.options().set_lr(lr);
}

}  // namespace vsr::optim
