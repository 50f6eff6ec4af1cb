// SPDX-License-Identifier: Apache-2.0
#include "runtime/models/bicubic.hpp"

#include <vector>

#include "comm/error.hpp"

namespace vsr::runtime {
namespace {

// The kernel reaches two pixels; mirrored that far, its own treatment of borders never shows.
constexpr std::int64_t kReach = 2;

/// Rows −kReach … size−1+kReach as mirrored rows of the frame: … 1 0 | 0 1 2 … ; the mirror
/// repeats, so a frame of a single row works too.
torch::Tensor mirrored_rows(std::int64_t size) {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = -kReach; i < size + kReach; ++i) {
    const std::int64_t phase = ((i % (2 * size)) + 2 * size) % (2 * size);
    rows.push_back(phase < size ? phase : 2 * size - 1 - phase);
  }
  return torch::tensor(rows, at::kLong);
}

}  // namespace

torch::Tensor bicubic_upscale(const torch::Tensor& frames, int scale) {
  VSR_CHECK(frames.dim() == 4, "bicubic_upscale takes frames N×C×h×w");
  VSR_CHECK(frames.scalar_type() == at::kFloat, "bicubic_upscale takes FP32 frames");
  VSR_CHECK(scale >= 1, "bicubic_upscale enlarges");
  VSR_CHECK(frames.size(2) >= 1 && frames.size(3) >= 1, "bicubic_upscale needs a pixel");
  const torch::NoGradGuard no_grad;
  const auto height = frames.size(2);
  const auto width = frames.size(3);
  const auto padded = frames.index_select(2, mirrored_rows(height).to(frames.device()))
                          .index_select(3, mirrored_rows(width).to(frames.device()));
  const auto large = at::_upsample_bicubic2d_aa(
      padded, {padded.size(2) * scale, padded.size(3) * scale}, /*align_corners=*/false);
  return large.narrow(2, kReach * scale, height * scale)
      .narrow(3, kReach * scale, width * scale)
      .contiguous();
}

}  // namespace vsr::runtime
