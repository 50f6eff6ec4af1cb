// SPDX-License-Identifier: Apache-2.0
// What `--precision` chooses: the dtype in which parameters are held for forward and backward, and
// whether operations are cast one by one instead. Apart from the wrapper so that networks can use
// the border cast without knowing the wrapper.
#pragma once

#include <torch/torch.h>

#include <string>

namespace vsr::runtime {

/// fp32: nothing is rounded. fp16, bf16: parameters and activations in that dtype. amp: parameters
/// in FP32, each operation cast to FP16 or left in FP32 by LibTorch's autocast lists.
enum class Precision { fp32, fp16, bf16, amp };

/// Give the precision called `name`. @throws UsageError naming the four choices for any other name
Precision precision_from_name(const std::string& name);

/// Give the name that `precision_from_name` accepts.
std::string name_of(Precision precision);

/// Give the dtype of the parameter replica: FP32 for fp32 and amp.
at::ScalarType replica_dtype(Precision precision);

/// Cast `x` to the dtype of `weight`, the border at which a layer kept in FP32 meets FP16
/// neighbours. Networks call it before each layer, so that any layer can be kept by name. Returns
/// `x` itself where the dtypes agree, and under autocast, which does its own casts. Differentiable.
torch::Tensor at_border(const torch::Tensor& x, const torch::Tensor& weight);

/// While it lives, the calling thread runs `device` operations under autocast to FP16; afterwards
/// the former state is back, also after an exception, and the cache of cast weights is empty, even
/// inside another autocast scope: no stale weight survives a step.
class AutocastScope {
 public:
  explicit AutocastScope(at::DeviceType device);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  at::DeviceType device_;
  bool was_enabled_;
  at::ScalarType former_dtype_;
};

}  // namespace vsr::runtime
