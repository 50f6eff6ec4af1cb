// SPDX-License-Identifier: Apache-2.0
// Two optimizers over one parameter would round their masters into the same replica, the later one
// over the earlier: which parameters are taken is known in one place.
#pragma once

#include <span>
#include <vector>

#include "optim/module_tensors.hpp"

namespace vsr::optim {

/// The parameters one optimizer of this process trains, as long as it lives. Not copyable.
class ParameterClaim {
 public:
  ParameterClaim() = default;
  ~ParameterClaim();
  ParameterClaim(const ParameterClaim&) = delete;
  ParameterClaim& operator=(const ParameterClaim&) = delete;

  /// @throws ConfigurationError when a parameter that is not ours belongs to another claim
  void check(std::span<const NamedParameter> parameters) const;
  /// Claim those that are not ours yet.
  /// @throws ConfigurationError as check(), before anything changed
  void extend(std::span<const NamedParameter> parameters);

 private:
  std::vector<torch::Tensor> mine_;  // held, so that no other tensor gets their address
};

}  // namespace vsr::optim
