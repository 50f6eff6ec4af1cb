// SPDX-License-Identifier: Apache-2.0
// Damages bytes at random, the same way for the same seed, for readers that must survive anything.
#pragma once

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <string_view>

namespace vsr::test {

/// What readers of numbers stumble over.
inline constexpr std::array<std::string_view, 12> kNumbers = {
    "0",   "-1", "1",    "9223372036854775807", "-9223372036854775808", "18446744073709551615",
    "2e9", "[]", "null", "288230376151711744",  "4294967296",           "\"x\""};

/// The first number in decimal digits after `at` becomes another one.
inline void replace_number(std::string& bytes, std::size_t at, std::size_t index) {
  const std::size_t begin = bytes.find_first_of("0123456789", at);
  if (begin == std::string::npos) return;
  const std::size_t end = std::min(bytes.find_first_not_of("0123456789", begin), bytes.size());
  bytes.replace(begin, end - begin, kNumbers[index]);
}

/// A change of the kind that disks, transfers and people with intentions make.
inline std::string mutated(std::string bytes, std::mt19937& random) {
  const auto below = [&](std::size_t end) {
    return std::uniform_int_distribution<std::size_t>(0, end - 1)(random);
  };
  const std::size_t changes = 1 + below(4);
  for (std::size_t i = 0; i < changes && !bytes.empty(); ++i) {
    const std::size_t at = below(bytes.size());
    switch (below(7)) {
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
      case 5:
        replace_number(bytes, at, below(kNumbers.size()));
        break;
      default:
        bytes.erase(at, 1 + below(16));
        break;
    }
  }
  return bytes;
}

}  // namespace vsr::test
