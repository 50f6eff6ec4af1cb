// SPDX-License-Identifier: Apache-2.0
// Where a random crop lies and how it is turned: the one place where low- and high-resolution
// coordinates meet, so that they cannot drift apart.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/video/dataset.hpp"
#include "runtime/video/image.hpp"
#include "runtime/video/sampler.hpp"

namespace vsr::runtime {

/// A square of a frame and the flips applied to what is cut: first horizontal, then vertical, then
/// transpose.
struct CropWindow {
  std::int64_t top = 0;
  std::int64_t left = 0;
  std::int64_t size = 0;
  bool flip_horizontal = false;
  bool flip_vertical = false;
  bool transpose = false;

  /// The same square of a frame `scale` times as large.
  CropWindow scaled(int scale) const noexcept;
};

/// The low-resolution square that `draw` chooses in a high-resolution frame of height x width,
/// which is at least the crop and a multiple of the scale.
CropWindow place_crop(const SampleDraw& draw, const DatasetOptions& options, std::int64_t height,
                      std::int64_t width) noexcept;

/// Cut the square, flip it and write it as planes of FP32 [0, 1].
/// @param planes [out] 3 * size * size
/// @throws ArgumentError when it does not lie inside the picture or sizes do not fit
void cut_planes(const ImageU8& image, const CropWindow& window, std::span<float> planes);

}  // namespace vsr::runtime
