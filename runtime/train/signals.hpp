// SPDX-License-Identifier: Apache-2.0
// Requests from outside a running process. A handler may do next to nothing, so it only sets a
// flag; the loop takes the flags once per step and carries them into agree, so that all ranks act
// on them in the same step.
#pragma once

#include <cstdint>

namespace vsr::runtime {

inline constexpr std::uint64_t kRequestStop = 1;        ///< save, then end with exit code 85
inline constexpr std::uint64_t kRequestCheckpoint = 2;  ///< save and go on

/// Handles SIGUSR1, SIGTERM, SIGINT (stop) and SIGUSR2 (checkpoint) while it lives; the handlers
/// found are put back on destruction. A second SIGINT ends the process at once, as by default.
/// One at a time per process.
class SignalRequests {
 public:
  /// @throws ArgumentError when another one lives; Error (exit 70) when the system refuses
  SignalRequests();
  ~SignalRequests();
  SignalRequests(const SignalRequests&) = delete;
  SignalRequests& operator=(const SignalRequests&) = delete;

  /// The bits asked for since the last call; kRequestStop, once asked for, in every call.
  std::uint64_t take() noexcept;
  /// The newest signal received, or 0.
  int last_signal() const noexcept;
};

}  // namespace vsr::runtime
