// SPDX-License-Identifier: Apache-2.0
// Between the optimizer, which holds the state of a run, and a checkpoint, which stores it: what is
// saved, under which names, and how it goes back.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "optim/fp16_optimizer.hpp"
#include "runtime/checkpoint/snapshot.hpp"

namespace vsr::runtime {

/// What a run has reached.
struct Progress {
  std::int64_t iteration = 0;  ///< iterations done, skipped steps included
  double psnr_y = 0;           ///< of the newest validation
  double bicubic_psnr_y = 0;
  bool is_validated = false;         ///< the two numbers above are there
  std::int64_t best_iteration = -1;  ///< with the highest psnr_y of all that have a checkpoint; -1:
                                     ///< none
  double best_psnr_y = 0;
};

/// The table of parameters as a checkpoint stores it, with its counters. Local.
std::vector<ParameterRecord> parameter_records(const optim::Fp16Optimizer& optimizer);

/// Copies of the module's buffers. Local.
std::vector<BufferRecord> buffer_records(const std::vector<optim::NamedBuffer>& buffers);

/// This rank's part of a checkpoint: a copy of everything, so training may go on. Local.
/// @param configuration what the run was started with; stored in state["configuration"]
Snapshot take_snapshot(optim::Fp16Optimizer& optimizer,
                       const std::vector<optim::NamedBuffer>& buffers, const Progress& progress,
                       const nlohmann::json& configuration);

/// Collective. Put a loaded snapshot, holding the intervals of optimizer.shard(), into optimizer,
/// buffers and replicas.
/// @throws CheckpointError when the state lacks a key or has one of the wrong type, or the shard an
///         array; then nothing has changed
Progress restore_snapshot(const Snapshot& snapshot, optim::Fp16Optimizer& optimizer,
                          const std::vector<optim::NamedBuffer>& buffers);

/// Compare what a run was made with (`saved`) and what is asked for now (`current`).
/// @param drifting keys that may differ
/// @returns a line for each key that differs and may
/// @throws ConfigurationError naming each other key that differs, with both values and what to do,
///         and for a drifting key that is none
std::vector<std::string> match_configuration(const nlohmann::json& saved,
                                             const nlohmann::json& current,
                                             const std::vector<std::string>& drifting = {});

}  // namespace vsr::runtime
