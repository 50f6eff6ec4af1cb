// SPDX-License-Identifier: Apache-2.0
// Bicubic resizing as the tables of the field define it. Libraries of others differ in kernel,
// antialiasing or borders, which moves a PSNR by decibels; so it is written here and checked
// against reference values.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/video/image.hpp"

namespace vsr::runtime {

/// The contribution of input samples to one output sample of an axis.
struct ResampleTaps {
  std::vector<std::int64_t> indices;  ///< input samples, already reflected into [0, n)
  std::vector<double> weights;        ///< sum to 1
};

/// Taps of `out` output samples from `in` input samples at `scale` = output / input pitch.
/// Keys' cubic, a = -0.5, stretched by 1 / scale when shrinking (antialias); sample o stands at
/// (o + 0.5) / scale - 0.5; borders are reflected including the edge sample.
/// @throws ArgumentError unless in, out and scale are positive
std::vector<ResampleTaps> bicubic_taps(std::int64_t in, std::int64_t out, double scale);

/// Cut right and bottom so that height and width are multiples of `scale`.
/// @throws DataError when nothing would be left; ArgumentError for a scale outside 1..16
ImageU8 modcrop(const ImageU8& image, int scale);

/// Shrink by `scale` (ceil(n / scale) pixels an axis); FP64, rounded once at the end for ImageU8.
/// @throws ArgumentError for a scale outside 1..16 or an empty image
ImageU8 downscale(const ImageU8& image, int scale);
ImageF downscale(const ImageF& image, int scale);
/// The same from bytes, not rounded.
ImageF downscale_exact(const ImageU8& image, int scale);

/// Enlarge by `scale`.
/// @throws ArgumentError as above
ImageU8 upscale(const ImageU8& image, int scale);
ImageF upscale(const ImageF& image, int scale);
ImageF upscale_exact(const ImageU8& image, int scale);

/// Enlarge by repeating pixels, to show low-resolution pictures as they are.
/// @throws ArgumentError as above
ImageU8 upscale_nearest(const ImageU8& image, int scale);

}  // namespace vsr::runtime
