// SPDX-License-Identifier: Apache-2.0
// Writes a whole checkpoint from one process, as any number of ranks would.
#pragma once

#include "runtime/checkpoint/checkpoint_writer.hpp"
#include "runtime/checkpoint/files.hpp"
#include "runtime/checkpoint/step_folder.hpp"
#include "tests/support/checkpoint_samples.hpp"

namespace vsr::test {

inline std::filesystem::path write_sample(const std::filesystem::path& run_folder,
                                          std::int64_t iteration, int world,
                                          std::int64_t wide = 400,
                                          const std::vector<std::string>& arrays = kAdamArrays) {
  const auto folder = run_folder / "ckpt";
  const auto temporary = folder / (".tmp-" + std::to_string(iteration));
  const auto target = folder / runtime::step_name(iteration);
  runtime::create_folders(folder);
  runtime::create_folder(temporary);
  std::vector<runtime::ShardEntry> shards;
  for (int rank = 0; rank < world; ++rank)
    shards.push_back(runtime::write_shard(
        temporary, sample_snapshot(iteration, rank, world, wide, arrays), rank, world));
  runtime::write_global_files(temporary, sample_snapshot(iteration, 0, world, wide, arrays),
                              shards);
  runtime::publish_folder(temporary, target);
  runtime::write_pointer(target, "LATEST");
  return target;
}

/// Write the checkpoint of iteration 5 of one rank after `change` to its snapshot.
template <typename Change>
std::filesystem::path write_changed(const std::filesystem::path& run, Change change) {
  const auto folder = run / "ckpt" / "step_00000005";
  runtime::create_folders(folder);
  runtime::Snapshot snapshot = sample_snapshot(5, 0, 1);
  change(snapshot);
  runtime::write_global_files(folder, snapshot, {runtime::write_shard(folder, snapshot, 0, 1)});
  return folder;
}

}  // namespace vsr::test
