// SPDX-License-Identifier: Apache-2.0
// Reads one finished checkpoint folder without MPI: the store reads through it on every rank, and
// `vsr upscale` needs nothing else. Every byte that is used was checked against the manifest first.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/checkpoint/manifest.hpp"
#include "runtime/checkpoint/snapshot.hpp"

namespace vsr::runtime {

/// All of a checkpoint but its shards.
struct CheckpointHeader {
  std::filesystem::path folder;
  Manifest manifest;
  Snapshot snapshot;  ///< `shard` has the names of the arrays, and neither intervals nor values
};

/// Read manifest and global.h5 of a step folder, check both, and check that all shard files are
/// there in full size.
/// @throws CheckpointError naming folder, file and what is wrong; IoError when the system refuses
CheckpointHeader read_header(const std::filesystem::path& step_folder);

/// Read the elements of `wanted` (ascending, disjoint pieces of the logical global index) from the
/// shard files that hold them, whatever the number of ranks that wrote them; only the blocks that
/// meet `wanted` are read, and each is checked.
/// @throws CheckpointError naming the file, the array, the parameter and the range of the index
ShardData read_shard(const CheckpointHeader& header, const std::vector<comm::Interval>& wanted);

/// A whole checkpoint for use without ranks.
struct StoredParameters {
  std::int64_t iteration = 0;
  std::vector<ParameterRecord> parameters;
  std::vector<std::vector<float>> masters;   ///< FP32 values of each parameter, in logical order
  std::vector<std::vector<float>> averages;  ///< the same of "ema"; empty where none was kept
  std::vector<BufferRecord> buffers;
  nlohmann::json state;
};

/// Read masters and averages of all parameters. `path` is a step folder or a run folder; of a run
/// folder the newest valid checkpoint is taken. Local, no MPI; nothing is renamed or written.
/// @throws CheckpointError (65) when nothing valid is there: each candidate with its reason
StoredParameters read_parameters(const std::filesystem::path& path);

/// Check every byte of a step folder.
/// @throws CheckpointError naming the first thing that is wrong
void verify_checkpoint(const std::filesystem::path& step_folder);

/// Step folders below `run_folder`/ckpt, newest iteration first; bad ones that were set aside and
/// unfinished ones are not among them.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& run_folder);

/// The step folder that the file `name` (LATEST, best) in ckpt/ names; empty where there is no such
/// file or folder.
std::filesystem::path pointed_at(const std::filesystem::path& run_folder, const std::string& name);

/// Step folders that `path` stands for, newest first: itself, those in it, or those in its ckpt/.
std::vector<std::filesystem::path> step_folders_of(const std::filesystem::path& path);

}  // namespace vsr::runtime
