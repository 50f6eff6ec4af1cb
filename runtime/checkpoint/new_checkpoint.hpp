// SPDX-License-Identifier: Apache-2.0
// Checkpoints that come to be without a run: cut for another number of ranks, or made from weights
// of elsewhere. They are written by the code that runs write theirs with.
#pragma once

#include <functional>

#include "runtime/checkpoint/checkpoint_reader.hpp"

namespace vsr::runtime {

/// Most ranks a checkpoint is cut for.
inline constexpr int kMostRanks = 100000;

/// The pieces of the logical global index that `rank` of `world` owns in a run.
std::vector<comm::Interval> intervals_of_rank(const std::vector<ParameterRecord>& parameters,
                                              int rank, int world);

/// Write the state of `header` to the new step folder `target`, cut as a run on `world` ranks cuts
/// it. Holds one shard in memory. `target` appears when it is complete.
/// @throws ConfigurationError (78) when `target` exists or `world` is not in [1, kMostRanks];
///         CheckpointError; IoError
void reshard(const CheckpointHeader& header, const std::filesystem::path& target, int world);

/// Make the checkpoint of iteration 0 of a run that starts from the weights in a file: parameters,
/// configuration and arrays are those of `like`, moments and counters are zero, averages equal the
/// masters.
/// @param run_folder gets ckpt/step_00000000 and LATEST; it may hold no checkpoint yet
/// @param key as in open_weights
/// @returns the step folder
/// @throws ConfigurationError (78) with the names and shapes that differ, or when the folder holds
///         checkpoints or is in use; CheckpointError (65) for a damaged file; IoError
std::filesystem::path import_weights(const std::filesystem::path& weights,
                                     const std::filesystem::path& run_folder,
                                     const CheckpointHeader& like, const std::string& key);

}  // namespace vsr::runtime
