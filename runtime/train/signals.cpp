// SPDX-License-Identifier: Apache-2.0
#include "runtime/train/signals.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

#include "comm/error.hpp"

namespace vsr::runtime {
namespace {

constexpr std::array kSignals{SIGUSR1, SIGTERM, SIGINT, SIGUSR2};

volatile std::sig_atomic_t stop_asked = 0;
volatile std::sig_atomic_t checkpoint_asked = 0;
volatile std::sig_atomic_t interrupted_before = 0;
volatile std::sig_atomic_t newest_signal = 0;

// Owned by the one living SignalRequests.
bool installed = false;
std::array<struct sigaction, kSignals.size()> previous;

extern "C" void on_signal(int signal) {
  newest_signal = signal;
  if (signal == SIGUSR2) {
    checkpoint_asked = 1;
    return;
  }
  stop_asked = 1;
  if (signal != SIGINT) return;
  if (interrupted_before) {
    // Blocked while this handler runs, so it takes effect on return, with the default action.
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  interrupted_before = 1;
}

void restore(std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i)
    if (::sigaction(kSignals[i], &previous[i], nullptr) != 0)
      std::fprintf(stderr, "cannot restore the handler of signal %d: %s\n", kSignals[i],
                   std::strerror(errno));
}

}  // namespace

SignalRequests::SignalRequests() {
  VSR_CHECK(!installed, "one SignalRequests at a time");
  stop_asked = 0;
  checkpoint_asked = 0;
  interrupted_before = 0;
  newest_signal = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    if (::sigaction(kSignals[i], &action, &previous[i]) == 0) continue;
    const int error = errno;
    restore(i);
    throw Error(ExitCode::internal, "cannot handle signal " + std::to_string(kSignals[i]) + ": " +
                                        std::strerror(error));
  }
  installed = true;
}

SignalRequests::~SignalRequests() {
  restore(kSignals.size());
  installed = false;
}

std::uint64_t SignalRequests::take() noexcept {
  std::uint64_t bits = stop_asked ? kRequestStop : 0;
  if (checkpoint_asked) {
    checkpoint_asked = 0;
    bits |= kRequestCheckpoint;
  }
  return bits;
}

int SignalRequests::last_signal() const noexcept {
  return newest_signal;
}

}  // namespace vsr::runtime
