// SPDX-License-Identifier: Apache-2.0
#include "comm/shard.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "comm/error.hpp"

namespace vsr::comm {
namespace {

TEST(Shard, CoversEverythingInRankOrderInWholeBlocks) {
  for (int world = 1; world <= 9; ++world) {
    for (std::int64_t blocks = 0; blocks <= 20; ++blocks) {
      std::int64_t next = 0;
      for (int rank = 0; rank < world; ++rank) {
        const Interval shard = shard_of(blocks * kBlockElements, rank, world);
        EXPECT_EQ(shard.begin, next);
        EXPECT_EQ(shard.size() % kBlockElements, 0);
        const std::int64_t share = shard.size() / kBlockElements;
        EXPECT_GE(share, blocks / world);
        EXPECT_LE(share, (blocks + world - 1) / world);
        next = shard.end;
      }
      EXPECT_EQ(next, blocks * kBlockElements);
    }
  }
}

TEST(Shard, FiveBlocksOnThreeRanks) {
  EXPECT_EQ(shard_of(5 * 1024, 0, 3), (Interval{0, 2048}));
  EXPECT_EQ(shard_of(5 * 1024, 1, 3), (Interval{2048, 4096}));
  EXPECT_EQ(shard_of(5 * 1024, 2, 3), (Interval{4096, 5120}));
}

TEST(Shard, FewerBlocksThanRanksLeavesEmptyOnes) {
  EXPECT_FALSE(shard_of(1024, 0, 4).is_empty());
  EXPECT_TRUE(shard_of(1024, 1, 4).is_empty());
  EXPECT_TRUE(shard_of(0, 0, 1).is_empty());
}

TEST(Shard, RefusesWhatIsNoSharding) {
  EXPECT_THROW(shard_of(1000, 0, 1), ArgumentError);
  EXPECT_THROW(shard_of(-1024, 0, 1), ArgumentError);
  EXPECT_THROW(shard_of(1024, 2, 2), ArgumentError);
  EXPECT_THROW(shard_of(1024, -1, 2), ArgumentError);
  EXPECT_THROW(shard_of(1024, 0, 0), ArgumentError);
  try {
    shard_of(1024, 5, 4);
    FAIL() << "nothing thrown";
  } catch (const ArgumentError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 5 of a world of 4"), std::string::npos);
  }
}

TEST(Shard, Padding) {
  EXPECT_EQ(padded_to_block(0), 0);
  EXPECT_EQ(padded_to_block(1), 1024);
  EXPECT_EQ(padded_to_block(1024), 1024);
  EXPECT_EQ(padded_to_block(1025), 2048);
  EXPECT_THROW(padded_to_block(-1), ArgumentError);
  EXPECT_THROW(padded_to_block(std::numeric_limits<std::int64_t>::max()), ArgumentError);
}

TEST(Interval, CommonPart) {
  EXPECT_EQ(intersect({0, 10}, {5, 20}), (Interval{5, 10}));
  EXPECT_EQ(intersect({0, 10}, {2, 3}), (Interval{2, 3}));
  EXPECT_TRUE(intersect({0, 10}, {10, 20}).is_empty());
  const Interval apart = intersect({0, 5}, {8, 9});
  EXPECT_TRUE(apart.is_empty());
  EXPECT_EQ(apart.size(), 0);
}

}  // namespace
}  // namespace vsr::comm
