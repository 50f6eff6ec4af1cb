// SPDX-License-Identifier: Apache-2.0
// Every collective of the MPI backend against a closed form in (rank, index), with whole messages
// and cut into small ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "comm/device/device.hpp"
#include "comm/error.hpp"
#include "comm/half_sum.hpp"
#include "comm/mpi_check.hpp"
#include "comm/mpi_communicator.hpp"
#include "tests/support/mpi_world.hpp"

namespace vsr::comm {
namespace {

using test::world;

std::byte byte_of(int rank, std::size_t index) {
  return static_cast<std::byte>((rank * 31 + static_cast<int>(index % 1009) * 7 + 3) & 0xff);
}

std::vector<std::byte> bytes_of(int rank, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = byte_of(rank, i);
  return bytes;
}

// Parameter: largest message in bytes; 40 makes many pieces that are no multiple of anything.
class CommunicatorTest : public testing::TestWithParam<std::size_t> {
 protected:
  MpiCommunicator comm_{MpiOptions{.chunk_bytes = GetParam()}};
  const int rank_ = comm_.rank();
  const int world_ = comm_.world();
};

INSTANTIATE_TEST_SUITE_P(Messages, CommunicatorTest,
                         testing::Values(std::size_t{1} << 30, std::size_t{40}),
                         [](const auto& instance) {
                           return instance.param > 1000 ? std::string("whole") : std::string("cut");
                         });

TEST_P(CommunicatorTest, KnowsWhoItIs) {
  EXPECT_EQ(comm_.backend(), "mpi");
  EXPECT_EQ(comm_.rank(), world().rank());
  EXPECT_FALSE(comm_.host().empty());
  ASSERT_EQ(comm_.node_ranks().size(), static_cast<std::size_t>(world_));  // tests run on one node
  for (int r = 0; r < world_; ++r) EXPECT_EQ(comm_.node_ranks()[static_cast<std::size_t>(r)], r);
  EXPECT_EQ(comm_.sent_bytes(), 0);
  comm_.barrier();
  EXPECT_EQ(comm_.sent_bytes(), 0);
}

TEST_P(CommunicatorTest, BroadcastsFromEveryRoot) {
  for (int root = 0; root < world_; ++root) {
    for (const std::size_t size : {0, 1, 39, 40, 41, 5000}) {
      std::vector<std::byte> data = bytes_of(rank_, size);
      comm_.broadcast_bytes(data, root);
      EXPECT_EQ(data, bytes_of(root, size));
    }
  }
  std::vector<double> values(3, rank_ == 0 ? 2.5 : -1.0);
  comm_.broadcast(std::span<double>(values), 0);
  EXPECT_EQ(values, std::vector<double>(3, 2.5));
  const std::int64_t as_root = (0 + 1 + 39 + 40 + 41 + 5000) * (world_ - 1);
  EXPECT_EQ(comm_.sent_bytes(), as_root + (rank_ == 0 ? 24 * (world_ - 1) : 0));
}

TEST_P(CommunicatorTest, GathersUnevenSizesInRankOrder) {
  std::vector<std::size_t> sizes;
  std::vector<std::byte> expected;
  for (int r = 0; r < world_; ++r) {
    sizes.push_back(r == 1 ? 0 : 100 * static_cast<std::size_t>(r) + 7);
    const auto part = bytes_of(r, sizes.back());
    expected.insert(expected.end(), part.begin(), part.end());
  }
  const auto own = static_cast<std::size_t>(rank_);
  const std::vector<std::byte> mine = bytes_of(rank_, sizes[own]);
  std::vector<std::byte> all(expected.size());
  comm_.all_gather_bytes(mine, all, sizes);
  EXPECT_EQ(all, expected);
  EXPECT_EQ(comm_.sent_bytes(), static_cast<std::int64_t>(mine.size()) * (world_ - 1));

  std::fill(all.begin(), all.end(), std::byte{0});
  const auto start = std::accumulate(sizes.begin(), sizes.begin() + rank_, std::size_t{0});
  const std::span<std::byte> place = std::span<std::byte>(all).subspan(start, sizes[own]);
  std::copy(mine.begin(), mine.end(), place.begin());
  comm_.all_gather_bytes(place, all, sizes);
  EXPECT_EQ(all, expected) << "in place";
}

TEST_P(CommunicatorTest, GathersNothingAndOneValue) {
  const std::vector<std::size_t> zeros(static_cast<std::size_t>(world_), 0);
  comm_.all_gather_bytes({}, {}, zeros);
  const std::vector<double> squares = comm_.all_gather(0.5 * rank_ * rank_);
  ASSERT_EQ(squares.size(), static_cast<std::size_t>(world_));
  for (int r = 0; r < world_; ++r) EXPECT_EQ(squares[static_cast<std::size_t>(r)], 0.5 * r * r);
}

TEST_P(CommunicatorTest, GathersStrings) {
  const std::string mine = rank_ == 0 ? "" : std::string(static_cast<std::size_t>(30 * rank_), 'x');
  const std::vector<std::string> all = comm_.all_gather_strings(mine);
  ASSERT_EQ(all.size(), static_cast<std::size_t>(world_));
  for (std::size_t r = 0; r < all.size(); ++r) EXPECT_EQ(all[r], std::string(30 * r, 'x'));
}

TEST_P(CommunicatorTest, BroadcastsStrings) {
  const std::string text("with a \0 inside and longer than forty bytes", 43);
  EXPECT_EQ(comm_.broadcast_string(rank_ == world_ - 1 ? text : "ignored", world_ - 1), text);
  EXPECT_EQ(comm_.broadcast_string(rank_ == 0 ? "" : "ignored", 0), "");
}

TEST_P(CommunicatorTest, ExchangesUnevenSpans) {
  const auto size_of = [](int from, int to) {
    return from == to + 1 ? std::size_t{0} : static_cast<std::size_t>(from * 50 + to * 3);
  };
  std::vector<std::vector<std::byte>> sent, received, expected;
  std::vector<std::span<const std::byte>> outgoing;
  std::vector<std::span<std::byte>> incoming;
  std::int64_t sent_bytes = 0;
  for (int r = 0; r < world_; ++r) {
    sent.push_back(bytes_of(rank_ * 10 + r, size_of(rank_, r)));
    received.emplace_back(size_of(r, rank_));
    expected.push_back(bytes_of(r * 10 + rank_, size_of(r, rank_)));
    if (r != rank_) sent_bytes += static_cast<std::int64_t>(sent.back().size());
  }
  outgoing.assign(sent.begin(), sent.end());
  incoming.assign(received.begin(), received.end());
  comm_.exchange_bytes(outgoing, incoming);
  EXPECT_EQ(received, expected);
  EXPECT_EQ(comm_.sent_bytes(), sent_bytes);
}

TEST_P(CommunicatorTest, SumsFp16) {
  constexpr std::size_t kSize = 1003;
  std::vector<std::uint16_t> values(kSize);
  for (std::size_t i = 0; i < kSize; ++i) {  // whole numbers: every order gives the same sum
    values[i] = float_to_fp16(static_cast<float>(static_cast<int>(i % 101) - 50 + rank_));
  }
  comm_.all_reduce_sum_fp16(values);
  for (std::size_t i = 0; i < kSize; ++i) {
    const int sum = world_ * (static_cast<int>(i % 101) - 50) + world_ * (world_ - 1) / 2;
    ASSERT_EQ(fp16_to_float(values[i]), static_cast<float>(sum)) << i;
  }
  EXPECT_EQ(comm_.sent_bytes(), 2 * 2 * static_cast<std::int64_t>(kSize) * (world_ - 1) / world_);
}

TEST_P(CommunicatorTest, OverflowOfAnFp16SumIsInf) {
  std::vector<std::uint16_t> values(50, float_to_fp16(rank_ == 0 ? 65504.0f : 32.0f));
  values[7] = float_to_fp16(rank_ == world_ - 1 ? std::numeric_limits<float>::quiet_NaN() : 1.0f);
  comm_.all_reduce_sum_fp16(values);
  EXPECT_EQ(values[7], 0x7e00);
  EXPECT_EQ(values[8], world_ == 1 ? 0x7bff : 0x7c00);
}

TEST_P(CommunicatorTest, SumsBf16AndFp32) {
  constexpr std::size_t kSize = 515;
  std::vector<std::uint16_t> halves(kSize);
  std::vector<float> floats(kSize);
  for (std::size_t i = 0; i < kSize; ++i) {
    halves[i] = float_to_bf16(static_cast<float>(static_cast<int>(i % 17) + rank_));
    floats[i] = static_cast<float>(i) * 0.25f + static_cast<float>(rank_);
  }
  comm_.all_reduce_sum_bf16(halves);
  comm_.all_reduce_sum_fp32(floats);
  const auto ranks = static_cast<float>(world_);
  const float sum_of_ranks = ranks * (ranks - 1) / 2;
  for (std::size_t i = 0; i < kSize; ++i) {
    ASSERT_EQ(bf16_to_float(halves[i]), ranks * static_cast<float>(i % 17) + sum_of_ranks) << i;
    ASSERT_EQ(floats[i], ranks * static_cast<float>(i) * 0.25f + sum_of_ranks) << i;
  }
  comm_.all_reduce_sum_fp16({});
  comm_.all_reduce_sum_fp32({});
}

TEST_P(CommunicatorTest, RefusesSizesThatCannotBeRight) {
  std::vector<std::byte> ten(10);
  const std::vector<std::size_t> sizes(static_cast<std::size_t>(world_), 10);
  EXPECT_THROW(comm_.broadcast_bytes(ten, world_), ArgumentError);
  EXPECT_THROW(comm_.all_gather_bytes(ten, std::span<std::byte>(ten).first(9), sizes),
               ArgumentError);
  EXPECT_THROW(comm_.all_gather_bytes(std::span<std::byte>(ten).first(3), ten, sizes),
               ArgumentError);
  EXPECT_THROW(comm_.all_gather_bytes({}, {}, {}), ArgumentError);
  EXPECT_THROW(comm_.exchange_bytes({}, {}), ArgumentError);
  comm_.barrier();
}

TEST(CommunicatorErrors, NodesCanBeCutForTests) {
  const MpiCommunicator pairs(MpiOptions{.ranks_per_node = 2});
  const int first = pairs.rank() / 2 * 2;
  ASSERT_FALSE(pairs.node_ranks().empty());
  EXPECT_EQ(pairs.node_ranks().front(), first);
  EXPECT_EQ(pairs.node_ranks().back(), std::min(first + 1, pairs.world() - 1));
}

TEST(CommunicatorErrors, OptionsOutOfRange) {
  EXPECT_THROW(MpiCommunicator(MpiOptions{.chunk_bytes = 0}), ArgumentError);
  EXPECT_THROW(MpiCommunicator(MpiOptions{.chunk_bytes = std::size_t{1} << 31}), ArgumentError);
  EXPECT_THROW(MpiCommunicator(MpiOptions{.ranks_per_node = -1}), ArgumentError);
}

TEST(CommunicatorErrors, MessageNamesRankHostAndCall) {
  try {
    check_mpi(1, "MPI_Send(data, 1)");
    FAIL() << "nothing thrown";
  } catch (const CommError& error) {
    const std::string text = error.what();
    const std::string who = "rank " + std::to_string(world().rank()) + "/" +
                            std::to_string(world().world()) + " on " + world().host();
    EXPECT_EQ(text.find(who + ": MPI_Send failed: "), 0u) << text;
    EXPECT_EQ(error.exit_code(), ExitCode::communication);
    EXPECT_NE(error.where().find("communicator_test.cpp"), std::string::npos);
  }
}

TEST(CommunicatorErrors, ExchangeOfDifferentSizesIsAnError) {
  if (world().world() < 2) GTEST_SKIP() << "needs two ranks";
  for (const std::size_t room : {50, 150}) {
    MpiCommunicator comm;  // its own, so that nothing of the failed exchange can meet later ones
    std::vector<std::byte> sent(100);
    std::vector<std::byte> received(room);
    std::vector<std::span<const std::byte>> outgoing(static_cast<std::size_t>(comm.world()));
    std::vector<std::span<std::byte>> incoming(static_cast<std::size_t>(comm.world()));
    if (comm.rank() == 0) outgoing[1] = sent;
    if (comm.rank() == 1) incoming[0] = received;
    if (comm.rank() == 1) {
      EXPECT_THROW(comm.exchange_bytes(outgoing, incoming), CommError);
    } else {
      comm.exchange_bytes(outgoing, incoming);
    }
    comm.barrier();
  }
}

TEST(MakeCommunicator, BackendsOfThisBuild) {
  EXPECT_EQ(make_communicator(Backend::mpi)->backend(), "mpi");
  EXPECT_EQ(make_communicator(Backend::automatic)->backend(), "mpi");
  if (find_devices().count > 0) return;
  try {
    make_communicator(Backend::nccl);
    FAIL() << "nothing thrown";
  } catch (const Error& error) {  // no CUDA in this build, or no GPU on this machine
    EXPECT_NE(std::string(error.what()).find("--backend mpi"), std::string::npos) << error.what();
    EXPECT_EQ(error.exit_code(), ExitCode::configuration);
  }
}

class AgreeTest : public testing::Test {
 protected:
  // Run `action` under agree_all_ok and give what came out, on every rank.
  static AgreedError failure_of(const std::function<void()>& action) {
    try {
      world().agree_all_ok("reading the list", action);
    } catch (const AgreedError& error) {
      return error;
    }
    ADD_FAILURE() << "agreed that all is well";
    return {ExitCode::ok, "", -1};
  }
  const int rank_ = world().rank();
  const int last_ = world().world() - 1;
};

TEST_F(AgreeTest, AllWell) {
  int calls = 0;
  world().agree_all_ok("counting", [&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST_F(AgreeTest, OneRankFailsWithAnErrorOfOurs) {
  const AgreedError error = failure_of([&] {
    if (rank_ == last_) throw DataError("clip.mp4 holds no video");
  });
  EXPECT_EQ(error.exit_code(), ExitCode::data);
  EXPECT_STREQ(error.what(), "clip.mp4 holds no video");
  EXPECT_EQ(error.rank(), last_);
}

TEST_F(AgreeTest, LowestOfSeveralFailuresCounts) {
  const int lowest = std::min(1, last_);
  const AgreedError error = failure_of([&] {
    if (rank_ >= lowest) throw IoError("disk of rank " + std::to_string(rank_));
  });
  EXPECT_EQ(error.exit_code(), ExitCode::io);
  EXPECT_EQ(std::string(error.what()), "disk of rank " + std::to_string(lowest));
  EXPECT_EQ(error.rank(), lowest);
}

TEST_F(AgreeTest, ForeignExceptionsNameWhatWasDone) {
  const AgreedError known = failure_of([] { throw std::length_error("too long"); });
  EXPECT_EQ(known.exit_code(), ExitCode::internal);
  EXPECT_STREQ(known.what(), "reading the list: too long");
  EXPECT_EQ(known.rank(), 0);
  const AgreedError unknown = failure_of([] { throw 7; });
  EXPECT_EQ(unknown.exit_code(), ExitCode::internal);
  EXPECT_STREQ(unknown.what(), "reading the list: an exception of unknown type");
}

TEST_F(AgreeTest, NestedAgreementPassesThroughUnchanged) {
  const AgreedError error = failure_of([&] {
    world().agree_all_ok("inner", [&] {
      if (rank_ == last_) throw ConfigurationError("inner reason");
    });
  });
  EXPECT_EQ(error.exit_code(), ExitCode::configuration);
  EXPECT_STREQ(error.what(), "inner reason");
  EXPECT_EQ(error.rank(), last_);
}

TEST_F(AgreeTest, FailureOfMpiPassesThrough) {
  EXPECT_THROW(world().agree_all_ok("talking", [] { check_mpi(1, "MPI_Recv()"); }), CommError);
  world().barrier();
}

}  // namespace
}  // namespace vsr::comm
