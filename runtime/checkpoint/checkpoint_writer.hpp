// SPDX-License-Identifier: Apache-2.0
// The steps in which a checkpoint comes to be, each done by one rank: the store runs them in order,
// with an agreement after each. Private to this folder and its tests; no MPI here.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "runtime/checkpoint/files.hpp"
#include "runtime/checkpoint/manifest.hpp"
#include "runtime/checkpoint/snapshot.hpp"

namespace vsr::runtime {

/// Write and sync the shard file of `rank` into `folder`. @returns its entry for the manifest
/// @param written_bytes counts the values as they are written; may be null
/// @param meanwhile called when all is written, while the disk is still at work on it
/// @throws ArgumentError for a snapshot that breaks the rules; IoError; what `meanwhile` throws
ShardEntry write_shard(const std::filesystem::path& folder, const Snapshot& snapshot, int rank,
                       int world, std::atomic<std::int64_t>* written_bytes = nullptr,
                       const std::function<void()>& meanwhile = {});

/// Bytes of the values in `shard`.
std::int64_t array_bytes(const ShardData& shard);

/// A global.h5 that is written, but may not be on the disk yet.
struct GlobalFile {
  OutputFile file;
  std::int64_t size_bytes = 0;
  std::uint64_t checksum = 0;
  std::vector<std::int64_t> buffer_offsets_bytes;  ///< in the order of Snapshot::buffers
};

/// Write global.h5 for shards that hold `intervals`, each of one rank.
/// @throws IoError
GlobalFile write_global_view(const std::filesystem::path& folder, const Snapshot& snapshot,
                             const std::vector<ShardIntervals>& intervals);

/// Sync `global`, then write and sync MANIFEST.json, then the folder itself.
/// @throws ArgumentError when the shards do not cover the parameters once; IoError
void write_manifest(const std::filesystem::path& folder, const Snapshot& snapshot,
                    const std::vector<ShardEntry>& shards, GlobalFile global);

/// Both of the above.
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
