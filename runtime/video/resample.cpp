// SPDX-License-Identifier: Apache-2.0
#include "runtime/video/resample.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "comm/error.hpp"

namespace vsr::runtime {
namespace {

constexpr int kLargestScale = 16;

double keys_cubic(double x) {
  const double t = std::abs(x);
  if (t <= 1.0) return (1.5 * t - 2.5) * t * t + 1.0;
  if (t < 2.0) return ((-0.5 * t + 2.5) * t - 4.0) * t + 2.0;
  return 0.0;
}

std::int64_t reflect_with_edge(std::int64_t index, std::int64_t n) {
  const std::int64_t period = 2 * n;
  std::int64_t folded = index % period;
  if (folded < 0) folded += period;
  return folded < n ? folded : period - 1 - folded;
}

void check_scale(int scale) {
  VSR_CHECK(scale >= 1 && scale <= kLargestScale,
            "scale " + std::to_string(scale) + "; 1 to " + std::to_string(kLargestScale) + " work");
}

// Rows first: when shrinking, that leaves the fewest values for the second pass, and the inner loop
// runs over whole contiguous rows.
template <typename Value>
void accumulate_row(const Image<Value>& in, const ResampleTaps& taps, std::span<double> row) {
  std::fill(row.begin(), row.end(), 0.0);
  for (std::size_t t = 0; t < taps.weights.size(); ++t) {
    const double weight = taps.weights[t];
    const Value* source = in.row(taps.indices[t]).data();
    double* target = row.data();
    const std::size_t count = row.size();
    for (std::size_t i = 0; i < count; ++i) target[i] += weight * static_cast<double>(source[i]);
  }
}

void filter_columns(std::span<const double> row, std::span<const ResampleTaps> columns,
                    std::span<double> out) {
  for (std::size_t x = 0; x < columns.size(); ++x) {
    double r = 0.0;
    double g = 0.0;
    double b = 0.0;
    const std::size_t count = columns[x].weights.size();
    const double* weights = columns[x].weights.data();
    const std::int64_t* indices = columns[x].indices.data();
    for (std::size_t t = 0; t < count; ++t) {
      const double* pixel = row.data() + indices[t] * kChannels;
      r += weights[t] * pixel[0];
      g += weights[t] * pixel[1];
      b += weights[t] * pixel[2];
    }
    double* target = out.data() + x * kChannels;
    target[0] = r;
    target[1] = g;
    target[2] = b;
  }
}

template <typename Value>
ImageF resize(const Image<Value>& in, std::int64_t height, std::int64_t width, double scale) {
  VSR_CHECK(!in.is_empty(), "an empty picture cannot be resized");
  const auto rows = bicubic_taps(in.height, height, scale);
  const auto columns = bicubic_taps(in.width, width, scale);
  ImageF out(height, width);
  std::vector<double> row(static_cast<std::size_t>(in.row_values()));
  for (std::int64_t y = 0; y < height; ++y) {
    accumulate_row(in, rows[static_cast<std::size_t>(y)], row);
    filter_columns(row, columns, out.row(y));
  }
  return out;
}

template <typename Value>
ImageF shrink(const Image<Value>& image, int scale) {
  check_scale(scale);
  return resize(image, (image.height + scale - 1) / scale, (image.width + scale - 1) / scale,
                1.0 / scale);
}

template <typename Value>
ImageF enlarge(const Image<Value>& image, int scale) {
  check_scale(scale);
  return resize(image, image.height * scale, image.width * scale, scale);
}

}  // namespace

std::vector<ResampleTaps> bicubic_taps(std::int64_t in, std::int64_t out, double scale) {
  VSR_CHECK(in > 0 && out > 0 && scale > 0.0,
            std::to_string(in) + " to " + std::to_string(out) + " samples");
  const double stretch = std::min(scale, 1.0);
  const double support = 2.0 / stretch;
  std::vector<ResampleTaps> all(static_cast<std::size_t>(out));
  for (std::int64_t o = 0; o < out; ++o) {
    const double centre = (static_cast<double>(o) + 0.5) / scale - 0.5;
    ResampleTaps& taps = all[static_cast<std::size_t>(o)];
    double sum = 0.0;
    const auto last = static_cast<std::int64_t>(std::floor(centre + support));
    for (auto i = static_cast<std::int64_t>(std::ceil(centre - support)); i <= last; ++i) {
      const double weight = keys_cubic((centre - static_cast<double>(i)) * stretch);
      if (weight == 0.0) continue;
      taps.indices.push_back(reflect_with_edge(i, in));
      taps.weights.push_back(weight);
      sum += weight;
    }
    for (double& weight : taps.weights) weight /= sum;
  }
  return all;
}

ImageU8 modcrop(const ImageU8& image, int scale) {
  check_scale(scale);
  const std::int64_t height = image.height - image.height % scale;
  const std::int64_t width = image.width - image.width % scale;
  if (height == 0 || width == 0) {
    throw DataError("a picture of " + size_text(image.height, image.width) +
                    " pixels is smaller than the scale " + std::to_string(scale));
  }
  if (height == image.height && width == image.width) return image;
  return crop(image, 0, 0, height, width);
}

ImageF downscale_exact(const ImageU8& image, int scale) {
  return shrink(image, scale);
}
ImageF downscale(const ImageF& image, int scale) {
  return shrink(image, scale);
}
ImageU8 downscale(const ImageU8& image, int scale) {
  return to_u8(shrink(image, scale));
}
ImageF upscale_exact(const ImageU8& image, int scale) {
  return enlarge(image, scale);
}
ImageF upscale(const ImageF& image, int scale) {
  return enlarge(image, scale);
}
ImageU8 upscale(const ImageU8& image, int scale) {
  return to_u8(enlarge(image, scale));
}

ImageU8 upscale_nearest(const ImageU8& image, int scale) {
  check_scale(scale);
  VSR_CHECK(!image.is_empty(), "an empty picture cannot be resized");
  ImageU8 out(image.height * scale, image.width * scale);
  for (std::int64_t y = 0; y < out.height; ++y) {
    const auto from = image.row(y / scale);
    const auto to = out.row(y);
    for (std::int64_t x = 0; x < out.width; ++x) {
      std::copy_n(from.begin() + x / scale * kChannels, kChannels, to.begin() + x * kChannels);
    }
  }
  return out;
}

}  // namespace vsr::runtime
