// SPDX-License-Identifier: Apache-2.0
// Ends a rank that waits for ever: MPI has no time limits, so a rank that stopped, hangs in a file
// system or took another way holds up all others in silence.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace vsr::comm {

/// A thread of this rank that looks at the flight records of all ranks. When this rank has been
/// inside one collective call for longer than the deadline, and those that it waits for gave no
/// sign of life for as long, it tells who is missing and ends the process. Of several waiting ranks
/// the lowest tells first.
class Watchdog {
 public:
  struct Options {
    std::filesystem::path folder;  ///< of the flight records
    int rank = 0;
    int world = 1;
    std::chrono::milliseconds deadline = std::chrono::minutes(5);
    std::string program = {};  ///< named before the message, as in "PROGRAM: error: ..."
    /// Called once, on the thread of the watchdog, with the message; the default prints it to
    /// stderr and ends the process with exit code 75, after which the launcher ends the job.
    std::function<void(const std::string&)> on_expiry = {};
  };

  explicit Watchdog(Options options);
  /// Waits for the thread.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// From now on, also for a call that is being waited in. Any thread.
  void set_deadline(std::chrono::milliseconds deadline) noexcept {
    deadline_ms_ = deadline.count();
  }

 private:
  void watch();
  /// What to tell, or nothing while there is hope.
  /// @param awake_since_ns nothing before counts as waiting
  std::string verdict(std::int64_t awake_since_ns) const;

  Options options_;
  std::atomic<std::int64_t> deadline_ms_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace vsr::comm
