// SPDX-License-Identifier: Apache-2.0
// Networks exported as TorchScript know keyword arguments, which C++ modules do not. This wrapper
// does for them what Fp16Module does for C++ modules: FP32 values in and out, positional or by
// keyword, reduced inside.
#pragma once

#include <torch/script.h>

#include <string>
#include <vector>

#include "optim/module_tensors.hpp"
#include "runtime/precision/precision.hpp"
#include "runtime/precision/replica.hpp"

namespace vsr::runtime {

/// Which parts of a scripted network keep FP32 parameters and buffers.
///
/// Nothing can be put between the calls of a script, so no cast is added: normalisation computes in
/// FP32 on reduced input, and a script that names other modules here must cast at their borders
/// itself, as `x.to(self.head.weight.dtype)`.
struct KeepScriptInFp32 {
  /// BatchNorm1d to 3d, InstanceNorm1d to 3d, LayerNorm and GroupNorm, by the name of the class.
  bool normalisation = true;
  /// Paths of modules, such as "head"; everything below such a path is kept.
  std::vector<std::string> names{};
  /// Class names without module path, such as "Linear".
  std::vector<std::string> types{};
};

/// A scripted network: FP32 in, `precision` inside, FP32 out. Rank-free: never communicates.
class Fp16ScriptModule {
 public:
  /// Rounds the parameters and buffers of `module` in place; copies of `module` share them.
  /// @throws ConfigurationError for an FP64 parameter, or a kept name or type that `module` lacks
  explicit Fp16ScriptModule(torch::jit::Module module, Precision precision = Precision::fp16,
                            const KeepScriptInFp32& keep = {});

  /// Run `forward`: FP32 tensors at any depth of the arguments are cast, a tensor given twice once;
  /// reduced tensors at any depth of the result come back as FP32.
  /// @param args positional arguments   @param kwargs arguments by name
  /// @throws ConfigurationError with LibTorch's words where the script fails and modules are kept
  /// by
  ///         name or type; otherwise what LibTorch throws
  c10::IValue forward(const std::vector<c10::IValue>& args, const torch::jit::Kwargs& kwargs = {});
  c10::IValue operator()(const std::vector<c10::IValue>& args,
                         const torch::jit::Kwargs& kwargs = {}) {
    return forward(args, kwargs);
  }

  Precision precision() const noexcept { return precision_; }
  at::ScalarType dtype() const noexcept { return replica_dtype(precision_); }
  std::vector<torch::Tensor> parameters() const;
  /// As ReducedModule::named_buffers: tensor attributes that are no parameters.
  std::vector<optim::NamedBuffer> named_buffers() const;
  /// As ReducedModule::named_parameters_with_masters. @throws ArgumentError when called twice
  std::vector<optim::NamedParameter> named_parameters_with_masters() { return masters_.take(); }

  void train(bool on = true) { module_.train(on); }
  void eval() { module_.eval(); }
  torch::jit::Module& module() noexcept { return module_; }

 private:
  torch::jit::Module module_;
  Precision precision_;
  bool keeps_more_ = false;
  Masters masters_;
};

}  // namespace vsr::runtime
