// SPDX-License-Identifier: Apache-2.0
#include "optim/parameter_claim.hpp"

#include <mutex>
#include <unordered_map>

#include "comm/error.hpp"

namespace vsr::optim {
namespace {

// By the tensor's own address: copies of a torch::Tensor are one parameter.
struct Claims {
  std::mutex mutex;
  std::unordered_map<const void*, const ParameterClaim*> owner_of;
};

Claims& claims() {
  static Claims all;
  return all;
}

// The caller holds the mutex.
void require_free(std::span<const NamedParameter> parameters, const ParameterClaim& claim) {
  for (const NamedParameter& parameter : parameters) {
    const auto found = claims().owner_of.find(parameter.replica.unsafeGetTensorImpl());
    if (found != claims().owner_of.end() && found->second != &claim)
      throw ConfigurationError("parameter " + parameter.name +
                               " is trained by another Fp16Optimizer, which must end before; for "
                               "other options give it a param group of its own");
  }
}

}  // namespace

ParameterClaim::~ParameterClaim() {
  const std::lock_guard lock(claims().mutex);
  for (const torch::Tensor& tensor : mine_) claims().owner_of.erase(tensor.unsafeGetTensorImpl());
}

void ParameterClaim::check(std::span<const NamedParameter> parameters) const {
  const std::lock_guard lock(claims().mutex);
  require_free(parameters, *this);
}

void ParameterClaim::extend(std::span<const NamedParameter> parameters) {
  const std::lock_guard lock(claims().mutex);
  require_free(parameters, *this);
  for (const NamedParameter& parameter : parameters)
    if (claims().owner_of.emplace(parameter.replica.unsafeGetTensorImpl(), this).second)
      mine_.push_back(parameter.replica);
}

}  // namespace vsr::optim
