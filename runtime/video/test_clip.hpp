// SPDX-License-Identifier: Apache-2.0
// A moving picture made from a seed: what tests train on, and the demo where there is no network.
// Textures finer than low-resolution pixels move by fractions of them, so that neighbouring frames
// hold detail that a single one has lost.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/video/image.hpp"

namespace vsr::runtime {

struct TestClipOptions {
  std::uint64_t seed = 0;
  std::int64_t frames = 48;
  std::int64_t height = 144;  ///< pixels
  std::int64_t width = 192;   ///< pixels
};

/// Frame `frame` of the clip; any frame can be made alone.
/// @throws ArgumentError for a frame outside the clip or an empty size
ImageU8 make_test_frame(const TestClipOptions& options, std::int64_t frame);

/// All frames.
std::vector<ImageU8> make_test_clip(const TestClipOptions& options);

}  // namespace vsr::runtime
