// SPDX-License-Identifier: Apache-2.0
#include "runtime/metrics/psnr.hpp"

#include <cmath>
#include <limits>
#include <string>

#include "comm/error.hpp"

namespace vsr::runtime {
namespace {

constexpr double kPeak = 255.0;

void check_pair(const ImageU8& a, const ImageU8& b, std::int64_t crop) {
  VSR_CHECK(a.height == b.height && a.width == b.width,
            "pictures of " + size_text(a.height, a.width) + " and " + size_text(b.height, b.width));
  VSR_CHECK(crop >= 0 && 2 * crop < a.height && 2 * crop < a.width,
            "a crop of " + std::to_string(crop) + " pixels leaves nothing of " +
                size_text(a.height, a.width));
}

double decibels(double squares, double count) {
  if (squares == 0.0) return std::numeric_limits<double>::infinity();
  return 10.0 * std::log10(kPeak * kPeak / (squares / count));
}

// Calls `square(y, x)` for each pixel inside the crop and turns the sum into decibels.
template <typename Square>
double psnr_over(const ImageU8& a, std::int64_t crop, double values_per_pixel, Square square) {
  double sum = 0.0;
  for (std::int64_t y = crop; y < a.height - crop; ++y) {
    for (std::int64_t x = crop; x < a.width - crop; ++x) sum += square(y, x);
  }
  return decibels(
      sum, static_cast<double>((a.height - 2 * crop) * (a.width - 2 * crop)) * values_per_pixel);
}

}  // namespace

double luma(std::uint8_t r, std::uint8_t g, std::uint8_t b) noexcept {
  return 16.0 + (65.481 * r + 128.553 * g + 24.966 * b) / 255.0;
}

std::vector<double> luma_plane(const ImageU8& image) {
  std::vector<double> plane(image.values.size() / kChannels);
  const std::uint8_t* pixel = image.values.data();
  for (double& value : plane) {
    value = luma(pixel[0], pixel[1], pixel[2]);
    pixel += kChannels;
  }
  return plane;
}

double psnr_y(const ImageU8& a, const ImageU8& b, std::int64_t crop) {
  check_pair(a, b, crop);
  const auto first = luma_plane(a);
  const auto second = luma_plane(b);
  return psnr_over(a, crop, 1.0, [&](std::int64_t y, std::int64_t x) {
    const auto i = static_cast<std::size_t>(y * a.width + x);
    const double difference = first[i] - second[i];
    return difference * difference;
  });
}

double psnr_rgb(const ImageU8& a, const ImageU8& b, std::int64_t crop) {
  check_pair(a, b, crop);
  return psnr_over(a, crop, kChannels, [&](std::int64_t y, std::int64_t x) {
    double squares = 0.0;
    for (std::int64_t c = 0; c < kChannels; ++c) {
      const auto i = static_cast<std::size_t>((y * a.width + x) * kChannels + c);
      const double difference = static_cast<double>(a.values[i]) - static_cast<double>(b.values[i]);
      squares += difference * difference;
    }
    return squares;
  });
}

}  // namespace vsr::runtime
