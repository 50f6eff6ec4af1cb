// SPDX-License-Identifier: Apache-2.0
// Numbers in messages: std::to_string shows 1e-8 as 0.000000, and 16777217 must not look like 2^24.
#pragma once

#include <array>
#include <charconv>
#include <string>

namespace vsr::optim {

/// The shortest text that reads back to `value`.
inline std::string number_text(double value) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

}  // namespace vsr::optim
