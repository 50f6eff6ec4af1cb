// SPDX-License-Identifier: Apache-2.0
#include "comm/shard.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "comm/error.hpp"

namespace vsr::comm {

Interval intersect(Interval a, Interval b) noexcept {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

std::int64_t padded_to_block(std::int64_t elements) {
  VSR_CHECK(elements >= 0, "got " + std::to_string(elements) + " elements");
  VSR_CHECK(elements <= std::numeric_limits<std::int64_t>::max() - kBlockElements,
            "got " + std::to_string(elements) + " elements, too many to pad");
  return (elements + kBlockElements - 1) / kBlockElements * kBlockElements;
}

Interval shard_of(std::int64_t padded_elements, int rank, int world) {
  VSR_CHECK(padded_elements >= 0 && padded_elements % kBlockElements == 0,
            "got " + std::to_string(padded_elements) + " elements, expected a multiple of " +
                std::to_string(kBlockElements));
  VSR_CHECK(rank >= 0 && rank < world,
            "got rank " + std::to_string(rank) + " of a world of " + std::to_string(world));
  const std::int64_t blocks = padded_elements / kBlockElements;
  const std::int64_t share = blocks / world;
  const std::int64_t with_one_more = blocks % world;
  const std::int64_t begin = rank * share + std::min<std::int64_t>(rank, with_one_more);
  const std::int64_t end = begin + share + (rank < with_one_more ? 1 : 0);
  return {begin * kBlockElements, end * kBlockElements};
}

}  // namespace vsr::comm
