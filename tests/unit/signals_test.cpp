// SPDX-License-Identifier: Apache-2.0
// Signals, raised in this process: which bits they ask for, and what is left behind.
#include "runtime/train/signals.hpp"

#include <gtest/gtest.h>

#include <csignal>

#include "comm/error.hpp"

namespace vsr::runtime {
namespace {

TEST(Signals, StopStaysAskedFor) {
  for (const int signal : {SIGUSR1, SIGTERM, SIGINT}) {
    SignalRequests requests;
    EXPECT_EQ(requests.take(), 0U);
    EXPECT_EQ(requests.last_signal(), 0);
    std::raise(signal);
    EXPECT_EQ(requests.take(), kRequestStop);
    EXPECT_EQ(requests.take(), kRequestStop);
    EXPECT_EQ(requests.last_signal(), signal);
  }
}

TEST(Signals, CheckpointIsAskedForOnce) {
  SignalRequests requests;
  std::raise(SIGUSR2);
  std::raise(SIGUSR2);
  EXPECT_EQ(requests.take(), kRequestCheckpoint);
  EXPECT_EQ(requests.take(), 0U);
  std::raise(SIGUSR2);
  std::raise(SIGTERM);
  EXPECT_EQ(requests.take(), kRequestStop | kRequestCheckpoint);
  EXPECT_EQ(requests.take(), kRequestStop);
}

volatile std::sig_atomic_t seen_before = 0;

TEST(Signals, HandlersFoundArePutBack) {
  const auto original = std::signal(SIGUSR1, [](int) { seen_before = 1; });
  {
    SignalRequests requests;
    std::raise(SIGUSR1);
    EXPECT_EQ(requests.take(), kRequestStop);
    EXPECT_EQ(seen_before, 0);
  }
  std::raise(SIGUSR1);
  EXPECT_EQ(seen_before, 1);
  std::signal(SIGUSR1, original);
}

TEST(Signals, OneAtATime) {
  SignalRequests requests;
  EXPECT_THROW(SignalRequests(), ArgumentError);
  std::raise(SIGUSR1);
  EXPECT_EQ(requests.take(), kRequestStop);
}

TEST(SignalsDeathTest, SecondInterruptEndsAtOnce) {
  EXPECT_EXIT(
      {
        SignalRequests requests;
        std::raise(SIGINT);
        std::raise(SIGINT);
        std::_Exit(0);
      },
      ::testing::KilledBySignal(SIGINT), "");
}

TEST(SignalsDeathTest, AnInterruptAfterATerminationIsTheFirst) {
  EXPECT_EXIT(
      {
        SignalRequests requests;
        std::raise(SIGTERM);
        std::raise(SIGTERM);
        std::raise(SIGINT);
        std::_Exit(requests.take() == kRequestStop ? 7 : 0);
      },
      ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace vsr::runtime
