// SPDX-License-Identifier: Apache-2.0
// Scores the network on held-out frames beside bicubic enlargement, which is the first thing anyone
// asks of a super-resolution number. Frames are dealt to the ranks and each counts exactly once.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "runtime/train/weights.hpp"
#include "runtime/video/dataset.hpp"

namespace vsr::runtime {

/// Scores of one frame or means of them. PSNR in dB on luma, border 0, pictures rounded to bytes.
struct Scores {
  double psnr_y = 0;
  double bicubic_psnr_y = 0;
  double ssim_y = 0;  ///< NaN for frames below 11 pixels
  double bicubic_ssim_y = 0;
};

/// Means over the frames of one clip. Frames that are reproduced exactly have an infinite PSNR;
/// they are left out of its mean (unless all are) and counted.
struct ClipScores {
  std::string name;
  std::int64_t frames = 0;
  std::int64_t exact_frames = 0;
  Scores mean;
};

struct ValidationResult {
  std::vector<ClipScores> clips;
  Scores mean;                         ///< mean of the clips' means
  Weights weights = Weights::masters;  ///< what the network was made of; set by who validates
};

/// Gives the network's picture, N×3×sh×sw, for a window N×T×3×h×w; FP32, host.
using Enlarge = std::function<torch::Tensor(const torch::Tensor& window)>;

/// Collective. Enlarge every held-out frame, frame i on rank i mod world, and score it; the result
/// is the same on all ranks and for any number of them. `folder`, where given: rank 0 writes
/// NAME.csv with a line a frame for each clip, and the rank that holds a clip's first frame writes
/// NAME_strip.png: low | bicubic | super-resolved | original.
/// @throws AgreedError: 65 for an unreadable frame, 74 for a file that cannot be written
ValidationResult validate(WindowDataset& data, comm::Communicator& world, const Enlarge& enlarge,
                          const std::optional<std::filesystem::path>& folder);

}  // namespace vsr::runtime
