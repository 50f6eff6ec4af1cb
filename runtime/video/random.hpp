// SPDX-License-Identifier: Apache-2.0
// Random numbers without state: a value is a function of (seed, stream, counter), so any rank,
// worker or resumed run finds the same one without having drawn those before it.
#pragma once

#include <array>
#include <cstdint>

namespace vsr::runtime {

/// Philox4x32 with 10 rounds: four 32-bit words from a 128-bit counter and a 64-bit key.
/// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) noexcept;

/// The words of one stream of one seed. Cheap to copy, no state.
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::uint64_t stream) noexcept : seed_(seed), stream_(stream) {}

  /// Four independent uniform words for `counter`.
  std::array<std::uint32_t, 4> words(std::uint64_t counter) const noexcept;
  /// Uniform in [0, 1), multiples of 2^-53.
  double uniform(std::uint64_t counter) const noexcept;

 private:
  std::uint64_t seed_;
  std::uint64_t stream_;
};

/// Map a uniform 32-bit word to [0, count); bias below count / 2^32.
/// @param count 1 .. 2^31
std::int64_t index_below(std::uint32_t word, std::int64_t count) noexcept;

/// One 64-bit key out of several numbers, e.g. (seed, epoch).
std::uint64_t derive_key(std::uint64_t seed, std::uint64_t number) noexcept;

/// Where element `i` of [0, n) goes in the permutation chosen by `key`, in O(1) time and memory: a
/// Feistel network on the next power of two, walked until it lands inside [0, n).
/// @throws ArgumentError unless 0 <= i < n <= 2^62
std::int64_t permute(std::uint64_t key, std::int64_t n, std::int64_t i);

}  // namespace vsr::runtime
