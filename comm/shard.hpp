// SPDX-License-Identifier: Apache-2.0
// Who owns which elements. Every user of sharding asks these pure functions, so that there is one
// answer for any number of ranks.
#pragma once

#include <cstdint>

namespace vsr::comm {

/// Elements of one norm block; borders of shards and buckets are multiples of it, so that sums of
/// squares over blocks do not depend on how many ranks there are.
inline constexpr std::int64_t kBlockElements = 1024;

/// Half-open range of elements.
struct Interval {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const noexcept { return end - begin; }
  bool is_empty() const noexcept { return end <= begin; }
  friend bool operator==(const Interval&, const Interval&) = default;
};

/// The common part of two intervals; empty (begin == end) when they do not meet.
Interval intersect(Interval a, Interval b) noexcept;

/// Round `elements` up to a whole number of norm blocks.
std::int64_t padded_to_block(std::int64_t elements);

/// The part of `padded_elements` that `rank` of `world` owns: whole blocks, in rank order, sizes
/// differing by at most one block; empty for some ranks when there are fewer blocks than ranks.
/// @throws ArgumentError when padded_elements is negative or no multiple of kBlockElements, or rank
/// is
///         outside [0, world)
Interval shard_of(std::int64_t padded_elements, int rank, int world);

}  // namespace vsr::comm
