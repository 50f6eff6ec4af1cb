// SPDX-License-Identifier: Apache-2.0
// Structural similarity with the window and constants of the original paper, which the tables of
// super-resolution use; common libraries default to others.
#pragma once

#include <cstdint>

#include "runtime/video/image.hpp"

namespace vsr::runtime {

/// Mean of the SSIM map of luma: 11x11 Gaussian window, sigma 1.5, only where it fits wholly into
/// the picture; C1 = (0.01 * 255)^2, C2 = (0.03 * 255)^2; weighted population variances. 1 for
/// equal pictures; may be negative. Source: Wang, Bovik, Sheikh, Simoncelli, IEEE TIP 13(4), 2004.
/// @throws ArgumentError when sizes differ; DataError below 11 pixels after cutting `crop` pixels
///         from every side
double ssim_y(const ImageU8& a, const ImageU8& b, std::int64_t crop = 0);

/// Mean of the SSIM of the three channels.
double ssim_rgb(const ImageU8& a, const ImageU8& b, std::int64_t crop = 0);

}  // namespace vsr::runtime
