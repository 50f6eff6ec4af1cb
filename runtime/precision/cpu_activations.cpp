// SPDX-License-Identifier: Apache-2.0
#include "runtime/precision/cpu_activations.hpp"

namespace vsr::runtime {
void register_activations(torch::Library&) {}
}  // namespace vsr::runtime
