// SPDX-License-Identifier: Apache-2.0
// The training loop: one step after the other, in the design's words, with validation, checkpoints
// and requests to stop in between.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "comm/communicator.hpp"
#include "comm/error.hpp"
#include "optim/fp16_optimizer.hpp"
#include "optim/schedule.hpp"
#include "runtime/checkpoint/checkpoint_store.hpp"
#include "runtime/models/losses.hpp"
#include "runtime/models/vsr_net.hpp"
#include "runtime/precision/fp16_module.hpp"
#include "runtime/train/run_report.hpp"
#include "runtime/train/run_state.hpp"
#include "runtime/train/signals.hpp"
#include "runtime/video/dataset.hpp"
#include "runtime/video/sampler.hpp"

namespace vsr::runtime {

struct LoopOptions {
  std::int64_t total_iter = 0;
  std::int64_t save_freq = 0;   ///< iterations; 0: only at the end
  std::int64_t val_freq = 0;    ///< iterations; 0: only at the end
  double save_minutes = 0;      ///< since the last save, by the clock of rank 0; 0: off
  int keep = 3;                 ///< newest checkpoints kept
  std::int64_t keep_every = 0;  ///< and those of each multiple of this iteration; 0: none
  bool keep_best = false;       ///< and the best by psnr_y: a validation that improves is saved
  bool sync_saves = false;      ///< wait for the disk; else only for a copy of the state
  bool save_at_start = false;   ///< what is continued came from another folder: keep it in this one
  double clip_grad = 0;         ///< largest 2-norm of the gradient; 0: off
  optim::Schedule schedule;
  /// For tests: the loss of this leaf of this iteration (1-based) becomes infinite.
  std::optional<std::pair<std::int64_t, int>> force_overflow;
};

/// The parts a run is made of; all outlive the loop.
struct TrainParts {
  comm::Communicator& world;
  WindowDataset& data;
  const Sampler& sampler;
  Fp16Module<VsrNet>& net;
  Loss loss;
  optim::Fp16Optimizer& optimizer;
  CheckpointStore& store;
  RunReport& report;
  SignalRequests& signals;
  std::filesystem::path run_folder;
  nlohmann::json configuration;  ///< saved in checkpoints, compared at resume
};

/// Collective. Train from `progress` on to `options.total_iter`, or until a request to stop.
/// The final state is saved, validated (unless stopped) and reported; a validation that fails is a
/// warning. Where the optimizer keeps averages, validation runs on them.
/// @returns ExitCode::ok, or ExitCode::stopped after a checkpoint on request
/// @throws AgreedError 74 when the final state could not be saved, naming the newest valid
/// checkpoint; a
///         failure to save before the end is a warning
/// @throws DivergedError on all ranks when the loss scale is stuck at its floor, or as
///         require_not_diverged at the end
ExitCode train(TrainParts parts, const LoopOptions& options, Progress progress);

}  // namespace vsr::runtime
