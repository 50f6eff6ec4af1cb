// SPDX-License-Identifier: Apache-2.0
// Values that resampling and metrics are held to, and the inputs they belong to. Computed in FP64
// from the published definitions and compared with independent implementations.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "runtime/video/image.hpp"

namespace vsr::test {

/// Allowed difference: 1e-6 of the larger of 1 and the expected value.
inline double tolerance(double expected) {
  return 1e-6 * std::max(1.0, std::abs(expected));
}

/// Bytes of a linear congruential generator, top byte of each state.
inline runtime::ImageU8 lcg_image(std::int64_t height, std::int64_t width, std::uint32_t seed) {
  runtime::ImageU8 image(height, width);
  std::uint32_t state = seed;
  for (std::uint8_t& value : image.values) {
    state = 1664525U * state + 1013904223U;
    value = static_cast<std::uint8_t>(state >> 24);
  }
  return image;
}

/// 64 x 80 pixels of waves with a fine pattern on them.
inline runtime::ImageU8 smooth_image() {
  runtime::ImageU8 image(64, 80);
  for (int y = 0; y < 64; ++y) {
    for (int x = 0; x < 80; ++x) {
      for (int k = 0; k < 3; ++k) {
        const double value = 127.5 + 60.0 * std::sin(0.35 * x + 0.9 * k) +
                             50.0 * std::cos(0.27 * y - 0.5 * k) + (7 * x + 13 * y + 5 * k) % 11;
        image.values[static_cast<std::size_t>((y * 80 + x) * 3 + k)] =
            static_cast<std::uint8_t>(std::clamp(std::floor(value + 0.5), 0.0, 255.0));
      }
    }
  }
  return image;
}

/// Rows 0 and 1 of the weights that shrink 16 samples to 4.
inline constexpr std::array<double, 16> kWeightsRow0 = {
    0.279296875,  0.263671875,  0.229003906,  0.163574219,  0.086425781, 0.020996094,
    -0.011962891, -0.018310547, -0.010986328, -0.001708984, 0.0,         0.0,
    0.0,          0.0,          0.0,          0.0};
inline constexpr std::array<double, 16> kWeightsRow1 = {
    -0.029296875, -0.013671875, 0.022705078, 0.097412109, 0.181884766,  0.240966797,
    0.240966797,  0.181884766,  0.097412109, 0.022705078, -0.011962891, -0.018310547,
    -0.010986328, -0.001708984, 0.0,         0.0};

/// lcg_image(16, 20, 1) shrunk by 4: 4 x 5 x 3, before and after rounding.
inline constexpr std::array<double, 60> kShrunk = {
    152.949500859, 89.126997769,  130.718817592, 137.010350943, 140.985565245, 117.841657698,
    138.65152967,  126.930134416, 109.714322329, 103.910993874, 154.731442153, 125.75148052,
    129.366967916, 128.132659733, 122.626675963, 167.835789204, 148.558623731, 131.390950501,
    130.609480202, 132.582202792, 136.627783358, 128.765926778, 152.66976279,  154.942677855,
    124.260994613, 138.5790205,   139.407743335, 135.862464964, 146.373390675, 114.453415751,
    126.182978511, 146.166909039, 116.994878113, 136.883318007, 146.909119129, 147.795987308,
    128.33911413,  119.873736322, 109.182377934, 146.277139485, 128.192635894, 106.165456057,
    117.780157387, 126.999628425, 132.095980763, 97.309807599,  127.953072488, 124.104887486,
    122.336572528, 130.311076701, 129.748365581, 142.330587626, 149.798644304, 150.402504206,
    138.36221236,  125.836378992, 121.372585714, 99.974113345,  115.663998902, 137.911451936};
inline constexpr std::array<int, 60> kShrunkBytes = {
    153, 89,  131, 137, 141, 118, 139, 127, 110, 104, 155, 126, 129, 128, 123,
    168, 149, 131, 131, 133, 137, 129, 153, 155, 124, 139, 139, 136, 146, 114,
    126, 146, 117, 137, 147, 148, 128, 120, 109, 146, 128, 106, 118, 127, 132,
    97,  128, 124, 122, 130, 130, 142, 150, 150, 138, 126, 121, 100, 116, 138};

/// lcg_image(3, 4, 3) enlarged by 4: row 0 of red, row 5 of green, and over all values.
inline constexpr std::array<double, 16> kEnlargedRow0Red = {
    33.835144043,  42.852233887,  63.004058838,  101.551116943, 146.695098877, 183.915008545,
    199.896453857, 196.701934814, 184.895843506, 174.874176025, 175.707885742, 184.339111328,
    195.774047852, 205.732421875, 210.73651123,  212.926452637};
inline constexpr std::array<double, 16> kEnlargedRow5Green = {
    204.135566711, 194.838264465, 173.939061165, 133.536475182, 86.470414162, 48.543841362,
    33.985641479,  39.656539917,  55.51335144,   72.031661987,  81.541157722, 89.038123131,
    95.531159401,  100.552111626, 103.720603943, 105.270713806};
inline constexpr double kEnlargedSum = 74672.0;
inline constexpr double kEnlargedMin = -2.179893494;
inline constexpr double kEnlargedMax = 275.432891846;

}  // namespace vsr::test
