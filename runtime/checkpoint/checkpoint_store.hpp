// SPDX-License-Identifier: Apache-2.0
// Writes and finds the checkpoints of a run, on all ranks together. A checkpoint appears by one
// rename after everything in it has reached the disk, so it is there completely or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "runtime/checkpoint/snapshot.hpp"

namespace vsr::runtime {

/// What `--resume` asks for.
struct ResumePolicy {
  enum class Kind {
    automatic,  ///< the newest valid checkpoint of this run, or none when there never was one
    must,       ///< the same, but there has to be one
    path,       ///< from a step folder or a run folder, which is only read
  };
  Kind kind = Kind::automatic;
  std::filesystem::path path;  ///< for Kind::path
};

/// A checkpoint as this rank got it.
struct LoadedCheckpoint {
  Snapshot snapshot;
  std::filesystem::path folder;      ///< the step folder
  int saved_world = 0;               ///< ranks that wrote it
  std::vector<std::string> notices;  ///< bad checkpoints passed over, with reasons; equal on all
                                     ///< ranks
};

/// Told what the checkpoint holds (of `shard` the names of the arrays), returns the pieces of the
/// logical global index that this rank needs. The place for match_parameters: what it throws ends
/// the load on all ranks, and the checkpoint is left as it is.
using WantedIntervals = std::function<std::vector<comm::Interval>(const Snapshot& header)>;

/// The folder `ckpt` of one run. Every function is collective unless said otherwise.
class CheckpointStore {
 public:
  /// Local. `world` outlives this object. Nothing is created before the first save.
  CheckpointStore(std::filesystem::path run_folder, comm::Communicator& world);

  /// Write `snapshot` to ckpt/step_ITERATION and make it durable; it replaces one of the same
  /// iteration. Returns the folder.
  /// @throws AgreedError on all ranks when any of them failed: 74 for the disk, 70 for a snapshot
  ///         that breaks the rules. Older checkpoints are untouched, temporary files are removed,
  ///         and a later save may succeed.
  std::filesystem::path save(const Snapshot& snapshot);

  /// Find the checkpoint that `policy` asks for and give each rank the pieces it wants. A damaged
  /// one of this run is renamed to step_N.corrupt and the next older one is tried.
  /// @returns nothing only for Kind::automatic in a run that never had a checkpoint
  /// @throws AgreedError on all ranks: 65 when only bad ones are there, or none where one must be,
  ///         each with its reason; 78 for a format this program does not know; whatever `wanted`
  ///         threw (78 for another network)
  std::optional<LoadedCheckpoint> load(const ResumePolicy& policy, const WantedIntervals& wanted);

  /// Keep the newest `keep_last` valid checkpoints and delete the older ones; a bad one does not
  /// count, so the last valid one always stays. Returns the deleted folders.
  /// @throws AgreedError 74 when one cannot be deleted
  std::vector<std::filesystem::path> prune(int keep_last);

  /// ckpt/ of the run. Local.
  std::filesystem::path folder() const { return run_folder_ / "ckpt"; }
  /// The newest checkpoint whose manifest and sizes hold, for messages; empty when there is none.
  /// Local.
  std::filesystem::path newest_valid() const;

 private:
  void write_all(const Snapshot& snapshot, const std::filesystem::path& temporary,
                 const std::filesystem::path& target);
  std::vector<std::string> candidates(const ResumePolicy& policy) const;

  std::filesystem::path run_folder_;
  comm::Communicator& world_;
  std::int64_t saves_ = 0;
};

}  // namespace vsr::runtime
