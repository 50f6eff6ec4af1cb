// SPDX-License-Identifier: Apache-2.0
// Who watches over the ranks of a run, and who reads afterwards what they did last.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/watchdog.hpp"
#include "launch/options.hpp"

namespace vsr::launch {

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
