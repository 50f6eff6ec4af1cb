// SPDX-License-Identifier: Apache-2.0
// Damages bytes at random, the same way for the same seed, for readers that must survive anything.
#pragma once

#include <algorithm>
#include <random>
#include <string>

namespace vsr::test {

/// A change of the kind that disks, transfers and people with intentions make.
inline std::string mutated(std::string bytes, std::mt19937& random) {
  const auto below = [&](std::size_t end) {
    return std::uniform_int_distribution<std::size_t>(0, end - 1)(random);
  };
  const std::size_t changes = 1 + below(4);
  for (std::size_t i = 0; i < changes && !bytes.empty(); ++i) {
    const std::size_t at = below(bytes.size());
    switch (below(6)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(below(256));
        break;
      case 2:  // a number becomes large or negative
        for (std::size_t j = at; j < std::min(at + 1 + below(8), bytes.size()); ++j)
          bytes[j] = '\xff';
        break;
      case 3:
        bytes.resize(at);
        break;
      case 4:  // a part comes twice
        bytes.insert(below(bytes.size()), bytes.substr(at, 1 + below(64)));
        break;
      default:
        bytes.erase(at, 1 + below(16));
        break;
    }
  }
  return bytes;
}

}  // namespace vsr::test
