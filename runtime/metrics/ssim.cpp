// SPDX-License-Identifier: Apache-2.0
#include "runtime/metrics/ssim.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "comm/error.hpp"
#include "runtime/metrics/psnr.hpp"

namespace vsr::runtime {
namespace {

constexpr std::int64_t kWindow = 11;
constexpr double kSigma = 1.5;
constexpr double kC1 = (0.01 * 255.0) * (0.01 * 255.0);
constexpr double kC2 = (0.03 * 255.0) * (0.03 * 255.0);

struct Plane {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::vector<double> values;
};

std::array<double, kWindow> gaussian() {
  std::array<double, kWindow> weights{};
  double sum = 0.0;
  for (std::int64_t i = 0; i < kWindow; ++i) {
    const double distance = static_cast<double>(i - kWindow / 2);
    weights[static_cast<std::size_t>(i)] = std::exp(-distance * distance / (2.0 * kSigma * kSigma));
    sum += weights[static_cast<std::size_t>(i)];
  }
  for (double& weight : weights) weight /= sum;
  return weights;
}

// Rows of the window are summed with the window's column weights first: five running rows, never a
// whole filtered picture.
double mean_ssim(const Plane& a, const Plane& b) {
  static const auto weights = gaussian();
  const auto width = static_cast<std::size_t>(a.width);
  const std::size_t out_width = width - kWindow + 1;
  std::array<std::vector<double>, 5> moments;  // a, b, a*a, b*b, a*b
  double sum = 0.0;
  for (std::int64_t top = 0; top + kWindow <= a.height; ++top) {
    for (auto& moment : moments) moment.assign(width, 0.0);
    for (std::size_t t = 0; t < kWindow; ++t) {
      const std::size_t start = (static_cast<std::size_t>(top) + t) * width;
      for (std::size_t x = 0; x < width; ++x) {
        const double p = a.values[start + x];
        const double q = b.values[start + x];
        moments[0][x] += weights[t] * p;
        moments[1][x] += weights[t] * q;
        moments[2][x] += weights[t] * (p * p);
        moments[3][x] += weights[t] * (q * q);
        moments[4][x] += weights[t] * (p * q);
      }
    }
    for (std::size_t x = 0; x < out_width; ++x) {
      std::array<double, 5> m{};
      for (std::size_t k = 0; k < m.size(); ++k) {
        for (std::size_t t = 0; t < kWindow; ++t) m[k] += weights[t] * moments[k][x + t];
      }
      const double variance_a = m[2] - m[0] * m[0];
      const double variance_b = m[3] - m[1] * m[1];
      const double covariance = m[4] - m[0] * m[1];
      sum += (2.0 * m[0] * m[1] + kC1) * (2.0 * covariance + kC2) /
             ((m[0] * m[0] + m[1] * m[1] + kC1) * (variance_a + variance_b + kC2));
    }
  }
  return sum / (static_cast<double>(a.height - kWindow + 1) * static_cast<double>(out_width));
}

void check_pair(const ImageU8& a, const ImageU8& b, std::int64_t crop) {
  VSR_CHECK(a.height == b.height && a.width == b.width,
            "pictures of " + size_text(a.height, a.width) + " and " + size_text(b.height, b.width));
  VSR_CHECK(crop >= 0, "a crop of " + std::to_string(crop) + " pixels");
  if (a.height - 2 * crop < kWindow || a.width - 2 * crop < kWindow) {
    throw DataError("SSIM is not defined for " + size_text(a.height, a.width) +
                    " pixels with a crop of " + std::to_string(crop) + ": at least " +
                    size_text(kWindow, kWindow) + " must remain; take larger frames");
  }
}

// `value(i)` is the value of pixel i, counted row by row over the whole picture.
template <typename ValueOf>
Plane cut_plane(const ImageU8& image, std::int64_t crop, ValueOf value) {
  Plane plane{image.height - 2 * crop, image.width - 2 * crop, {}};
  plane.values.reserve(static_cast<std::size_t>(plane.height * plane.width));
  for (std::int64_t y = crop; y < image.height - crop; ++y) {
    for (std::int64_t x = crop; x < image.width - crop; ++x) {
      plane.values.push_back(value(static_cast<std::size_t>(y * image.width + x)));
    }
  }
  return plane;
}

Plane luma_of(const ImageU8& image, std::int64_t crop) {
  const auto all = luma_plane(image);
  return cut_plane(image, crop, [&](std::size_t i) { return all[i]; });
}

Plane channel_of(const ImageU8& image, std::int64_t crop, std::size_t channel) {
  return cut_plane(image, crop, [&](std::size_t i) {
    return static_cast<double>(image.values[i * kChannels + channel]);
  });
}

}  // namespace

double ssim_y(const ImageU8& a, const ImageU8& b, std::int64_t crop) {
  check_pair(a, b, crop);
  return mean_ssim(luma_of(a, crop), luma_of(b, crop));
}

double ssim_rgb(const ImageU8& a, const ImageU8& b, std::int64_t crop) {
  check_pair(a, b, crop);
  double sum = 0.0;
  for (std::size_t c = 0; c < kChannels; ++c) {
    sum += mean_ssim(channel_of(a, crop, c), channel_of(b, crop, c));
  }
  return sum / kChannels;
}

}  // namespace vsr::runtime
