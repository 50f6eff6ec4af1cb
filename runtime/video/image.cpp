// SPDX-License-Identifier: Apache-2.0
#include "runtime/video/image.hpp"

#include <algorithm>
#include <cmath>

#include "comm/error.hpp"

namespace vsr::runtime {
namespace {

std::uint8_t round_to_byte(double value) {
  // The first comparison also catches NaN, whose conversion to an integer is undefined.
  if (!(value > 0.0)) return 0;
  return static_cast<std::uint8_t>(std::min(std::floor(value + 0.5), 255.0));
}

}  // namespace

std::string size_text(std::int64_t height, std::int64_t width) {
  return std::to_string(height) + "x" + std::to_string(width);
}

ImageU8 to_u8(const ImageF& image) {
  ImageU8 out(image.height, image.width);
  std::transform(image.values.begin(), image.values.end(), out.values.begin(), round_to_byte);
  return out;
}

ImageU8 crop(const ImageU8& image, std::int64_t top, std::int64_t left, std::int64_t height,
             std::int64_t width) {
  VSR_CHECK(top >= 0 && left >= 0 && height > 0 && width > 0 && height <= image.height - top &&
                width <= image.width - left,
            "crop of " + size_text(height, width) + " at (" + std::to_string(top) + ", " +
                std::to_string(left) + ") from " + size_text(image.height, image.width));
  ImageU8 out(height, width);
  for (std::int64_t y = 0; y < height; ++y) {
    const auto from = image.row(top + y).subspan(static_cast<std::size_t>(left * kChannels),
                                                 static_cast<std::size_t>(out.row_values()));
    std::copy(from.begin(), from.end(), out.row(y).begin());
  }
  return out;
}

void to_planes(const ImageU8& image, std::span<float> planes) {
  VSR_CHECK(planes.size() == image.values.size(), "planes of " + std::to_string(planes.size()) +
                                                      " values for a picture of " +
                                                      std::to_string(image.values.size()));
  const std::size_t pixels = planes.size() / kChannels;
  for (std::size_t c = 0; c < kChannels; ++c) {
    for (std::size_t i = 0; i < pixels; ++i) {
      planes[c * pixels + i] = static_cast<float>(image.values[i * kChannels + c]) / 255.0F;
    }
  }
}

ImageU8 from_planes(std::span<const float> planes, std::int64_t height, std::int64_t width) {
  VSR_CHECK(height > 0 && width > 0 &&
                planes.size() == static_cast<std::size_t>(height * width * kChannels),
            "planes of " + std::to_string(planes.size()) + " values for a picture of " +
                size_text(height, width));
  ImageU8 out(height, width);
  const std::size_t pixels = planes.size() / kChannels;
  for (std::size_t c = 0; c < kChannels; ++c) {
    for (std::size_t i = 0; i < pixels; ++i) {
      out.values[i * kChannels + c] = round_to_byte(255.0 * double{planes[c * pixels + i]});
    }
  }
  return out;
}

}  // namespace vsr::runtime
