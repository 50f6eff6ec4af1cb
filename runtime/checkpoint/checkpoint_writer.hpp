// SPDX-License-Identifier: Apache-2.0
// The steps in which a checkpoint comes to be, each done by one rank: the store runs them in order,
// with an agreement after each. Private to this folder and its tests; no MPI here.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/checkpoint/manifest.hpp"
#include "runtime/checkpoint/snapshot.hpp"

namespace vsr::runtime {

/// Write and sync the shard file of `rank` into `folder`. @returns its entry for the manifest
/// @param written_bytes counts the values as they are written; may be null
/// @throws ArgumentError for a snapshot that breaks the rules; IoError
ShardEntry write_shard(const std::filesystem::path& folder, const Snapshot& snapshot, int rank,
                       int world, std::atomic<std::int64_t>* written_bytes = nullptr);

/// Bytes of the values in `shard`.
std::int64_t array_bytes(const ShardData& shard);

/// Write and sync global.h5, then MANIFEST.json, then the folder itself.
/// @throws ArgumentError when the shards do not cover the parameters once; IoError
void write_global_files(const std::filesystem::path& folder, const Snapshot& snapshot,
                        const std::vector<ShardEntry>& shards);

/// Give the finished folder `temporary` the name `target`, in place of what may be there, durably.
/// @throws IoError
void publish_folder(const std::filesystem::path& temporary, const std::filesystem::path& target);

/// Let the file `name` (LATEST, best) beside `step_folder` name it and the checksum of its
/// manifest.
/// @throws IoError
void write_pointer(const std::filesystem::path& step_folder, const std::string& name);

/// Take a checkpoint away: it loses its name in one step, its files after that. @throws IoError
void delete_checkpoint(const std::filesystem::path& step_folder);

}  // namespace vsr::runtime
