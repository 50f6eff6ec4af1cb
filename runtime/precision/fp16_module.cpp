// SPDX-License-Identifier: Apache-2.0
#include "runtime/precision/fp16_module.hpp"

#include <algorithm>
#include <unordered_set>

#include "comm/error.hpp"

namespace vsr::runtime {
namespace {

template <class... Types>
bool is_any_of(const torch::nn::Module& module) {
  return (... || (module.as<Types>() != nullptr));
}

bool is_normalisation(const torch::nn::Module& module) {
  using namespace torch::nn;
  return is_any_of<BatchNorm1dImpl, BatchNorm2dImpl, BatchNorm3dImpl, InstanceNorm1dImpl,
                   InstanceNorm2dImpl, InstanceNorm3dImpl, LayerNormImpl, GroupNormImpl>(module);
}

/// `path` is `root` or lies below it.
bool is_within(const std::string& path, const std::string& root) {
  return path.compare(0, root.size(), root) == 0 &&
         (path.size() == root.size() || path[root.size()] == '.');
}

void check_names(const torch::nn::Module& module, const KeepInFp32& keep) {
  const auto modules = module.named_modules();
  for (const std::string& name : keep.names) {
    const auto known = modules.keys();
    if (!name.empty() && std::find(known.begin(), known.end(), name) != known.end()) continue;
    std::string list;
    for (const std::string& path : known)
      if (!path.empty()) list += (list.empty() ? "" : ", ") + path;
    throw ConfigurationError("no module '" + name + "' to keep in FP32; this network has " + list);
  }
}

/// Tensors of all modules that are kept, with what lies below them.
std::unordered_set<const at::TensorImpl*> kept_tensors(const torch::nn::Module& module,
                                                       const KeepInFp32& keep) {
  std::unordered_set<const at::TensorImpl*> kept;
  for (const auto& item : module.named_modules()) {
    const std::string& path = item.key();
    const torch::nn::Module& part = *item.value();
    const bool keep_this = (keep.normalisation && is_normalisation(part)) ||
                           (keep.also && keep.also(path, part)) ||
                           std::any_of(keep.names.begin(), keep.names.end(),
                                       [&](const auto& name) { return is_within(path, name); });
    if (!keep_this) continue;
    for (const auto& tensor : part.parameters()) kept.insert(tensor.unsafeGetTensorImpl());
    for (const auto& tensor : part.buffers()) kept.insert(tensor.unsafeGetTensorImpl());
  }
  return kept;
}

}  // namespace

ReducedModule::ReducedModule(std::shared_ptr<torch::nn::Module> module, Precision precision,
                             const KeepInFp32& keep)
    : module_(std::move(module)), precision_(precision) {
  VSR_CHECK(module_ != nullptr, "Fp16Module needs a network");
  check_names(*module_, keep);
  const auto kept = kept_tensors(*module_, keep);
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& item : module_->named_parameters()) {
    torch::Tensor parameter = item.value();
    if (!parameter.is_floating_point() || !seen.insert(parameter.unsafeGetTensorImpl()).second)
      continue;
    if (parameter.scalar_type() != at::kFloat)
      throw ConfigurationError("parameter " + item.key() + " is " +
                               c10::toString(parameter.scalar_type()) +
                               ", expected FP32 values to make the replica from");
    const torch::Tensor master = parameter.detach();
    if (!kept.contains(parameter.unsafeGetTensorImpl())) parameter.set_data(master.to(dtype()));
    masters_.push_back({item.key(), parameter, master});
  }
  for (torch::Tensor& buffer : module_->buffers())
    if (buffer.scalar_type() == at::kFloat && !kept.contains(buffer.unsafeGetTensorImpl()))
      buffer.set_data(buffer.to(dtype()));
}

std::vector<optim::NamedBuffer> ReducedModule::named_buffers() const {
  std::vector<optim::NamedBuffer> result;
  for (const auto& item : module_->named_buffers())
    if (item.value().defined()) result.push_back({item.key(), item.value()});
  return result;
}

std::vector<optim::NamedParameter> ReducedModule::named_parameters_with_masters() {
  if (handed_out_)
    throw ArgumentError(
        "named_parameters_with_masters was called before; the FP32 values from before rounding "
        "are given away once, so that they take no memory during training");
  handed_out_ = true;
  return std::exchange(masters_, {});
}

at::DeviceType ReducedModule::device() const {
  for (const auto& parameter : module_->parameters()) return parameter.device().type();
  return at::kCPU;
}

torch::Tensor forward_with_borders(torch::nn::SequentialImpl& net, torch::Tensor x) {
  for (torch::nn::AnyModule& module : net) {
    const auto parameters = module.ptr()->parameters();
    if (!parameters.empty()) x = at_border(x, parameters.front());
    x = module.forward(x);
  }
  return x;
}

}  // namespace vsr::runtime
