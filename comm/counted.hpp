// SPDX-License-Identifier: Apache-2.0
// Numbers of things in messages: "1 rank", but "2 ranks".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vsr {

/// `count` and its noun, `one` or with an s: "1 rank", "0 ranks", "12000 ranks".
inline std::string counted(std::int64_t count, std::string_view one) {
  return std::to_string(count) + " " + std::string(one) + (count == 1 ? "" : "s");
}

}  // namespace vsr
