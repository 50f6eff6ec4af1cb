// SPDX-License-Identifier: Apache-2.0
// The text of `--dry-run`, made from numbers alone, so that what it says can be tested exactly and
// the same lines can open the log of a real run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace vsr::launch {

/// A set of held-out frames.
struct HeldOut {
  std::string name;
  std::int64_t frames = 0;
};

/// All that the plan is computed from.
struct PlanNumbers {
  std::string model;
  std::string precision;             ///< as on the command line
  std::string reduction;             ///< as on the command line
  std::string optimizer;             ///< with its constants
  std::string loss_scale;            ///< its rules and where it starts
  std::vector<std::string> notices;  ///< of choices that do nothing
  int fp32_arrays = 3;               ///< master, moments and average
  int world = 1;                     ///< ranks
  int leaves = 8;                    ///< per step, over all ranks
  int batch = 2;                     ///< samples in a leaf
  std::int64_t clips = 0;
  std::int64_t samples = 0;  ///< per epoch
  std::int64_t total_iter = 0;
  std::int64_t warmup_iter = 0;
  std::int64_t parameters = 0;  ///< elements
  int gradient_bytes = 2;       ///< of a gradient's element, and of a replica's
  std::vector<HeldOut> held_out;
  std::function<double(std::int64_t)> learning_rate;  ///< of the applied step t, 0-based
};

/// Memory for parameters, gradients and optimizer of one rank, activations excluded, in bytes per
/// parameter: 4 + (4 + 4A)/P with A FP32 arrays and one leaf per rank, 4 + (8 + 4A)/P with several;
/// 4 + 16/P and 4 + 20/P for Adam.
std::int64_t state_bytes_per_rank(const PlanNumbers& numbers);

/// What a rank sends in a step, the mean over ranks, in bytes: (k + 1)·Ψ·(P−1)/P elements for k
/// leaves a rank that are reduced each, as `exact` does, and 2·Ψ·(P−1)/P where a rank adds its
/// leaves first.
std::int64_t sent_bytes_per_step(const PlanNumbers& numbers, bool reduces_each_leaf);

/// Size of one checkpoint over all ranks, in bytes: all FP32 arrays.
std::int64_t checkpoint_bytes(const PlanNumbers& numbers);

/// The plan, one fact per line, ending in a newline; warns when there are fewer leaves than ranks,
/// and ends with the notices.
/// @throws ArgumentError when a count that is divided by is not positive
std::string plan_text(const PlanNumbers& numbers);

}  // namespace vsr::launch
