// SPDX-License-Identifier: Apache-2.0
#include "runtime/video/crop_window.hpp"

#include <string>
#include <utility>

#include "comm/error.hpp"
#include "runtime/video/random.hpp"

namespace vsr::runtime {

CropWindow CropWindow::scaled(int scale) const noexcept {
  CropWindow larger = *this;
  larger.top *= scale;
  larger.left *= scale;
  larger.size *= scale;
  return larger;
}

CropWindow place_crop(const SampleDraw& draw, const DatasetOptions& options, std::int64_t height,
                      std::int64_t width) noexcept {
  const std::int64_t size = options.gt_size / options.scale;
  return {.top = index_below(draw.crop_y, height / options.scale - size + 1),
          .left = index_below(draw.crop_x, width / options.scale - size + 1),
          .size = size,
          .flip_horizontal = draw.flip_horizontal,
          .flip_vertical = draw.flip_vertical,
          .transpose = draw.transpose};
}

void cut_planes(const ImageU8& image, const CropWindow& window, std::span<float> planes) {
  const std::int64_t size = window.size;
  VSR_CHECK(size > 0 && window.top >= 0 && window.left >= 0 && window.top + size <= image.height &&
                window.left + size <= image.width,
            "a square of " + std::to_string(size) + " at (" + std::to_string(window.top) + ", " +
                std::to_string(window.left) + ") of " + size_text(image.height, image.width));
  VSR_CHECK(planes.size() == static_cast<std::size_t>(kChannels * size * size),
            "room for " + std::to_string(planes.size()) + " values");
  for (std::int64_t y = 0; y < size; ++y) {
    const auto row = image.row(window.top + y);
    for (std::int64_t x = 0; x < size; ++x) {
      std::int64_t to_y = window.flip_vertical ? size - 1 - y : y;
      std::int64_t to_x = window.flip_horizontal ? size - 1 - x : x;
      if (window.transpose) std::swap(to_y, to_x);
      for (std::int64_t c = 0; c < kChannels; ++c) {
        planes[static_cast<std::size_t>((c * size + to_y) * size + to_x)] =
            static_cast<float>(row[static_cast<std::size_t>((window.left + x) * kChannels + c)]) /
            255.0F;
      }
    }
  }
}

}  // namespace vsr::runtime
