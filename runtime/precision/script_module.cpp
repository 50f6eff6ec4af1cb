// SPDX-License-Identifier: Apache-2.0
#include "runtime/precision/script_module.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "comm/error.hpp"
#include "runtime/precision/convert.hpp"

namespace vsr::runtime {
namespace {

constexpr std::array<std::string_view, 8> kNormalisation{
    "BatchNorm1d",    "BatchNorm2d",    "BatchNorm3d", "InstanceNorm1d",
    "InstanceNorm2d", "InstanceNorm3d", "LayerNorm",   "GroupNorm"};

/// The class as its author called it: scripts of one class several times over have a mangled path,
/// but the last element stays.
std::string class_of(const torch::jit::Module& module) {
  const auto name = module.type()->name();
  return name ? name->name() : "";
}

bool contains(const auto& values, const auto& value) {
  return std::find(std::begin(values), std::end(values), value) != std::end(values);
}

std::string joined(const std::vector<std::string>& values) {
  std::string list;
  for (const std::string& value : values) list += (list.empty() ? "" : ", ") + value;
  return list;
}

void check_known(const std::vector<std::string>& wanted, std::vector<std::string> known,
                 const char* what) {
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  for (const std::string& name : wanted)
    if (!contains(known, name))
      throw ConfigurationError(std::string("no ") + what + " '" + name +
                               "' to keep in FP32; this script has " + joined(known));
}

using Kept = std::unordered_set<const at::TensorImpl*>;

Kept kept_tensors(const torch::jit::Module& network, const KeepScriptInFp32& keep) {
  Kept kept;
  std::vector<std::string> paths;
  std::vector<std::string> types;
  for (const auto& [path, module] : network.named_modules()) {
    const std::string type = class_of(module);
    types.push_back(type);
    if (!path.empty()) paths.push_back(path);
    if (!(keep.normalisation && contains(kNormalisation, type)) && !contains(keep.names, path) &&
        !contains(keep.types, type))
      continue;
    for (const auto& tensor : module.parameters()) kept.insert(tensor.unsafeGetTensorImpl());
    for (const auto& tensor : module.buffers()) kept.insert(tensor.unsafeGetTensorImpl());
  }
  check_known(keep.names, std::move(paths), "module");
  check_known(keep.types, std::move(types), "class");
  return kept;
}

at::DeviceType device_of(const torch::jit::Module& module) {
  for (const auto& parameter : module.parameters()) return parameter.device().type();
  return at::kCPU;
}

}  // namespace

Fp16ScriptModule::Fp16ScriptModule(torch::jit::Module module, Precision precision,
                                   const KeepScriptInFp32& keep)
    : module_(std::move(module)),
      precision_(precision),
      keeps_more_(!keep.names.empty() || !keep.types.empty()) {
  const Kept kept = kept_tensors(module_, keep);
  const auto is_kept = [&](const torch::Tensor& tensor) {
    return kept.contains(tensor.unsafeGetTensorImpl());
  };
  std::vector<optim::NamedParameter> parameters;
  for (const auto& item : module_.named_parameters())
    parameters.push_back({item.name, item.value, {}});
  masters_ = round_parameters(parameters, dtype(), is_kept);
  round_buffers(named_buffers(), dtype(), is_kept);
}

c10::IValue Fp16ScriptModule::forward(const std::vector<c10::IValue>& args,
                                      const torch::jit::Kwargs& kwargs) {
  if (precision_ == Precision::amp) {
    AutocastScope scope(device_of(module_));
    return fp16_to_fp32(module_.forward(args, kwargs));
  }
  Conversion cast(at::kFloat, dtype());
  try {
    const auto reduced = cast(args);
    return convert(module_.forward(reduced, cast(kwargs)), dtype(), at::kFloat);
  } catch (const std::exception& error) {
    if (!keeps_more_) throw;
    throw ConfigurationError(
        "the script failed; if dtypes differ, it does not cast at the borders of the modules kept "
        "in FP32, as x.to(self.head.weight.dtype) would; LibTorch says: " +
        std::string(error.what()));
  }
}

std::vector<torch::Tensor> Fp16ScriptModule::parameters() const {
  std::vector<torch::Tensor> result;
  for (const auto& parameter : module_.parameters()) result.push_back(parameter);
  return result;
}

std::vector<optim::NamedBuffer> Fp16ScriptModule::named_buffers() const {
  std::vector<optim::NamedBuffer> result;
  for (const auto& item : module_.named_buffers())
    if (item.value.defined()) result.push_back({item.name, item.value});
  return result;
}

}  // namespace vsr::runtime
