// SPDX-License-Identifier: Apache-2.0
// What happens to the folder of a run before training: is there room, is it ours, is there
// something to continue. Everything here is decided by rank 0 and agreed, so that all ranks start
// or none.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "launch/options.hpp"
#include "runtime/checkpoint/checkpoint_store.hpp"
#include "runtime/checkpoint/run_lock.hpp"
#include "runtime/train/run_report.hpp"

namespace vsr::launch {

/// Collective. Refuse a folder that holds a run unless --resume says to continue it, and a --resume
/// that has nothing to continue. Writes nothing.
/// @throws AgreedError 78 naming folder and choices, 65 naming where no checkpoint is
void check_resume_choice(const TrainOptions& options, comm::Communicator& world);

/// Collective. Where a run is continued, take its saved number of leaves: it is part of what the
/// run computes, whatever the default or the number of ranks is now. Returns what to tell, or
/// nothing.
std::string adopt_saved_leaves(TrainOptions& options, comm::Communicator& world);

/// The folder of a run, held for as long as this lives.
struct OpenRunFolder {
  std::optional<runtime::RunLock> lock;  ///< on rank 0
  std::vector<std::string> notices;      ///< on rank 0
};

/// Collective. Create the folder, prove that `first_save_bytes` can be written, take the lock, and
/// clear what dead runs left.
/// @throws AgreedError 74 for a folder or disk that cannot be written, 78 when another run holds it
OpenRunFolder open_run_folder(const TrainOptions& options, std::int64_t first_save_bytes,
                              comm::Communicator& world);

/// Where a run starts from, and what there is to tell about it.
struct Start {
  runtime::Progress progress;
  std::vector<std::string> messages;
  std::vector<std::string> warnings;
};

/// Collective. Load what --resume asks for into optimizer, buffers and replicas; a fresh start
/// otherwise. Changes no file of the run but a damaged checkpoint's name.
/// @throws AgreedError 65 or 78, see CheckpointStore::load and match_configuration
Start resume(const TrainOptions& options, const nlohmann::json& configuration,
             runtime::CheckpointStore& store, optim::Fp16Optimizer& optimizer,
             const std::vector<optim::NamedBuffer>& buffers);

/// Collective. Write config.ini and env.txt and open the logs: the last thing before training, so
/// that a start which is refused leaves the files of the run as they were.
/// @throws AgreedError 74
runtime::RunReport open_report(const TrainOptions& options, comm::Communicator& world);

}  // namespace vsr::launch
