// SPDX-License-Identifier: Apache-2.0
// `vsr upscale`: a trained network applied to a clip of one's own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "runtime/precision/precision.hpp"

namespace vsr::launch {

struct UpscaleOptions {
  std::filesystem::path checkpoint;  ///< a step folder or a run folder
  std::filesystem::path input;       ///< a video file or a folder of pictures: the low resolution
  std::filesystem::path output;      ///< .mp4, .mkv, .mov, or a folder of PNG files
  std::optional<runtime::Precision> precision;  ///< unset: the one of training
};

struct UpscaleResult {
  std::int64_t frames = 0;     ///< written
  std::int64_t iteration = 0;  ///< of the checkpoint that was used
};

/// Told after each frame how many of how many are done.
using UpscaleProgress = std::function<void(std::int64_t done, std::int64_t total)>;

/// Write every frame of `input`, enlarged, to `output`: as many frames, at the same rate. At the
/// ends of the clip the window is mirrored. The output appears when it is complete.
/// @throws CheckpointError, DataError, IoError naming the file; ConfigurationError when the output
///         exists already, or the checkpoint's parameters are not those of the network it describes
UpscaleResult upscale(const UpscaleOptions& options, const UpscaleProgress& progress);

}  // namespace vsr::launch
