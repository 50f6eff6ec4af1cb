// SPDX-License-Identifier: Apache-2.0
#include "runtime/precision/fp16_module.hpp"

#include "comm/error.hpp"

namespace vsr::runtime {
namespace {

const torch::nn::Module& existing(const std::shared_ptr<torch::nn::Module>& module) {
  VSR_CHECK(module != nullptr, "Fp16Module needs a network");
  return *module;
}

}  // namespace

ReducedModule::ReducedModule(std::shared_ptr<torch::nn::Module> module, Precision precision,
                             const KeepInFp32& keep, bool draws_borders)
    : module_(std::move(module)),
      precision_(precision),
      borders_(existing(module_), dtype(), keep, draws_borders) {
  std::vector<optim::NamedParameter> parameters;
  for (const auto& item : module_->named_parameters())
    parameters.push_back({item.key(), item.value(), {}});
  const auto is_kept = [this](const torch::Tensor& tensor) { return borders_.is_kept(tensor); };
  masters_ = round_parameters(parameters, dtype(), is_kept);
  round_buffers(named_buffers(), dtype(), is_kept);
}

std::vector<optim::NamedBuffer> ReducedModule::named_buffers() const {
  std::vector<optim::NamedBuffer> result;
  for (const auto& item : module_->named_buffers())
    if (item.value().defined()) result.push_back({item.key(), item.value()});
  return result;
}

at::DeviceType ReducedModule::device() const {
  for (const auto& parameter : module_->parameters()) return parameter.device().type();
  return at::kCPU;
}

}  // namespace vsr::runtime
