// SPDX-License-Identifier: Apache-2.0
// Every bulk call of the NCCL backend against a closed form or the MPI backend, whole and in
// pieces, and the order of streams around it.
#include <algorithm>
#include <numeric>

#include "comm/device/device_plan.hpp"
#include "comm/error.hpp"
#include "comm/half_sum.hpp"
#include "tests/nccl/nccl_fixture.hpp"
#include "tests/support/error_messages.hpp"

namespace vsr::comm {
namespace {

std::byte byte_of(int rank, std::size_t i) {
  return static_cast<std::byte>((rank * 31 + static_cast<int>(i % 1009) * 7 + 3) & 0xff);
}

// Numbers whose FP16 sums depend on the order.
std::uint16_t half_of(int rank, std::size_t i) {
  const auto spread = static_cast<float>((i * 37 + static_cast<std::size_t>(rank) * 101) % 997);
  return float_to_fp16((rank % 2 == 0 ? 1.0F : -1.0F) * spread * 1.37F);
}

std::uint16_t brain_of(int rank, std::size_t i) {
  return float_to_bf16(fp16_to_float(half_of(rank, i)));
}

// Parameter: largest message in bytes.
class NcclBulk : public NcclTest, public testing::WithParamInterface<std::size_t> {
 protected:
  NcclCommunicator& started() { return start({.chunk_bytes = GetParam()}); }
};
INSTANTIATE_TEST_SUITE_P(Messages, NcclBulk, testing::Values(std::size_t{1} << 30, std::size_t{48}),
                         [](const auto& one) {
                           return one.param > 1000 ? std::string("whole") : std::string("cut");
                         });

TEST_P(NcclBulk, SaysWhoItIsAndKeepsControlTrafficOnTheHost) {
  NcclCommunicator& comm = started();
  EXPECT_EQ(comm.backend(), "nccl");
  EXPECT_EQ(comm.bulk_device(), device_);
  EXPECT_TRUE(comm.reduces_on_the_way());
  const std::vector<int> all = comm.all_gather(rank_ * 3);
  for (int r = 0; r < world_; ++r) EXPECT_EQ(all[static_cast<std::size_t>(r)], r * 3);
  EXPECT_EQ(comm.broadcast_string(rank_ == 0 ? "text" : "", 0), "text");
  EXPECT_THROW(comm.agree_all_ok("trying",
                                 [&] {
                                   if (rank_ == world_ - 1) throw IoError("no");
                                 }),
               AgreedError);
  for (const char* call : {"all_gather", "broadcast", "send", "all_reduce"})
    EXPECT_EQ(fake_->calls(call), 0) << call;
}

TEST_P(NcclBulk, BroadcastsFromEveryRoot) {
  NcclCommunicator& comm = started();
  for (int root = 0; root < world_; ++root) {
    for (const std::size_t size : {1, 47, 48, 49, 5000}) {
      const BulkMemory memory(comm, size);
      for (std::size_t i = 0; i < size; ++i) memory.bytes()[i] = byte_of(rank_, i);
      comm.broadcast_bulk(memory.bytes(), root);
      for (std::size_t i = 0; i < size; ++i) ASSERT_EQ(memory.bytes()[i], byte_of(root, i));
    }
  }
  comm.broadcast_bulk({}, 0);
  EXPECT_THROW(comm.broadcast_bulk({}, world_), ArgumentError);
}

TEST_P(NcclBulk, GathersEqualAndUnequalParts) {
  NcclCommunicator& comm = started();
  for (const std::size_t more : {0, 13}) {
    std::vector<std::size_t> sizes;
    for (int r = 0; r < world_; ++r) sizes.push_back(100 + more * static_cast<std::size_t>(r));
    const BulkMemory all(comm, std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}));
    std::size_t at = 0;
    for (int r = 0; r < world_; ++r)
      for (std::size_t i = 0; i < sizes[static_cast<std::size_t>(r)]; ++i, ++at)
        if (r == rank_) all.bytes()[at] = byte_of(r, i);
    comm.all_gather_bulk(all.bytes(), sizes);
    at = 0;
    for (int r = 0; r < world_; ++r)
      for (std::size_t i = 0; i < sizes[static_cast<std::size_t>(r)]; ++i, ++at)
        ASSERT_EQ(all.bytes()[at], byte_of(r, i)) << r << ' ' << i;
  }
}

TEST_P(NcclBulk, ExchangesSeveralAtOnceInTheirOrder) {
  NcclCommunicator& comm = started();
  const std::int64_t before = comm.sent_bytes();
  const auto ranks = static_cast<std::size_t>(world_);
  constexpr std::size_t kPart = 130;
  std::vector<BulkMemory> out, in;
  std::vector<std::unique_ptr<PendingExchange>> pending;
  for (int k = 0; k < 3; ++k) {
    out.emplace_back(comm, kPart * ranks);
    in.emplace_back(comm, kPart * ranks);
    for (std::size_t i = 0; i < kPart * ranks; ++i) out.back().bytes()[i] = byte_of(rank_ + k, i);
    Transfer transfer;
    for (std::size_t r = 0; r < ranks; ++r) {
      transfer.outgoing.emplace_back(out.back().bytes().subspan(r * kPart, kPart));
      transfer.incoming.push_back(in.back().bytes().subspan(r * kPart, kPart));
    }
    pending.push_back(comm.begin_exchange({&transfer, 1}, 64));
  }
  for (std::size_t k = 0; k < pending.size(); ++k) {
    std::size_t arrived = 0;
    comm.finish_exchange(std::move(pending[k]),
                         [&](std::size_t, std::size_t begin, std::size_t end) {
                           EXPECT_EQ(begin, arrived);
                           arrived = end;
                         });
    EXPECT_EQ(arrived, kPart);
    for (std::size_t r = 0; r < ranks; ++r)
      for (std::size_t i = 0; i < kPart; ++i)
        ASSERT_EQ(in[k].bytes()[r * kPart + i],
                  byte_of(static_cast<int>(r + k), static_cast<std::size_t>(rank_) * kPart + i));
  }
  EXPECT_EQ(comm.sent_bytes() - before, static_cast<std::int64_t>(3 * kPart * (ranks - 1)));
}

TEST_P(NcclBulk, SumsHaveTheBitsOfTheMpiBackend) {
  NcclCommunicator& comm = started();
  const std::int64_t before = comm.sent_bytes();
  MpiCommunicator mpi(MpiOptions{.chunk_bytes = GetParam()});
  constexpr std::size_t kCount = 3001;
  const BulkMemory halves(comm, kCount * 2), brains(comm, kCount * 2), floats(comm, kCount * 4);
  std::vector<std::uint16_t> expected_halves, expected_brains;
  std::vector<float> expected_floats;
  for (std::size_t i = 0; i < kCount; ++i) {
    expected_halves.push_back(half_of(rank_, i));
    expected_brains.push_back(brain_of(rank_, i));
    expected_floats.push_back(fp16_to_float(half_of(rank_, i)) / 3.0F);
  }
  std::ranges::copy(expected_halves, values_in<std::uint16_t>(halves).begin());
  std::ranges::copy(expected_brains, values_in<std::uint16_t>(brains).begin());
  std::ranges::copy(expected_floats, values_in<float>(floats).begin());
  mpi.all_reduce_sum_fp16(expected_halves);
  mpi.all_reduce_sum_bf16(expected_brains);
  mpi.all_reduce_sum_fp32(expected_floats);
  comm.all_reduce_sum_fp16(values_in<std::uint16_t>(halves));
  comm.all_reduce_sum_bf16(values_in<std::uint16_t>(brains));
  comm.all_reduce_sum_fp32(values_in<float>(floats));
  EXPECT_TRUE(std::ranges::equal(values_in<std::uint16_t>(halves), expected_halves));
  EXPECT_TRUE(std::ranges::equal(values_in<std::uint16_t>(brains), expected_brains));
  EXPECT_TRUE(std::ranges::equal(values_in<float>(floats), expected_floats));
  EXPECT_EQ(comm.sent_bytes() - before, mpi.sent_bytes());
}

TEST_P(NcclBulk, ReduceScatterAddsInRankOrder) {
  NcclCommunicator& comm = started();
  for (const std::size_t more : {0, 5}) {
    std::vector<std::size_t> sizes;
    for (int r = 0; r < world_; ++r) sizes.push_back(2 * (60 + more * static_cast<std::size_t>(r)));
    const std::size_t total = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
    const std::size_t begin = std::accumulate(sizes.begin(), sizes.begin() + rank_, std::size_t{0});
    const BulkMemory values(comm, total), mine(comm, sizes[static_cast<std::size_t>(rank_)]);
    for (std::size_t i = 0; i < total / 2; ++i)
      values_in<std::uint16_t>(values)[i] = half_of(rank_, i);
    comm.reduce_scatter_sum(SumType::fp16, values.bytes(), mine.bytes(), sizes);
    for (std::size_t i = 0; i < mine.bytes().size() / 2; ++i) {
      std::vector<std::uint16_t> sum = {half_of(0, begin / 2 + i)};
      for (int r = 1; r < world_; ++r) {
        const std::vector<std::uint16_t> one = {half_of(r, begin / 2 + i)};
        add_fp16(one, sum);
      }
      ASSERT_EQ(values_in<std::uint16_t>(mine)[i], sum[0]) << more << ' ' << i;
    }
  }
  EXPECT_THROW(comm.reduce_scatter_sum(SumType::fp32, {}, {}, {}), ArgumentError);
}

TEST_F(NcclTest, ComesAfterTheWorkBeforeItAndBeforeTheWorkBehindIt) {
  NcclCommunicator& comm = start();
  const BulkMemory memory(comm, 64);
  const DeviceStream work = device_->work_stream();
  // A kernel that has not run when the collective is called.
  device_->put(work, [&] {
    std::ranges::fill(values_in<float>(memory), 1.0F);
    return true;
  });
  const auto part = values_in<float>(memory);
  comm.all_reduce_sum_fp32(part);
  device_->put(work, [part] {
    for (float& value : part) value *= 2.0F;
    return true;
  });
  device_->drain(work);
  for (const float value : part) EXPECT_EQ(value, 2.0F * static_cast<float>(world_));
}

TEST_F(NcclTest, BeginDoesNotWaitForTheOthers) {
  NcclCommunicator& comm = start();
  if (world_ == 1) GTEST_SKIP() << "needs two ranks";
  const BulkMemory out(comm, 64), in(comm, 64);
  std::ranges::fill(out.bytes(), static_cast<std::byte>(rank_ + 1));
  Transfer transfer;
  transfer.outgoing.resize(static_cast<std::size_t>(world_));
  transfer.incoming.resize(static_cast<std::size_t>(world_));
  transfer.outgoing[static_cast<std::size_t>((rank_ + 1) % world_)] = out.bytes();
  const int before = (rank_ + world_ - 1) % world_;
  transfer.incoming[static_cast<std::size_t>(before)] = in.bytes();
  // The last rank begins only when the others have: they must not hang in begin.
  std::unique_ptr<PendingExchange> pending;
  if (rank_ != world_ - 1) pending = comm.begin_exchange({&transfer, 1}, 64);
  comm.barrier();
  if (rank_ == world_ - 1) pending = comm.begin_exchange({&transfer, 1}, 64);
  comm.finish_exchange(std::move(pending), [](std::size_t, std::size_t, std::size_t) {});
  for (const std::byte byte : in.bytes()) ASSERT_EQ(byte, static_cast<std::byte>(before + 1));
}

TEST_F(NcclTest, ClosesInOrderAndGivesEverythingBack) {
  NcclCommunicator& comm = start();
  {
    const BulkMemory memory(comm, 64);
    comm.broadcast_bulk(memory.bytes(), 0);
  }
  EXPECT_EQ(fake_->live_communicators(), 1);
  comm.close();
  EXPECT_EQ(fake_->live_communicators(), 0);
  EXPECT_EQ(fake_->calls("finalize"), 1);
  EXPECT_EQ(fake_->calls("destroy"), 1);
  comm.close();  // once is enough
  EXPECT_EQ(fake_->calls("destroy"), 1);
  const BulkMemory memory(comm, 8);
  EXPECT_THROW(comm.broadcast_bulk(memory.bytes(), 0), CommError);
}

TEST_F(NcclTest, AnUnclosedOneIsAborted) {
  start();
  EXPECT_EQ(fake_->live_communicators(), 1);
  comm_.reset();
  EXPECT_EQ(fake_->live_communicators(), 0);
  EXPECT_EQ(fake_->calls("finalize"), 0);
}

TEST_F(NcclTest, MemoryOfTheHostIsRefused) {
  NcclCommunicator& comm = start();
  std::vector<float> host(16);
  test::expect_in("memory that is not the device's",
                  test::message_of<CommError>([&] { comm.all_reduce_sum_fp32(host); }));
}

TEST_F(NcclTest, SharedDevicesAreRefusedWithWhoHasWhich) {
  if (world_ == 1) GTEST_SKIP() << "needs two ranks";
  waiting_ = std::make_unique<test::FakeDevice>("GPU-" + std::to_string(rank_ / 2));
  const std::string message = test::message_of<ConfigurationError>([&] { start(); });
  test::expect_in("two ranks have the same GPU", message);
  test::expect_in("rank 0: Fake GPU on " + test::world().host() + ", GPU-0", message);
  test::expect_in("rank 1: Fake GPU on " + test::world().host() + ", GPU-0", message);
  test::expect_in("--gpus-per-task", message);
}

TEST_F(NcclTest, PlansADeviceForEachRankOfANode) {
  Communicator& world = test::world();
  EXPECT_EQ(plan_devices(world, {8, ""}).index, rank_);
  EXPECT_EQ(plan_devices(world, {8, ""}).reason, "");
  EXPECT_EQ(plan_devices(world, {1, ""}).index, 0);  // each sees its own only
  const DevicePlan none = plan_devices(world, {rank_ == world_ - 1 ? 0 : 8, "no driver"});
  EXPECT_EQ(none.index, -1);
  EXPECT_EQ(none.reason, "rank " + std::to_string(world_ - 1) + " has no GPU: no driver");
  if (world_ < 3) return;
  const DevicePlan few = plan_devices(world, {2, ""});
  EXPECT_EQ(few.index, -1);
  EXPECT_EQ(few.reason,
            "rank 2 has " + std::to_string(world_) + " ranks and 2 GPUs on " + world.host());
}

}  // namespace
}  // namespace vsr::comm
