// SPDX-License-Identifier: Apache-2.0
// Rounding a network's own tensors in place. C++ modules and scripted modules hold them differently
// and decide differently what to keep; what happens to each tensor is the same and stands here.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <utility>
#include <vector>

#include "optim/module_tensors.hpp"

namespace vsr::runtime {

/// FP32 parameters from before rounding, given away once.
class Masters {
 public:
  Masters() = default;
  explicit Masters(std::vector<optim::NamedParameter> values) : values_(std::move(values)) {}

  /// Give each parameter with its master, and forget them here.
  /// @throws ArgumentError when called twice: the unrounded values are gone
  std::vector<optim::NamedParameter> take();

 private:
  std::vector<optim::NamedParameter> values_;
  bool taken_ = false;
};

/// Round parameters to `dtype` in place, but for those that `is_kept` names, and give each once
/// (tied ones under their first name) with its FP32 value from before. A parameter that stays FP32
/// shares storage with its master. Strides stay as they are.
/// @param parameters [in] replica and name; integer parameters are left out of the result
/// @throws ConfigurationError for a floating parameter that is not FP32, before any is changed
Masters round_parameters(const std::vector<optim::NamedParameter>& parameters, at::ScalarType dtype,
                         const std::function<bool(const torch::Tensor&)>& is_kept);

/// Round FP32 buffers to `dtype` in place, but for those that `is_kept` names.
void round_buffers(const std::vector<optim::NamedBuffer>& buffers, at::ScalarType dtype,
                   const std::function<bool(const torch::Tensor&)>& is_kept);

}  // namespace vsr::runtime
