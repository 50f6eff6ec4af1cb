// SPDX-License-Identifier: Apache-2.0
#include "runtime/video/random.hpp"

#include <bit>
#include <string>

#include "comm/error.hpp"

namespace vsr::runtime {
namespace {

constexpr int kPhiloxRounds = 10;
constexpr int kFeistelRounds = 8;

std::uint32_t low_word(std::uint64_t value) {
  return static_cast<std::uint32_t>(value);
}
std::uint32_t high_word(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32);
}

// Two halves that may differ by one bit, so that the network's domain is the next power of two and
// a walk takes less than two tries on average.
class Feistel {
 public:
  Feistel(std::uint64_t key, int bits)
      : key_(key), low_bits_(bits / 2), high_bits_(bits - bits / 2) {}

  std::uint64_t map(std::uint64_t value) const {
    std::uint64_t low = value & mask(low_bits_);
    std::uint64_t high = value >> low_bits_;
    for (int round = 0; round < kFeistelRounds; round += 2) {
      high ^= scramble(low, round) & mask(high_bits_);
      low ^= scramble(high, round + 1) & mask(low_bits_);
    }
    return (high << low_bits_) | low;
  }

 private:
  static std::uint64_t mask(int bits) { return (std::uint64_t{1} << bits) - 1; }

  std::uint64_t scramble(std::uint64_t half, int round) const {
    const auto words =
        philox4x32({low_word(half), high_word(half), static_cast<std::uint32_t>(round), 0},
                   {low_word(key_), high_word(key_)});
    return (std::uint64_t{words[1]} << 32) | words[0];
  }

  std::uint64_t key_;
  int low_bits_;
  int high_bits_;
};

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) noexcept {
  // Multipliers and key increments are those of the publication (golden ratio, sqrt(3) - 1).
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kIncrement0 = 0x9E3779B9;
  constexpr std::uint32_t kIncrement1 = 0xBB67AE85;
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {high_word(product1) ^ counter[1] ^ key[0], low_word(product1),
               high_word(product0) ^ counter[3] ^ key[1], low_word(product0)};
    key[0] += kIncrement0;
    key[1] += kIncrement1;
  }
  return counter;
}

std::array<std::uint32_t, 4> RandomStream::words(std::uint64_t counter) const noexcept {
  return philox4x32({low_word(counter), high_word(counter), low_word(stream_), high_word(stream_)},
                    {low_word(seed_), high_word(seed_)});
}

double RandomStream::uniform(std::uint64_t counter) const noexcept {
  const auto drawn = words(counter);
  const std::uint64_t bits = (std::uint64_t{drawn[1]} << 32) | drawn[0];
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

std::int64_t index_below(std::uint32_t word, std::int64_t count) noexcept {
  return static_cast<std::int64_t>((std::uint64_t{word} * static_cast<std::uint64_t>(count)) >> 32);
}

std::uint64_t derive_key(std::uint64_t seed, std::uint64_t number) noexcept {
  const auto words = RandomStream(seed, 0x6b657973).words(number);
  return (std::uint64_t{words[1]} << 32) | words[0];
}

std::int64_t permute(std::uint64_t key, std::int64_t n, std::int64_t i) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 62;
  VSR_CHECK(i >= 0 && i < n && n <= kLargest,
            "element " + std::to_string(i) + " of a permutation of " + std::to_string(n));
  const int needed = std::bit_width(static_cast<std::uint64_t>(n - 1));
  const Feistel network(key, needed < 2 ? 2 : needed);
  auto value = static_cast<std::uint64_t>(i);
  do {
    value = network.map(value);
  } while (value >= static_cast<std::uint64_t>(n));
  return static_cast<std::int64_t>(value);
}

}  // namespace vsr::runtime
