// SPDX-License-Identifier: Apache-2.0
// Writes a whole checkpoint from one process, shard after shard. Private to this folder.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "runtime/checkpoint/snapshot.hpp"

namespace vsr::runtime {

/// The values of all arrays in these pieces of the logical global index.
using ShardSource = std::function<ShardData(const std::vector<comm::Interval>&)>;

/// Write `snapshot` (its shard is ignored) with the values of `source` to the new step folder
/// `target`, cut for `world` ranks. It appears when it is complete; after a failure nothing stays.
/// @throws ConfigurationError when `target` exists; what `source` throws; IoError
void write_step_folder(const std::filesystem::path& target, Snapshot snapshot, int world,
                       const ShardSource& source);

}  // namespace vsr::runtime
