// SPDX-License-Identifier: Apache-2.0
// The arithmetic of what is trained on and what is validated, apart from files so that it can be
// tested over all small cases.
#include <algorithm>
#include <cmath>

#include "runtime/video/dataset.hpp"

namespace vsr::runtime {

ClipSplit split_clip(std::int64_t frames, double held_out_fraction, std::int64_t gap) noexcept {
  if (held_out_fraction <= 0.0) return {{0, frames}, {frames, 0}};
  const auto rounded =
      static_cast<std::int64_t>(std::floor(static_cast<double>(frames) * held_out_fraction + 0.5));
  const std::int64_t held_out =
      std::clamp<std::int64_t>(rounded, 1, std::max<std::int64_t>(frames, 1));
  return {{0, std::max<std::int64_t>(frames - held_out - gap, 0)}, {frames - held_out, held_out}};
}

std::int64_t reflect_into(FrameRange range, std::int64_t frame) noexcept {
  if (range.count <= 1) return range.first;
  const std::int64_t period = 2 * (range.count - 1);
  std::int64_t offset = (frame - range.first) % period;
  if (offset < 0) offset += period;
  return range.first + std::min(offset, period - offset);
}

}  // namespace vsr::runtime
