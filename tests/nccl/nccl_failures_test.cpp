// SPDX-License-Identifier: Apache-2.0
// What goes wrong in NCCL ends on every rank in time, with the rank and the operation named.
#include <chrono>
#include <thread>

#include "comm/error.hpp"
#include "tests/nccl/nccl_fixture.hpp"
#include "tests/support/error_messages.hpp"

namespace vsr::comm {
namespace {

using std::chrono::milliseconds;
using test::expect_in;
using test::message_of;
using test::NcclFault;

class NcclFailures : public NcclTest {
 protected:
  const NcclOptions hasty_{.time_limit = milliseconds(300), .abort_limit = milliseconds(50)};
  bool is_last() const { return rank_ == world_ - 1; }
  std::string me() const {
    return "rank " + std::to_string(rank_) + "/" + std::to_string(world_) + " on " +
           test::world().host();
  }
};

TEST_F(NcclFailures, ARankThatNeverAnswersIsNamedOnAllRanks) {
  if (world_ == 1) GTEST_SKIP() << "needs two ranks";
  if (is_last()) fake_->inject({NcclFault::Kind::init_hangs});
  try {
    start(hasty_);
    FAIL() << "threw nothing";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::communication);
    expect_in("NCCL did not bring rank", error.what());
    expect_in("no answer after 300 ms", error.what());
    expect_in("NCCL_DEBUG=INFO", error.what());
  }
  EXPECT_EQ(fake_->live_communicators(), 0);
}

TEST_F(NcclFailures, AnInitThatFailsOnOneRankIsToldToAll) {
  if (is_last()) fake_->inject({NcclFault::Kind::init_fails});
  const std::string message = message_of<AgreedError>([&] { start(hasty_); });
  expect_in(world_ == 1 ? "rank 0 of 1" : std::to_string(world_ - 1) + " of", message);
  // The others wait for it in vain, which is no cause.
  expect_in("rank " + std::to_string(world_ - 1) +
                ": unhandled system error (injected: no route to rank 0)",
            message);
  EXPECT_EQ(fake_->live_communicators(), 0);
}

TEST_F(NcclFailures, AnErrorReportedLateEndsTheCallOnAllRanks) {
  NcclCommunicator& comm = start(hasty_);
  const BulkMemory memory(comm, 64);
  comm.broadcast_bulk(memory.bytes(), 0);
  if (is_last()) fake_->inject({NcclFault::Kind::async_error});
  const std::string message =
      message_of<CommError>([&] { comm.all_reduce_sum_fp32(values_in<float>(memory)); });
  expect_in(me() + ", Fake GPU: NCCL all-reduce failed: ", message);
  if (is_last())
    expect_in("network error (injected: the network broke)", message);
  else
    expect_in("not over after 300 ms", message);
  EXPECT_EQ(fake_->live_communicators(), 0);
  // Nothing of it works any more, and it says so.
  expect_in("was closed or has failed",
            message_of<CommError>([&] { comm.broadcast_bulk(memory.bytes(), 0); }));
}

TEST_F(NcclFailures, AnOperationThatHangsEndsInTime) {
  NcclCommunicator& comm = start(hasty_);
  const BulkMemory memory(comm, 64 * static_cast<std::size_t>(world_));
  if (is_last()) fake_->inject({NcclFault::Kind::hangs});
  const std::vector<std::size_t> sizes(static_cast<std::size_t>(world_), 64);
  const std::string message =
      message_of<CommError>([&] { comm.all_gather_bulk(memory.bytes(), sizes); });
  expect_in("NCCL all-gather failed: not over after 300 ms", message);
}

TEST_F(NcclFailures, DifferentCallsAreAnErrorAndNotAHang) {
  if (world_ == 1) GTEST_SKIP() << "needs two ranks";
  NcclCommunicator& comm = start({.abort_limit = hasty_.abort_limit});
  const BulkMemory memory(comm, 128);
  const std::size_t bytes = is_last() ? 64 : 128;
  const std::string message = message_of<CommError>(
      [&] { comm.all_reduce_sum_fp32(values_in<float>(memory).first(bytes / sizeof(float))); });
  expect_in("all-reduce of 32 elements", message);
  expect_in("all-reduce of 16 elements", message);
}

TEST_F(NcclFailures, WhatWasUnderWayFailsWithTheRest) {
  NcclCommunicator& comm = start(hasty_);
  const BulkMemory memory(comm, 64);
  Transfer transfer;
  transfer.outgoing.resize(static_cast<std::size_t>(world_));
  transfer.incoming.resize(static_cast<std::size_t>(world_));
  transfer.outgoing[static_cast<std::size_t>(rank_)] = memory.bytes().first(32);
  transfer.incoming[static_cast<std::size_t>(rank_)] = memory.bytes().last(32);
  std::unique_ptr<PendingExchange> first = comm.begin_exchange({&transfer, 1}, 64);
  fake_->inject({NcclFault::Kind::hangs});
  message_of<CommError>([&] { comm.broadcast_bulk(memory.bytes(), 0); });
  // Its mark was passed, but nobody knows in what state.
  bool has_arrived = false;
  const std::string message = message_of<CommError>([&] {
    comm.finish_exchange(std::move(first),
                         [&](std::size_t, std::size_t, std::size_t) { has_arrived = true; });
  });
  expect_in(me() + ": the NCCL communicator was closed or has failed", message);
  EXPECT_FALSE(has_arrived);
}

TEST_F(NcclFailures, AnExchangeThatIsDroppedUnderWayEndsTheCommunicator) {
  if (world_ == 1) GTEST_SKIP() << "needs two ranks";
  NcclCommunicator& comm = start(hasty_);
  {
    const BulkMemory memory(comm, 64);
    Transfer transfer;
    transfer.outgoing.resize(static_cast<std::size_t>(world_));
    transfer.incoming.resize(static_cast<std::size_t>(world_));
    // Nobody sends this, so memory that it fills must not be freed while it waits.
    transfer.incoming[static_cast<std::size_t>((rank_ + 1) % world_)] = memory.bytes();
    const std::unique_ptr<PendingExchange> dropped = comm.begin_exchange({&transfer, 1}, 64);
    EXPECT_EQ(fake_->live_communicators(), 1);
  }
  EXPECT_EQ(fake_->live_communicators(), 0);
  const BulkMemory memory(comm, 64);
  expect_in("was closed or has failed",
            message_of<CommError>([&] { comm.broadcast_bulk(memory.bytes(), 0); }));
}

TEST_F(NcclFailures, OneAbortedRankEndsTheOthersInClose) {
  if (world_ == 1) GTEST_SKIP() << "needs two ranks";
  NcclCommunicator& comm = start(hasty_);
  const BulkMemory memory(comm, 64);
  if (is_last()) {
    Transfer transfer;
    transfer.outgoing.resize(static_cast<std::size_t>(world_));
    transfer.incoming.resize(static_cast<std::size_t>(world_));
    transfer.incoming.front() = memory.bytes();
    comm.begin_exchange({&transfer, 1}, 64);  // and drop it
  }
  EXPECT_EQ(fake_->live_communicators(), is_last() ? 0 : 1);
  comm.close();
  EXPECT_EQ(fake_->live_communicators(), 0);
  EXPECT_EQ(fake_->calls("finalize"), 0);
}

TEST_F(NcclFailures, AnExchangeOfWrongSizesIsRefusedBeforeItStarts) {
  NcclCommunicator& comm = start(hasty_);
  const BulkMemory memory(comm, 64);
  Transfer transfer;
  transfer.outgoing.resize(static_cast<std::size_t>(world_));
  transfer.incoming.resize(static_cast<std::size_t>(world_));
  transfer.outgoing[static_cast<std::size_t>(rank_)] = memory.bytes().first(32);
  transfer.incoming[static_cast<std::size_t>(rank_)] = memory.bytes().first(16);
  expect_in("got 32 bytes for the own rank and room for 16", message_of<ArgumentError>([&] {
              comm.begin_exchange({&transfer, 1}, 64);
            }));
  comm.broadcast_bulk(memory.bytes(), 0);  // which still works
  comm.close();
  EXPECT_EQ(fake_->calls("destroy"), 1);
}

TEST_F(NcclFailures, AGroupThatFailsIsEndedAllTheSame) {
  if (world_ == 1) GTEST_SKIP() << "needs two ranks";
  NcclCommunicator& comm = start(hasty_);
  std::vector<std::byte> host(64);
  Transfer transfer;
  transfer.outgoing.resize(static_cast<std::size_t>(world_));
  transfer.incoming.resize(static_cast<std::size_t>(world_));
  transfer.outgoing[static_cast<std::size_t>((rank_ + 1) % world_)] = host;
  transfer.incoming[static_cast<std::size_t>((rank_ + world_ - 1) % world_)] = host;
  expect_in("NCCL send failed: invalid argument (memory that is not the device's)",
            message_of<CommError>([&] {
              comm.begin_exchange({&transfer, 1}, 64);
            }));
  // Groups belong to the thread: an open one would swallow the calls of the next communicator.
  EXPECT_EQ(fake_->functions().group_end(), NcclResult::invalid_argument);
}

TEST_F(NcclFailures, AnAbortThatHangsIsLeftBehind) {
  NcclCommunicator& comm = start(hasty_);
  const BulkMemory memory(comm, 64);
  fake_->inject({NcclFault::Kind::hangs, 0, true});
  const std::string message =
      message_of<CommError>([&] { comm.broadcast_bulk(memory.bytes(), 0); });
  expect_in("NCCL broadcast failed: not over after 300 ms", message);
  expect_in("its communicator could not be ended in time", message);
  std::this_thread::sleep_for(milliseconds(1200));  // the fake outlives its abort
}

}  // namespace
}  // namespace vsr::comm
