// SPDX-License-Identifier: Apache-2.0
// What a run asks of its folder before the first iteration: that it can be written, has room, and
// holds no rubbish of dead runs. Better an error now than after an hour.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/checkpoint/run_lock.hpp"

namespace vsr::runtime {

/// Create `run_folder`, write, sync and remove a small file in it, and compare the free space with
/// `needed_bytes`, the size of the first save. Local.
/// @throws IoError (74) naming the folder and the reason ("no space left: needs 12 MB, 3 MB free")
void probe_writable(const std::filesystem::path& run_folder, std::int64_t needed_bytes);

/// Remove what dead runs left half done in `ckpt/` (temporary and trash folders), and put back a
/// checkpoint that died while it was being replaced. Local; the lock proves that no other run is at
/// it. Failures are no errors here: the returned lines say what was done and what could not be.
std::vector<std::string> remove_leftovers(const RunLock& lock);

/// True when the folder holds a run: a configuration, a log or a checkpoint, good or bad.
bool holds_a_run(const std::filesystem::path& run_folder);

}  // namespace vsr::runtime
