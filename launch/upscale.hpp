// SPDX-License-Identifier: Apache-2.0
// `vsr upscale`: a trained network applied to a clip of one's own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "runtime/precision/precision.hpp"
#include "runtime/train/weights.hpp"

namespace vsr::launch {

struct UpscaleOptions {
  std::filesystem::path checkpoint;  ///< a step folder or a run folder
  std::filesystem::path input;       ///< a video file or a folder of pictures: the low resolution
  std::filesystem::path output;      ///< .mp4, .mkv, .mov, or a folder of PNG files
  std::optional<runtime::Precision> precision;  ///< unset: the one of training
  std::optional<runtime::Weights> weights;      ///< unset: the averages where there are some
};

struct UpscaleResult {
  std::int64_t frames = 0;                               ///< written
  std::int64_t iteration = 0;                            ///< of the checkpoint that was used
  runtime::Weights weights = runtime::Weights::masters;  ///< that were used
};

/// Told after each frame how many of how many are done.
using UpscaleProgress = std::function<void(std::int64_t done, std::int64_t total)>;

/// Write every frame of `input`, enlarged, to `output`: as many frames, at the same rate. At the
/// ends of the clip the window is mirrored. The output appears when it is complete.
/// @throws CheckpointError, DataError, IoError naming the file; ConfigurationError when the output
///         exists already, when the checkpoint's parameters are not those of the network it
///         describes, or when averages are asked for and none were kept
UpscaleResult upscale(const UpscaleOptions& options, const UpscaleProgress& progress);

}  // namespace vsr::launch
