// SPDX-License-Identifier: Apache-2.0
// Who watches over the ranks of a run, and who reads afterwards what they did last.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/watchdog.hpp"
#include "launch/options.hpp"

namespace vsr::launch {

/// The watch until the run has a folder: records lie in the temporary folder of each host, which is
/// where a rank that hangs while it opens clips or loads a checkpoint is told from.
class StartWatch {
 public:
  /// Collective. Twice --timeout is the deadline. Nothing for a single rank or --timeout 0.
  StartWatch(const TrainOptions& options, comm::Communicator& world);
  /// The records go, unless the watchdog ended the process.
  ~StartWatch();
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;

  /// Why nobody watches; equal on all ranks, empty where somebody does or nobody should.
  const std::string& notice() const noexcept { return notice_; }

 private:
  comm::Communicator& world_;
  std::filesystem::path folder_;
  std::string notice_;
  std::unique_ptr<comm::Watchdog> watchdog_;
};

/// Collective. Record the calls of all ranks in OUT/flight from now on, and end the job with exit
/// code 75 when a rank is waited for longer than --timeout. Nothing for a single rank or --timeout
/// 0.
/// @throws AgreedError 74 when the records cannot be written
std::unique_ptr<comm::Watchdog> start_watching(const TrainOptions& options,
                                               comm::Communicator& world);

/// `vsr flight RUN [--calls N]`: where each rank of a run stood, and who held the others up.
/// @throws UsageError, DataError where there are no records
int run_flight_command(const std::vector<std::string>& arguments);

}  // namespace vsr::launch
