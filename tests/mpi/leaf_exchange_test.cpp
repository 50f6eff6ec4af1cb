// SPDX-License-Identifier: Apache-2.0
// Slices and published shards against closed forms, in shared memory, by messages, and with nodes
// of two ranks where both are used at once.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "comm/error.hpp"
#include "comm/leaf_exchange.hpp"
#include "comm/mpi_communicator.hpp"

namespace vsr::comm {
namespace {

enum class Way { memory, messages, both };

// An FP16 segment that no world of 2 to 4 cuts evenly, an FP32 one with fewer blocks than 3 ranks,
// and an empty one.
std::vector<SegmentPlace> three_segments() {
  return {{0, 5 * kBlockElements, 2},
          {5 * kBlockElements * 2, 2 * kBlockElements, 4},
          {5 * kBlockElements * 2 + 2 * kBlockElements * 4, 0, 2}};
}
constexpr std::size_t kBufferBytes = 5 * kBlockElements * 2 + 2 * kBlockElements * 4;

std::byte byte_of(int rank, int round, std::size_t index) {
  return static_cast<std::byte>((rank * 37 + round * 11 + static_cast<int>(index % 4093) * 3) &
                                0xff);
}

class LeafExchangeTest : public testing::TestWithParam<Way> {
 protected:
  LeafExchangeTest() {
    setenv("VSR_COMM_SHARED", GetParam() == Way::messages ? "0" : "1", 1);
    const int ranks_per_node = GetParam() == Way::both ? 2 : 0;
    comm_ = std::make_unique<MpiCommunicator>(
        MpiOptions{.chunk_bytes = 1000, .ranks_per_node = ranks_per_node});
    buffer_ = std::make_unique<PeerBuffer>(*comm_, kBufferBytes);
    unsetenv("VSR_COMM_SHARED");
    rank_ = comm_->rank();
    world_ = comm_->world();
  }

  void fill_mine(int round) {
    const std::span<std::byte> mine = buffer_->mine();
    for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = byte_of(rank_, round, i);
  }

  // Bytes of one buffer that `rank` owns.
  std::int64_t owned_bytes(int rank) const {
    std::int64_t bytes = 0;
    for (const SegmentPlace& segment : segments_) {
      bytes += shard_of(segment.elements, rank, world_).size() *
               static_cast<std::int64_t>(segment.element_bytes);
    }
    return bytes;
  }

  std::size_t first_byte(std::size_t segment) const {
    const Interval shard = shard_of(segments_[segment].elements, rank_, world_);
    return segments_[segment].offset_bytes +
           static_cast<std::size_t>(shard.begin) * segments_[segment].element_bytes;
  }

  const std::vector<SegmentPlace> segments_ = three_segments();
  std::unique_ptr<MpiCommunicator> comm_;
  std::unique_ptr<PeerBuffer> buffer_;
  int rank_ = 0;
  int world_ = 1;
};

INSTANTIATE_TEST_SUITE_P(Ways, LeafExchangeTest,
                         testing::Values(Way::memory, Way::messages, Way::both),
                         [](const auto& instance) {
                           switch (instance.param) {
                             case Way::memory:
                               return std::string("memory");
                             case Way::messages:
                               return std::string("messages");
                             default:
                               return std::string("both");
                           }
                         });

TEST_P(LeafExchangeTest, OwnersReadTheirSliceOfEverySource) {
  LeafExchange exchange(*comm_, *buffer_, segments_);
  for (int round = 0; round < 5; ++round) {
    const int sources = round % (world_ + 1);
    fill_mine(round);
    const std::int64_t sent_before = comm_->sent_bytes();
    exchange.deliver(sources);
    const std::int64_t others = static_cast<std::int64_t>(kBufferBytes) - owned_bytes(rank_);
    EXPECT_EQ(comm_->sent_bytes() - sent_before, rank_ < sources ? others : 0);
    for (int source = 0; source < world_; ++source) {
      for (std::size_t segment = 0; segment < segments_.size(); ++segment) {
        const std::span<const std::byte> slice = exchange.slice(source, segment);
        if (source >= sources) {
          EXPECT_TRUE(slice.empty());
          continue;
        }
        const Interval shard = shard_of(segments_[segment].elements, rank_, world_);
        ASSERT_EQ(slice.size(),
                  static_cast<std::size_t>(shard.size()) * segments_[segment].element_bytes);
        for (std::size_t i = 0; i < slice.size(); ++i) {
          ASSERT_EQ(slice[i], byte_of(source, round, first_byte(segment) + i))
              << "source " << source << " segment " << segment << " byte " << i;
        }
      }
    }
    exchange.release();
    EXPECT_TRUE(exchange.slice(0, 0).empty());
  }
}

TEST_P(LeafExchangeTest, SlicesInMemoryAreTheBuffersThemselves) {
  LeafExchange exchange(*comm_, *buffer_, segments_);
  exchange.deliver(world_);
  for (int source = 0; source < world_; ++source) {
    if (!buffer_->is_shared_with(source)) continue;
    EXPECT_EQ(exchange.slice(source, 0).data(), buffer_->of(source).data() + first_byte(0));
  }
  exchange.release();
}

TEST_P(LeafExchangeTest, PublishedShardsReachEveryReplica) {
  ShardPublisher publisher(*comm_, *buffer_, segments_);
  for (int round = 0; round < 3; ++round) {
    for (std::size_t segment = 0; segment < segments_.size(); ++segment) {
      for (const std::span<std::byte> place : publisher.destinations(segment)) {
        for (std::size_t i = 0; i < place.size(); ++i) {
          place[i] = byte_of(rank_, round, first_byte(segment) + i);
        }
      }
    }
    const std::int64_t sent_before = comm_->sent_bytes();
    publisher.publish();
    EXPECT_EQ(comm_->sent_bytes() - sent_before, owned_bytes(rank_) * (world_ - 1));
    for (int owner = 0; owner < world_; ++owner) {
      for (const SegmentPlace& segment : segments_) {
        const Interval shard = shard_of(segment.elements, owner, world_);
        const auto size = static_cast<std::int64_t>(segment.element_bytes);
        for (std::int64_t i = shard.begin * size; i < shard.end * size; ++i) {
          const std::size_t at = segment.offset_bytes + static_cast<std::size_t>(i);
          ASSERT_EQ(buffer_->mine()[at], byte_of(owner, round, at)) << "byte " << at;
        }
      }
    }
    comm_->barrier();  // owners may write again when all have read
  }
}

TEST_P(LeafExchangeTest, OwnShardComesFirstAmongDestinations) {
  const ShardPublisher publisher(*comm_, *buffer_, segments_);
  const auto places = publisher.destinations(0);
  EXPECT_EQ(places.front().data(), buffer_->mine().data() + first_byte(0));
  std::size_t in_reach = 0;
  for (int peer = 0; peer < world_; ++peer) in_reach += buffer_->is_shared_with(peer) ? 1 : 0;
  EXPECT_EQ(places.size(), in_reach);
}

TEST_P(LeafExchangeTest, RefusesWhatCannotBeRight) {
  const std::vector<std::vector<SegmentPlace>> wrong = {
      {{0, kBlockElements + 1, 2}}, {{0, -kBlockElements, 2}},
      {{0, kBlockElements, 0}},     {{2, static_cast<std::int64_t>(kBufferBytes) / 2, 2}},
      {{kBufferBytes + 1, 0, 2}},
  };
  for (const auto& segments : wrong) {
    EXPECT_THROW(LeafExchange(*comm_, *buffer_, segments), ArgumentError);
    EXPECT_THROW(ShardPublisher(*comm_, *buffer_, segments), ArgumentError);
  }
  LeafExchange exchange(*comm_, *buffer_, segments_);
  EXPECT_THROW(exchange.deliver(-1), ArgumentError);
  EXPECT_THROW(exchange.deliver(world_ + 1), ArgumentError);
  EXPECT_THROW(exchange.slice(world_, 0), ArgumentError);
  EXPECT_THROW(exchange.slice(0, segments_.size()), ArgumentError);
}

}  // namespace
}  // namespace vsr::comm
