// SPDX-License-Identifier: Apache-2.0
// Pictures side by side with captions: what a person looks at after a run.
#pragma once

#include <span>
#include <string>

#include "runtime/video/image.hpp"

namespace vsr::runtime {

struct StripTile {
  ImageU8 image;
  std::string caption;  ///< ASCII; small letters are drawn as capitals
};

/// Place tiles of equal size from left to right, a thin line between them, captions above. A
/// caption too long for its tile is cut.
/// @throws ArgumentError without tiles, or when sizes differ
ImageU8 make_strip(std::span<const StripTile> tiles);

/// low | bicubic | super-resolved | original, with PSNR-Y values in dB in the captions of the
/// middle two.
/// @param low      the low-resolution frame, drawn enlarged without smoothing
/// @param original height and width = scale * those of `low`
/// @throws ArgumentError when sizes do not fit
ImageU8 make_comparison_strip(const ImageU8& low, const ImageU8& bicubic,
                              const ImageU8& super_resolved, const ImageU8& original,
                              double bicubic_psnr_y, double psnr_y);

}  // namespace vsr::runtime
