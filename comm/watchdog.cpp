// SPDX-License-Identifier: Apache-2.0
#include "comm/watchdog.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "comm/error.hpp"
#include "comm/flight_recorder.hpp"

namespace vsr::comm {
namespace {

constexpr std::int64_t kNsPerMs = 1'000'000;
constexpr std::chrono::milliseconds kLongestPoll(1000);
/// A poll that took so long was slept through.
constexpr std::int64_t kSleptNs = 1'500 * kNsPerMs;
/// What ranks that wait beside a lower one leave it to tell, before they do themselves.
constexpr std::int64_t kCourtesyMs = 3000;

// No MPI call: the rank's own thread is inside one. A process that ends so ends the job.
void tell_and_end(const std::string& program, const std::string& message) {
  std::fprintf(stderr, "%s%serror: %s\n", program.c_str(), program.empty() ? "" : ": ",
               message.c_str());
  std::fflush(nullptr);
  std::_Exit(static_cast<int>(ExitCode::communication));
}

bool is_inside(const FlightState& state) {
  return state.is_readable && state.newest.sequence > 0 && state.newest.left_ns == 0;
}

}  // namespace

Watchdog::Watchdog(Options options)
    : options_(std::move(options)),
      deadline_ms_(options_.deadline.count()),
      thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  std::int64_t awake_since_ns = 0;
  while (!ends_) {
    const std::chrono::milliseconds deadline(deadline_ms_.load());
    const std::int64_t before_ns = monotonic_ns();
    wake_.wait_for(lock, std::clamp(deadline / 10, std::chrono::milliseconds(1), kLongestPoll));
    if (ends_) return;
    // A process that was stopped itself and goes on has no right to complain of the time between.
    if (monotonic_ns() - before_ns > kSleptNs) awake_since_ns = monotonic_ns();
    const std::string message = verdict(awake_since_ns);
    if (message.empty()) continue;
    if (options_.on_expiry)
      options_.on_expiry(message);
    else
      tell_and_end(options_.program, message);
    return;
  }
}

std::string Watchdog::verdict(std::int64_t awake_since_ns) const {
  const std::int64_t now = monotonic_ns();
  const std::int64_t deadline_ms = deadline_ms_;
  const FlightState mine = read_flight_of(options_.folder, options_.rank);
  if (!is_inside(mine)) return "";
  const std::int64_t waited_ms =
      (now - std::max(mine.newest.entered_ns, awake_since_ns)) / kNsPerMs;
  if (waited_ms < deadline_ms) return "";

  const std::vector<FlightState> states = read_flight(options_.folder, options_.world);
  std::int64_t patience_ms = deadline_ms;
  for (const FlightState& state : states) {
    const bool is_behind = state.newest.sequence < mine.newest.sequence;
    // Another host's clock says nothing here; the wait alone has to do.
    const bool is_comparable = state.is_readable && state.host == mine.host;
    if (is_behind && is_comparable && (now - state.alive_ns) / kNsPerMs < deadline_ms) return "";
    if (state.rank < options_.rank && is_inside(state) &&
        state.newest.sequence == mine.newest.sequence)
      patience_ms = deadline_ms + kCourtesyMs;
  }
  if (waited_ms < patience_ms) return "";
  return "rank " + std::to_string(options_.rank) + " on " + mine.host + " waits since " +
         seconds_text(waited_ms * kNsPerMs) + " in " + operation_text(mine.newest) + "\n" +
         who_is_missing(states, now) +
         "\nall ranks end here and can go on from the last checkpoint; the last calls of each rank "
         "are in '" +
         options_.folder.string() + "'";
}

}  // namespace vsr::comm
