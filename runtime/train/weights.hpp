// SPDX-License-Identifier: Apache-2.0
// A run that keeps a moving average has two networks; what is scored or used says which of them.
#pragma once

#include <string_view>

namespace vsr::runtime {

enum class Weights {
  masters,  ///< as the last step left them
  ema,      ///< the moving average of the masters
};

constexpr std::string_view to_string(Weights weights) {
  return weights == Weights::ema ? "ema" : "masters";
}

}  // namespace vsr::runtime
