// SPDX-License-Identifier: Apache-2.0
// Peak signal-to-noise ratio as the tables of super-resolution compute it. Each choice (bytes, the
// luma formula, the crop) moves the result, so they are fixed here once.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/video/image.hpp"

namespace vsr::runtime {

/// Luma of one pixel: BT.601 studio swing, 16 + (65.481 R + 128.553 G + 24.966 B) / 255, not
/// rounded.
double luma(std::uint8_t r, std::uint8_t g, std::uint8_t b) noexcept;

/// Luma of a picture, height x width, row by row.
std::vector<double> luma_plane(const ImageU8& image);

/// 10 log10(255^2 / mse) in dB on luma, after cutting `crop` pixels from every side; +inf for equal
/// pictures. The peak stays 255 although luma ends at 235.
/// @throws ArgumentError when sizes differ or the crop leaves nothing
double psnr_y(const ImageU8& a, const ImageU8& b, std::int64_t crop = 0);

/// The same with one mse over all pixels and the three channels.
double psnr_rgb(const ImageU8& a, const ImageU8& b, std::int64_t crop = 0);

}  // namespace vsr::runtime
