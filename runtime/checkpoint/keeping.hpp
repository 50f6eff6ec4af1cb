// SPDX-License-Identifier: Apache-2.0
// Which checkpoints of a run may go.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace vsr::runtime {

struct KeepingRules {
  int keep_last = 1;            ///< newest valid ones; at least 1
  std::int64_t keep_every = 0;  ///< and those whose iteration is a multiple; 0: no such rule
  /// and the valid one that ckpt/best names, else the one with the highest PSNR-Y of its validation
  bool keep_best = false;
};

/// A checkpoint and what becomes of it.
struct KeptOrNot {
  std::filesystem::path folder;
  bool is_kept = false;
  std::string reason;  ///< "newest", "every 1000", "best", "not needed", "damaged: …"
};

/// Decide for each checkpoint of a run, newest first. Damaged ones count for no rule and go only
/// when a valid one stays; where none is valid all stay. The newest are checked byte by
/// byte, the others as choose_checkpoint does.
/// @throws ArgumentError for rules out of range; IoError
std::vector<KeptOrNot> decide_keeping(const std::filesystem::path& run_folder,
                                      const KeepingRules& rules);

/// Delete those of `entries`, all checkpoints of a run, that are not kept. LATEST and best never
/// name one that is gone: before that LATEST goes back to the newest kept one, and best is removed.
/// @throws IoError
void delete_unkept(const std::filesystem::path& run_folder, const std::vector<KeptOrNot>& entries);

}  // namespace vsr::runtime
