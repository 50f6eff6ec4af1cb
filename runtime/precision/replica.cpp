// SPDX-License-Identifier: Apache-2.0
#include "runtime/precision/replica.hpp"

#include <unordered_set>

#include "comm/error.hpp"

namespace vsr::runtime {
namespace {

/// All are checked before any is rounded, so that a refused network is left as it was.
void check_floats(const std::vector<optim::NamedParameter>& parameters) {
  for (const auto& [name, parameter, master] : parameters)
    if (parameter.is_floating_point() && parameter.scalar_type() != at::kFloat)
      throw ConfigurationError("parameter " + name + " is " +
                               c10::toString(parameter.scalar_type()) +
                               ", expected FP32 values to make the replica from");
}

}  // namespace

std::vector<optim::NamedParameter> Masters::take() {
  if (taken_)
    throw ArgumentError(
        "named_parameters_with_masters was called before; the FP32 values from before rounding "
        "are given away once, so that they take no memory during training");
  taken_ = true;
  return std::exchange(values_, {});
}

Masters round_parameters(const std::vector<optim::NamedParameter>& parameters, at::ScalarType dtype,
                         const std::function<bool(const torch::Tensor&)>& is_kept) {
  check_floats(parameters);
  std::vector<optim::NamedParameter> masters;
  std::unordered_set<const at::TensorImpl*> seen;
  for (auto [name, parameter, unused] : parameters) {
    if (!parameter.is_floating_point() || !seen.insert(parameter.unsafeGetTensorImpl()).second)
      continue;
    const torch::Tensor master = parameter.detach();
    if (!is_kept(parameter)) parameter.set_data(master.to(dtype));
    masters.push_back({name, parameter, master});
  }
  return Masters(std::move(masters));
}

void round_buffers(const std::vector<optim::NamedBuffer>& buffers, at::ScalarType dtype,
                   const std::function<bool(const torch::Tensor&)>& is_kept) {
  for (auto [name, buffer] : buffers)
    if (buffer.defined() && buffer.scalar_type() == at::kFloat && !is_kept(buffer))
      buffer.set_data(buffer.to(dtype));
}

}  // namespace vsr::runtime
