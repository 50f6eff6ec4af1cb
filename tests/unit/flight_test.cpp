// SPDX-License-Identifier: Apache-2.0
// Flight records: what is kept, what another process sees of it, what is said of ranks that are
// behind, and when the watchdog speaks.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>

#include "comm/error.hpp"
#include "comm/flight_recorder.hpp"
#include "comm/processes.hpp"
#include "comm/watchdog.hpp"
#include "tests/support/error_messages.hpp"
#include "tests/support/temporary_folder.hpp"

namespace vsr::comm {
namespace {

using test::expect_in;
using test::message_of;
using test::TemporaryFolder;

FlightState state(int rank, std::uint64_t sequence, Operation operation, std::int64_t entered_s,
                  std::int64_t left_s) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  FlightState result{.rank = rank, .is_readable = true, .host = "node", .pid = 100 + rank};
  result.newest = {.sequence = sequence,
                   .operation = operation,
                   .entered_ns = entered_s * kSecond,
                   .left_ns = left_s * kSecond,
                   .bytes = 8};
  result.alive_ns = std::max(entered_s, left_s) * kSecond;
  return result;
}

TEST(Flight, KeepsTheNewestCallsInOrder) {
  const TemporaryFolder folder;
  FlightRecorder recorder(folder.path(), 3, 8, "node");
  constexpr std::uint64_t kCalls = FlightRecorder::kCapacity + 10;
  for (std::uint64_t i = 1; i <= kCalls; ++i) {
    recorder.enter(Operation::all_gather, i, "a purpose that is longer than its place");
    if (i < kCalls) recorder.leave();
  }
  const std::vector<FlightRecord> records = flight_records(folder.path(), 3);
  ASSERT_EQ(records.size(), FlightRecorder::kCapacity);
  EXPECT_EQ(records.front().sequence, 11U);
  EXPECT_EQ(records.back().sequence, kCalls);
  EXPECT_EQ(records.back().bytes, kCalls);
  EXPECT_EQ(records.back().left_ns, 0);
  EXPECT_GE(records.front().left_ns, records.front().entered_ns);
  EXPECT_EQ(operation_text(records.back()),
            "operation 4106 (all_gather of a purpose that is longe, 4106 bytes)");
}

TEST(Flight, OutlivesSigkill) {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    FlightRecorder recorder(folder.path(), 0, 1, "node");
    recorder.enter(Operation::barrier, 0, "agree");
    recorder.leave();
    recorder.enter(Operation::exchange, 77, "reduce");
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  const std::vector<FlightState> states = read_flight(folder.path(), 1);
  EXPECT_EQ(states[0].pid, child);
  EXPECT_EQ(states[0].newest.sequence, 2U);
  EXPECT_EQ(states[0].newest.operation, Operation::exchange);
  EXPECT_EQ(states[0].newest.left_ns, 0);
  EXPECT_EQ(flight_world(folder.path()), 1);
}

TEST(Flight, RefusesOtherFiles) {
  const TemporaryFolder folder;
  EXPECT_EQ(flight_world(folder.path()), 0);
  EXPECT_THROW(flight_records(folder.path(), 0), IoError);
  folder.write("rank_00000.bin", std::string(500000, 'x'));
  EXPECT_THROW(flight_records(folder.path(), 0), DataError);
  EXPECT_FALSE(read_flight(folder.path(), 1)[0].is_readable);
  EXPECT_THROW(FlightRecorder(folder.path() / "nowhere", 0, 1, "node"), IoError);
}

TEST(Flight, SaysWhoIsBehind) {
  const Operation barrier = Operation::barrier;
  const std::vector<FlightState> states = {
      state(0, 12, barrier, 40, 0), state(1, 11, barrier, 38, 39),
      state(2, 11, Operation::all_gather, 39, 0), state(3, 12, Operation::all_gather, 40, 0),
      FlightState{.rank = 4}};
  const std::string text = who_is_missing(states, std::int64_t{100} * 1'000'000'000);
  expect_in(
      "rank 1 on node (process 101) did not enter operation 12 (barrier, 8 bytes): it left "
      "operation 11 (barrier, 8 bytes) 61.0 s ago",
      text);
  expect_in(
      "rank 2 on node (process 102) did not enter operation 12 (barrier, 8 bytes): it is in "
      "operation 11 (all_gather, 8 bytes) since 61.0 s",
      text);
  expect_in(
      "rank 3 on node (process 103) is in operation 12 (all_gather, 8 bytes) where others are in "
      "operation 12 (barrier",
      text);
  expect_in("rank 4 has no flight record", text);
  EXPECT_EQ(text.find("rank 0 on"), std::string::npos);
}

TEST(Flight, SaysWhenNobodyIsBehind) {
  const std::vector<FlightState> inside = {state(0, 5, Operation::exchange, 9, 0),
                                           state(1, 5, Operation::exchange, 8, 0)};
  expect_in("all ranks entered operation 5 (exchange, 8 bytes), which does not end",
            who_is_missing(inside, std::nullopt));
  const std::vector<FlightState> done = {state(0, 5, Operation::exchange, 8, 9),
                                         state(1, 5, Operation::exchange, 8, 9)};
  expect_in("no rank is behind", who_is_missing(done, std::nullopt));
}

TEST(Flight, NamesARankThatWasStoppedInsideTheCall) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::raise(SIGSTOP);
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, WUNTRACED), child);
  std::vector<FlightState> states = {state(0, 5, Operation::exchange, 9, 0),
                                     state(1, 5, Operation::exchange, 8, 0)};
  states[0].pid = ::getpid();
  states[1].pid = child;
  for (FlightState& one : states) one.host = host_name();
  const std::string number = std::to_string(child);
  EXPECT_EQ(who_is_missing(states, std::nullopt),
            "rank 1 on " + states[1].host + " (process " + number +
                ") is stopped by a signal inside operation 5 (exchange, 8 bytes)");
  states[1].host = "another";
  expect_in("does not end: the network?", who_is_missing(states, std::nullopt));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

// The watchdog of rank 0, which waits; rank 1 is another recorder of this process.
class WatchdogTest : public testing::Test {
 protected:
  WatchdogTest() : waiting_(folder_.path(), 0, 2, "node"), missing_(folder_.path(), 1, 2, "node") {}

  std::unique_ptr<Watchdog> watchdog(std::chrono::milliseconds deadline) {
    return std::make_unique<Watchdog>(Watchdog::Options{
        .folder = folder_.path(),
        .rank = 0,
        .world = 2,
        .deadline = deadline,
        .on_expiry = [this](const std::string& message) { told_.set_value(message); }});
  }

  TemporaryFolder folder_;
  FlightRecorder waiting_;
  FlightRecorder missing_;
  std::promise<std::string> told_;
};

TEST_F(WatchdogTest, TellsWhoIsMissing) {
  waiting_.enter(Operation::barrier, 0, "agree");
  const auto dog = watchdog(std::chrono::milliseconds(30));
  const std::string message = told_.get_future().get();
  expect_in("rank 0 on node waits since ", message);
  expect_in("in operation 1 (barrier of agree, 0 bytes)", message);
  expect_in("rank 1 on node", message);
  expect_in("it entered nothing yet", message);
}

TEST_F(WatchdogTest, WaitsForThoseWhoGiveSignsOfLife) {
  waiting_.enter(Operation::barrier, 0, "agree");
  auto told = told_.get_future();
  const auto dog = watchdog(std::chrono::milliseconds(1000));
  for (int i = 0; i < 150; ++i) {  // three deadlines
    missing_.alive();
    ASSERT_EQ(told.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  }
  expect_in("rank 1 on node", told.get());  // and then for no longer
}

TEST_F(WatchdogTest, IsSilentOutsideOfCallsAndAfterThem) {
  auto told = told_.get_future();
  const auto dog = watchdog(std::chrono::milliseconds(20));
  EXPECT_EQ(told.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  waiting_.enter(Operation::barrier, 0, "");
  waiting_.leave();
  EXPECT_EQ(told.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  dog->set_deadline(std::chrono::hours(1));
  waiting_.enter(Operation::barrier, 0, "");
  EXPECT_EQ(told.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
}

}  // namespace
}  // namespace vsr::comm
