// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/checkpoint_store.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <system_error>
#include <type_traits>
#include <utility>

#include "comm/error.hpp"
#include "runtime/checkpoint/checkpoint_writer.hpp"
#include "runtime/checkpoint/files.hpp"
#include "runtime/checkpoint/step_folder.hpp"

namespace vsr::runtime {
namespace {

namespace fs = std::filesystem;

// Names travel as one string; no path holds this character.
constexpr char kSeparator = '\0';

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += part + kSeparator;
  return text;
}

std::vector<std::string> taken_apart(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find(kSeparator, begin);
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// Free what a failed save holds; that it failed is reported already.
void remove_quietly(const fs::path& folder) noexcept {
  std::error_code ignored;
  // Again, where another rank removed the same files at the same time.
  for (int i = 0; i < 3 && fs::exists(folder, ignored); ++i) fs::remove_all(folder, ignored);
}

/// By manifest and sizes, which is what an interrupted or truncated checkpoint fails at.
bool looks_valid(const fs::path& step_folder) {
  try {
    read_manifest(step_folder);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// The name a damaged checkpoint gets; the plain one unless it is taken.
fs::path corrupt_name(const fs::path& folder) {
  std::error_code ignored;
  fs::path name = folder.string() + ".corrupt";
  for (int i = 2; fs::exists(name, ignored); ++i)
    name = folder.string() + ".corrupt-" + std::to_string(i);
  return name;
}

/// Why the ranks could not use a checkpoint, equal on all of them.
struct UnusableCheckpoint {
  std::string reason;
  bool is_damaged = false;  // else the system refused to read it, and it may be sound
};

/// Agree on `action`, which reads a checkpoint.
void agree_on_reading(comm::Communicator& world, const std::function<void()>& action) {
  try {
    world.agree_all_ok("reading a checkpoint", action);
  } catch (const AgreedError& error) {
    if (error.exit_code() != ExitCode::data && error.exit_code() != ExitCode::io) throw;
    throw UnusableCheckpoint{error.what(), error.exit_code() == ExitCode::data};
  }
}

std::vector<ShardIntervals> intervals_of_all(comm::Communicator& world,
                                             const ShardIntervals& mine) {
  static_assert(std::is_trivially_copyable_v<comm::Interval>);
  const std::string bytes(reinterpret_cast<const char*>(mine.data()),
                          mine.size() * sizeof(comm::Interval));
  std::vector<ShardIntervals> all;
  for (const std::string& text : world.all_gather_strings(bytes)) {
    ShardIntervals& intervals = all.emplace_back(text.size() / sizeof(comm::Interval));
    std::memcpy(intervals.data(), text.data(), text.size());
  }
  return all;
}

LoadedCheckpoint read_candidate(comm::Communicator& world, const fs::path& step_folder,
                                const WantedIntervals& wanted) {
  CheckpointHeader header;
  agree_on_reading(world, [&] { header = read_header(step_folder); });
  std::vector<comm::Interval> intervals;
  world.agree_all_ok("comparing a checkpoint with the network",
                     [&] { intervals = wanted(header.snapshot); });
  agree_on_reading(world, [&] {
    // The ranks share the parts of the files that no rank wants.
    for (std::size_t i = static_cast<std::size_t>(world.rank()); i < header.manifest.shards.size();
         i += static_cast<std::size_t>(world.world()))
      verify_frame(header, i);
    header.snapshot.shard = read_shard(header, intervals);
  });
  return {std::move(header.snapshot), step_folder, header.manifest.world, {}};
}

/// Set a damaged checkpoint of our own run aside. @returns what happened, equal on all ranks
std::string passed_over(comm::Communicator& world, const fs::path& step_folder,
                        const UnusableCheckpoint& unusable, bool is_ours) {
  std::string notice = "'" + step_folder.string() + "' was passed over: " + unusable.reason;
  if (world.rank() == 0 && is_ours && unusable.is_damaged) {
    const fs::path name = corrupt_name(step_folder);
    try {
      rename_path(step_folder, name);
      notice += "; renamed to " + name.filename().string();
    } catch (const IoError& error) {
      notice += std::string("; ") + error.what();
    }
  }
  return world.broadcast_string(notice, 0);
}

}  // namespace

// Stages: every rank writes its shard, rank 0 the view of all; rank 0 writes the manifest and
// renames the folder.
struct CheckpointStore::Save {
  Save(Snapshot given, fs::path temporary_folder, fs::path target_folder, std::int64_t bytes)
      : snapshot(std::move(given)),
        temporary(std::move(temporary_folder)),
        target(std::move(target_folder)),
        all_bytes(bytes) {}

  Snapshot snapshot;
  fs::path temporary;
  fs::path target;
  std::int64_t all_bytes = 0;
  std::atomic<std::int64_t> done_bytes = 0;
  std::vector<ShardIntervals> intervals;  // of all ranks
  std::optional<GlobalFile> global;       // of rank 0, from the end of the first stage on
  std::future<ShardEntry> shard;          // of this rank; valid in the first stage
  std::future<void> publication;          // of rank 0; valid in the second

  // The view of the whole is laid out while the disk works on the shard.
  ShardEntry write(int rank) {
    return write_shard(temporary, snapshot, rank, static_cast<int>(intervals.size()), &done_bytes,
                       [&] {
                         if (rank == 0) global = write_global_view(temporary, snapshot, intervals);
                       });
  }
  void publish(const std::vector<ShardEntry>& shards) {
    write_manifest(temporary, snapshot, shards, std::move(*global));
    publish_folder(temporary, target);
    write_pointer(target, "LATEST");
  }
};

CheckpointStore::CheckpointStore(fs::path run_folder, comm::Communicator& world)
    : run_folder_(std::move(run_folder)), world_(world) {}

CheckpointStore::~CheckpointStore() {
  give_up();
}

// The futures wait for their threads. While shards are written each rank removes what is there when
// its own is done, so the last one leaves nothing; later the folder is that of rank 0 alone.
void CheckpointStore::give_up() noexcept {
  const std::unique_ptr<Save> save = std::move(save_);
  if (!save) return;
  const bool is_shard_stage = save->shard.valid();
  save->shard = {};
  save->publication = {};
  if (world_.rank() == 0 || is_shard_stage) remove_quietly(save->temporary);
}

void CheckpointStore::begin_save(Snapshot snapshot) {
  const comm::Communicator::Purpose purpose(world_, "checkpoint");
  VSR_CHECK(!in_flight(), "a save is in flight; finish it before the next");
  const bool is_root = world_.rank() == 0;
  const fs::path target = folder() / step_name(snapshot.iteration);
  const std::string name =
      world_.broadcast_string(".tmp-" + step_name(snapshot.iteration) + "-" + world_.host() + "-" +
                                  std::to_string(::getpid()) + "-" + std::to_string(saves_++),
                              0);
  const std::int64_t bytes = array_bytes(snapshot.shard);
  save_ = std::make_unique<Save>(std::move(snapshot), folder() / name, target, bytes);
  try {
    world_.agree_all_ok("making the folder of a checkpoint", [&] {
      validate(save_->snapshot);
      if (!is_root) return;
      create_folders(folder());
      remove_tree(save_->temporary);
      create_folder(save_->temporary);
    });
    save_->intervals = intervals_of_all(world_, save_->snapshot.shard.intervals);
    world_.agree_all_ok("starting to write a checkpoint", [&] {
      save_->shard = std::async(
          std::launch::async, [&save = *save_, rank = world_.rank()] { return save.write(rank); });
    });
  } catch (...) {
    give_up();
    throw;
  }
}

bool CheckpointStore::is_busy() const {
  const auto is_running = [](const auto& future) {
    return future.valid() && future.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  };
  return save_ && (is_running(save_->shard) || is_running(save_->publication));
}

CheckpointStore::Written CheckpointStore::written() const {
  return save_ ? Written{save_->done_bytes, save_->all_bytes} : Written{};
}

void CheckpointStore::collect_shards() {
  const bool is_root = world_.rank() == 0;
  ShardEntry mine;
  world_.agree_all_ok("writing the shard of a checkpoint", [&] { mine = save_->shard.get(); });
  save_->snapshot.shard.arrays.clear();  // written
  const std::vector<std::string> entries = world_.all_gather_strings(to_text(mine));
  world_.agree_all_ok("publishing a checkpoint", [&] {
    if (!is_root) return;
    std::vector<ShardEntry> shards;
    for (const std::string& entry : entries) shards.push_back(shard_entry_from_text(entry));
    save_->publication = std::async(
        std::launch::async, [&save = *save_, shards = std::move(shards)] { save.publish(shards); });
  });
}

std::optional<fs::path> CheckpointStore::advance() {
  const comm::Communicator::Purpose purpose(world_, "checkpoint");
  VSR_CHECK(in_flight(), "no save is in flight");
  try {
    if (save_->shard.valid()) {
      collect_shards();
      return std::nullopt;
    }
    world_.agree_all_ok("publishing a checkpoint", [&] {
      if (save_->publication.valid()) save_->publication.get();
    });
  } catch (...) {
    // All ranks have agreed that it failed, so none of them still writes there.
    give_up();
    throw;
  }
  const fs::path target = save_->target;
  save_.reset();
  return target;
}

fs::path CheckpointStore::save(Snapshot snapshot) {
  begin_save(std::move(snapshot));
  for (;;)
    if (const auto folder = advance()) return *folder;
}

std::vector<std::string> CheckpointStore::candidates(const ResumePolicy& policy) const {
  std::vector<std::string> names;
  if (policy.kind == ResumePolicy::Kind::path) {
    for (const fs::path& step : step_folders_of(policy.path)) names.push_back(step.string());
    return names;
  }
  for (const fs::path& step : list_checkpoints(run_folder_)) names.push_back(step.string());
  // A run whose checkpoints are all damaged is no fresh run.
  for (const fs::path& step : damaged_folders(run_folder_)) names.push_back(step.string());
  return names;
}

std::optional<LoadedCheckpoint> CheckpointStore::load(const ResumePolicy& policy,
                                                      const WantedIntervals& wanted) {
  const bool is_ours = policy.kind != ResumePolicy::Kind::path;
  std::string found;
  world_.agree_all_ok("looking for checkpoints", [&] {
    if (world_.rank() == 0) found = joined(candidates(policy));
  });
  const std::vector<std::string> names = taken_apart(world_.broadcast_string(found, 0));
  std::vector<std::string> notices;
  for (const std::string& name : names) {
    const fs::path step = name;
    if (is_ours && iteration_of(step.filename().string()) < 0) {
      notices.push_back("'" + name + "' was found damaged before");
      continue;
    }
    try {
      LoadedCheckpoint loaded = read_candidate(world_, step, wanted);
      loaded.notices = std::move(notices);
      return loaded;
    } catch (const UnusableCheckpoint& unusable) {
      notices.push_back(passed_over(world_, step, unusable, is_ours));
    }
  }
  if (names.empty() && policy.kind == ResumePolicy::Kind::automatic) return std::nullopt;
  std::string message =
      "no usable checkpoint in '" + (is_ours ? run_folder_ : policy.path).string() + "'";
  if (names.empty()) message += ": there is none";
  for (const std::string& notice : notices) message += "\n  " + notice;
  throw AgreedError(ExitCode::data, message, 0);
}

std::vector<fs::path> CheckpointStore::prune(const KeepPolicy& policy) {
  const comm::Communicator::Purpose purpose(world_, "checkpoint");
  VSR_CHECK(policy.last >= 1, "keep at least one checkpoint, got " + std::to_string(policy.last));
  const bool is_root = world_.rank() == 0;
  std::vector<std::string> deleted;
  world_.agree_all_ok("deleting old checkpoints", [&] {
    if (!is_root) return;
    int kept = 0;
    for (const fs::path& step : list_checkpoints(run_folder_)) {
      const std::int64_t iteration = iteration_of(step.filename().string());
      if (iteration == policy.best && iteration != named_best_) {
        write_pointer(step, "best");
        named_best_ = iteration;
      }
      if (kept < policy.last)
        kept += looks_valid(step) ? 1 : 0;
      else if (iteration != policy.best && (policy.every == 0 || iteration % policy.every != 0))
        deleted.push_back(step.string());
    }
    for (const std::string& step : deleted) delete_checkpoint(step);
  });
  const std::vector<std::string> names = taken_apart(world_.broadcast_string(joined(deleted), 0));
  return {names.begin(), names.end()};
}

fs::path CheckpointStore::newest_valid() const {
  for (const fs::path& step : list_checkpoints(run_folder_))
    if (looks_valid(step)) return step;
  return {};
}

}  // namespace vsr::runtime
