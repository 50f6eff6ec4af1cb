// SPDX-License-Identifier: Apache-2.0
// Buffers of the node reached in memory, and the same buffers private when sharing is refused on
// all ranks, on one rank, or between nodes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "comm/error.hpp"
#include "comm/memory_room.hpp"
#include "comm/mpi_communicator.hpp"
#include "comm/peer_buffer.hpp"
#include "tests/support/mpi_world.hpp"

namespace vsr::comm {
namespace {

using test::world;

// Sets VSR_COMM_SHARED for one case.
class SharedSetting {
 public:
  explicit SharedSetting(const char* value) { setenv("VSR_COMM_SHARED", value, 1); }
  ~SharedSetting() { unsetenv("VSR_COMM_SHARED"); }
  SharedSetting(const SharedSetting&) = delete;
  SharedSetting& operator=(const SharedSetting&) = delete;
};

bool is_all_zero(std::span<const std::byte> bytes) {
  for (const std::byte byte : bytes) {
    if (byte != std::byte{0}) return false;
  }
  return true;
}

std::size_t open_files() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

TEST(PeerBuffer, EveryRankSeesTheWritesOfEveryOther) {
  constexpr std::size_t kBytes = 100'003;
  PeerBuffer buffer(world(), kBytes);
  EXPECT_TRUE(buffer.is_shared_with_all());
  EXPECT_EQ(buffer.notice(), "");
  ASSERT_EQ(buffer.mine().size(), kBytes);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.mine().data()) % 4096, 0u);
  EXPECT_TRUE(is_all_zero(buffer.mine()));
  world().barrier();
  const auto rank = static_cast<std::size_t>(world().rank());
  for (int peer = 0; peer < world().world(); ++peer) {
    ASSERT_EQ(buffer.of(peer).size(), kBytes);
    buffer.of(peer)[kBytes - 1 - rank] = static_cast<std::byte>(10 + rank);
  }
  world().barrier();
  for (std::size_t r = 0; r < static_cast<std::size_t>(world().world()); ++r) {
    EXPECT_EQ(buffer.mine()[kBytes - 1 - r], static_cast<std::byte>(10 + r));
  }
  EXPECT_TRUE(buffer.of(-1).empty());
  EXPECT_TRUE(buffer.of(world().world()).empty());
}

TEST(PeerBuffer, LeavesNoOpenFiles) {
  const std::size_t before = open_files();
  {
    const PeerBuffer buffer(world(), 4096);
    EXPECT_EQ(open_files(), before);
  }
  EXPECT_EQ(open_files(), before);
}

TEST(PeerBuffer, SmallSizesAndMoves) {
  for (const std::size_t bytes : {0, 1, 4096}) {
    PeerBuffer first(world(), bytes);
    EXPECT_EQ(first.mine().size(), bytes);
    const std::byte* place = first.mine().data();
    const PeerBuffer second(std::move(first));
    EXPECT_EQ(second.mine().data(), place);
  }
}

TEST(PeerBuffer, TwoBuffersDoNotMix) {
  PeerBuffer one(world(), 4096);
  PeerBuffer two(world(), 4096);
  one.mine()[0] = std::byte{1};
  two.mine()[0] = std::byte{2};
  world().barrier();
  for (int peer = 0; peer < world().world(); ++peer) {
    EXPECT_EQ(one.of(peer)[0], std::byte{1});
    EXPECT_EQ(two.of(peer)[0], std::byte{2});
  }
  world().barrier();
}

TEST(PeerBuffer, PrivateWhenAskedFor) {
  const SharedSetting setting("0");
  PeerBuffer buffer(world(), 10'000);
  EXPECT_NE(buffer.notice().find("VSR_COMM_SHARED=0"), std::string::npos) << buffer.notice();
  EXPECT_EQ(buffer.mine().size(), 10'000u);
  EXPECT_TRUE(is_all_zero(buffer.mine()));
  std::memset(buffer.mine().data(), world().rank() + 1, buffer.mine().size());
  world().barrier();
  EXPECT_EQ(buffer.mine()[9'999], static_cast<std::byte>(world().rank() + 1));
  for (int peer = 0; peer < world().world(); ++peer) {
    EXPECT_EQ(buffer.is_shared_with(peer), peer == world().rank());
  }
  EXPECT_EQ(buffer.is_shared_with_all(), world().world() == 1);
}

TEST(PeerBuffer, OneRankThatCannotShareIsEnoughToAgreeOnMessages) {
  const int last = world().world() - 1;
  const SharedSetting setting(world().rank() == last ? "0" : "1");
  const PeerBuffer buffer(world(), 5000);
  EXPECT_NE(buffer.notice().find("rank " + std::to_string(last) + ": "), std::string::npos)
      << buffer.notice();
  EXPECT_EQ(buffer.is_shared_with_all(), world().world() == 1);
  EXPECT_TRUE(is_all_zero(buffer.mine()));
}

TEST(PeerBuffer, OnlyRanksOfANodeShare) {
  MpiCommunicator pairs(MpiOptions{.ranks_per_node = 2});
  const PeerBuffer buffer(pairs, 5000);
  EXPECT_EQ(buffer.notice(), "");
  for (int peer = 0; peer < pairs.world(); ++peer) {
    EXPECT_EQ(buffer.is_shared_with(peer), peer / 2 == pairs.rank() / 2) << peer;
  }
}

TEST(PeerBuffer, OneNodeFallsBackAlone) {
  MpiCommunicator pairs(MpiOptions{.ranks_per_node = 2});
  const SharedSetting setting(pairs.rank() == 0 ? "0" : "1");
  const PeerBuffer buffer(pairs, 5000);
  const bool is_first_node = pairs.rank() < 2;
  EXPECT_EQ(buffer.notice().empty(), !is_first_node);
  for (int peer = 0; peer < pairs.world(); ++peer) {
    const bool is_shared = peer == pairs.rank() || (!is_first_node && peer / 2 == pairs.rank() / 2);
    EXPECT_EQ(buffer.is_shared_with(peer), is_shared) << peer;
  }
}

TEST(PeerBuffer, MoreMemoryThanThereIsEndsOnAllRanks) {
  constexpr std::size_t kTooMuch = std::size_t{1} << 60;
  try {
    const PeerBuffer buffer(world(), kTooMuch);
    FAIL() << "nothing thrown";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::communication);
    EXPECT_NE(std::string(error.what()).find(std::to_string(kTooMuch)), std::string::npos)
        << error.what();
  }
  world().barrier();
}

TEST(PeerBuffer, AWorldThatFitsOnlyInPartEndsOnAllRanks) {
  if (world().world() < 3) GTEST_SKIP() << "needs three ranks, each asking for half of the memory";
  std::size_t half = available_memory_bytes() / 2;
  world().broadcast(std::span<std::size_t>(&half, 1), 0);
  EXPECT_THROW(PeerBuffer(world(), half), AgreedError);
}

TEST(PeerBuffer, DifferentSizesAreRefused) {
  if (world().world() == 1) GTEST_SKIP() << "needs two ranks";
  EXPECT_THROW(PeerBuffer(world(), world().rank() == 0 ? 8192 : 4096), ArgumentError);
  world().barrier();
}

}  // namespace
}  // namespace vsr::comm
