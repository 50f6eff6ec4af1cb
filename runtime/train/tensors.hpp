// SPDX-License-Identifier: Apache-2.0
// The step from samples to tensors: the one place where the data set, which knows no LibTorch,
// meets the network.
#pragma once

#include <torch/torch.h>

#include <cstdint>

#include "runtime/video/dataset.hpp"
#include "runtime/video/sampler.hpp"

namespace vsr::runtime {

/// The samples of one leaf: a micro-batch of exactly --batch windows. Host, FP32, RGB in [0, 1].
struct LeafBatch {
  torch::Tensor lr;  ///< B×T×3×(g/s)×(g/s)
  torch::Tensor gt;  ///< B×3×g×g, the middle frame
};

/// Fetch leaf `leaf` of step `step` (0-based); a function of seed, step and leaf alone, so any rank
/// may compute any leaf.
/// @throws DataError naming clip and frame when one cannot be decoded
LeafBatch fetch_leaf(WindowDataset& data, const Sampler& sampler, std::int64_t step, int leaf);

/// The window of a held-out frame as the network takes it: 1×T×3×h×w, FP32, host.
torch::Tensor window_tensor(const HeldOutFrame& frame);

/// The first picture of a network's output, N×3×H×W, FP32, host, RGB in [0, 1]: clipped and rounded
/// to bytes.
ImageU8 picture_of(const torch::Tensor& enlarged);

}  // namespace vsr::runtime
