// SPDX-License-Identifier: Apache-2.0
// The enlargement every network adds to and every table compares with. It is the cubic kernel with
// a = -0.5 and mirrored borders of MATLAB's imresize, because published numbers are measured with
// it; the bicubic mode of most frameworks uses a = -0.75 and other borders.
#pragma once

#include <torch/torch.h>

namespace vsr::runtime {

/// Enlarge `frames` by `scale` with MATLAB-compatible bicubic interpolation; records no gradient.
/// @param frames [in] N×C×h×w, FP32, h, w ≥ 1
/// @param scale  [in] ≥ 1
/// @return N×C×(s·h)×(s·w), FP32, not clamped: sharp edges overshoot
/// @throws ArgumentError on another shape, dtype or scale
torch::Tensor bicubic_upscale(const torch::Tensor& frames, int scale);

}  // namespace vsr::runtime
