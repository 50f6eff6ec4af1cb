// SPDX-License-Identifier: Apache-2.0
// Writes and finds the checkpoints of a run, on all ranks together. A checkpoint appears by one
// rename after everything in it has reached the disk, so it is there completely or not at all.
// Files are written in the background; what ranks must agree on happens in the calls of this class.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
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

/// Which checkpoints of a run stay: the newest `last` valid ones, those whose iteration is a
/// multiple of `every`, and that of iteration `best`.
struct KeepPolicy {
  int last = 3;            ///< at least 1
  std::int64_t every = 0;  ///< 0: none
  std::int64_t best = -1;  ///< -1: none
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
  /// Local. A save in flight is waited for and given up: its temporary files go.
  ~CheckpointStore();
  CheckpointStore(const CheckpointStore&) = delete;
  CheckpointStore& operator=(const CheckpointStore&) = delete;

  /// Begin to write `snapshot` to ckpt/step_ITERATION; it will replace one of the same iteration.
  /// Returns once the snapshot is owned here: files are written by a thread of this object.
  /// @throws ArgumentError while another save is in flight
  /// @throws AgreedError on all ranks when any of them failed, here and in advance(): 74 for the
  ///         disk, 70 for a snapshot that breaks the rules. Older checkpoints are untouched,
  ///         temporary files are removed, and a later save may succeed.
  void begin_save(Snapshot snapshot);
  /// A save was begun and neither published nor failed; equal on all ranks. Local.
  bool in_flight() const noexcept { return save_ != nullptr; }
  /// This rank is still writing for the save in flight. Local, never waits.
  bool is_busy() const;
  /// Bytes of values that this rank has written for the save in flight, and has to write; local.
  struct Written {
    std::int64_t done_bytes = 0;
    std::int64_t all_bytes = 0;
  };
  Written written() const;
  /// Take the save in flight one stage further, waiting for ranks that are busy: once all shards
  /// are written, rank 0 begins to publish; once it has, the save is over. Call it when no rank is
  /// busy, and nobody waits.
  /// @returns the step folder when the checkpoint is durable, nothing before
  /// @throws AgreedError as begin_save
  std::optional<std::filesystem::path> advance();
  /// All of the above, waiting for the disk. Returns the folder.
  /// @throws AgreedError as begin_save
  std::filesystem::path save(Snapshot snapshot);

  /// Find the checkpoint that `policy` asks for and give each rank the pieces it wants. A damaged
  /// one of this run is renamed to step_N.corrupt and the next older one is tried.
  /// @returns nothing only for Kind::automatic in a run that never had a checkpoint
  /// @throws AgreedError on all ranks: 65 when only bad ones are there, or none where one must be,
  ///         each with its reason; 78 for a format this program does not know; whatever `wanted`
  ///         threw (78 for another network)
  std::optional<LoadedCheckpoint> load(const ResumePolicy& policy, const WantedIntervals& wanted);

  /// Delete the checkpoints that `policy` does not keep; a bad one does not count as one of the
  /// newest, so the last valid one always stays. Lets `ckpt/best` name the best one, in the form of
  /// LATEST. Returns the deleted folders.
  /// @throws AgreedError 74 when one cannot be deleted
  std::vector<std::filesystem::path> prune(const KeepPolicy& policy);

  /// ckpt/ of the run. Local.
  std::filesystem::path folder() const { return run_folder_ / "ckpt"; }
  /// The newest checkpoint whose manifest and sizes hold, for messages; empty when there is none.
  /// Local.
  std::filesystem::path newest_valid() const;

 private:
  struct Save;
  void collect_shards();
  void give_up() noexcept;
  std::vector<std::string> candidates(const ResumePolicy& policy) const;

  std::filesystem::path run_folder_;
  comm::Communicator& world_;
  std::int64_t saves_ = 0;
  std::int64_t named_best_ = -1;  // iteration that rank 0 gave to `best`
  std::unique_ptr<Save> save_;    // the one in flight
};

}  // namespace vsr::runtime
