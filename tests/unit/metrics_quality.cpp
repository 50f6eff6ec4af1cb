// SPDX-License-Identifier: Apache-2.0
// PSNR and SSIM against reference values, closed forms and bad input.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "comm/error.hpp"
#include "runtime/metrics/psnr.hpp"
#include "runtime/metrics/ssim.hpp"
#include "runtime/video/resample.hpp"
#include "video_vectors.hpp"

namespace vsr::runtime {
namespace {

ImageU8 flat(std::int64_t height, std::int64_t width, std::uint8_t value) {
  ImageU8 image(height, width);
  std::fill(image.values.begin(), image.values.end(), value);
  return image;
}

TEST(Luma, SixColours) {
  const std::array<std::array<std::uint8_t, 3>, 6> rgb = {
      {{0, 0, 0}, {255, 255, 255}, {255, 0, 0}, {0, 255, 0}, {0, 0, 255}, {12, 200, 77}}};
  const std::array<double, 6> expected = {16.0, 235.0, 81.481, 144.553, 40.966, 127.446094118};
  for (std::size_t i = 0; i < rgb.size(); ++i) {
    EXPECT_NEAR(luma(rgb[i][0], rgb[i][1], rgb[i][2]), expected[i], test::tolerance(expected[i]));
  }
}

TEST(Quality, BicubicRoundTripOfTheSmoothPicture) {
  const ImageU8 original = test::smooth_image();
  const ImageU8 low = downscale(original, 4);
  const ImageU8 restored = upscale(low, 4);
  EXPECT_EQ(std::accumulate(low.values.begin(), low.values.end(), 0), 129198);
  EXPECT_EQ(std::accumulate(restored.values.begin(), restored.values.end(), 0), 2067184);
  EXPECT_NEAR(psnr_rgb(original, restored), 31.944494537, 3.2e-5);
  EXPECT_NEAR(psnr_y(original, restored), 34.635557154, 3.5e-5);
  EXPECT_NEAR(psnr_y(original, restored, 4), 37.384627246, 3.8e-5);
  EXPECT_NEAR(psnr_y(original, restored, 8), 37.873994414, 3.8e-5);
  EXPECT_NEAR(ssim_rgb(original, restored), 0.983221962, 1e-6);
  EXPECT_NEAR(ssim_y(original, restored), 0.991114031, 1e-6);
  EXPECT_NEAR(ssim_y(original, restored, 4), 0.991567391, 1e-6);
}

TEST(Psnr, EqualPicturesAreInfinite) {
  const auto image = test::lcg_image(12, 13, 4);
  EXPECT_EQ(psnr_y(image, image), std::numeric_limits<double>::infinity());
  EXPECT_EQ(psnr_rgb(image, image), std::numeric_limits<double>::infinity());
}

TEST(Psnr, ConstantDifferenceHasAClosedForm) {
  const auto a = flat(8, 8, 100);
  const auto b = flat(8, 8, 110);
  EXPECT_NEAR(psnr_rgb(a, b), 20.0 * std::log10(255.0 / 10.0), 1e-12);
  EXPECT_NEAR(psnr_y(a, b), 20.0 * std::log10(255.0 / (10.0 * 219.0 / 255.0)), 1e-9);
}

TEST(Psnr, OneMseOverTheChannels) {
  auto a = flat(4, 4, 50);
  auto b = a;
  for (std::size_t i = 0; i < b.values.size(); i += 3) b.values[i] = 56;  // red alone
  EXPECT_NEAR(psnr_rgb(a, b), 10.0 * std::log10(255.0 * 255.0 / 12.0), 1e-12);
}

TEST(Psnr, CropLeavesBordersOut) {
  auto a = flat(9, 9, 10);
  auto b = a;
  b.values[0] = 200;
  EXPECT_TRUE(std::isfinite(psnr_y(a, b)));
  EXPECT_TRUE(std::isinf(psnr_y(a, b, 1)));
}

TEST(Psnr, RefusesWhatCannotBeCompared) {
  EXPECT_THROW(psnr_y(flat(4, 4, 0), flat(4, 5, 0)), ArgumentError);
  EXPECT_THROW(psnr_rgb(flat(4, 4, 0), flat(4, 4, 0), 2), ArgumentError);
}

TEST(Ssim, EqualPicturesGiveOne) {
  const auto image = test::lcg_image(15, 16, 4);
  EXPECT_DOUBLE_EQ(ssim_y(image, image), 1.0);
  EXPECT_DOUBLE_EQ(ssim_rgb(image, image), 1.0);
}

TEST(Ssim, FlatPicturesLeaveTheLumaTerm) {
  const double c1 = 0.01 * 255.0 * 0.01 * 255.0;
  EXPECT_NEAR(ssim_rgb(flat(11, 11, 100), flat(11, 11, 120)),
              (2.0 * 100.0 * 120.0 + c1) / (100.0 * 100.0 + 120.0 * 120.0 + c1), 1e-9);
}

TEST(Ssim, OppositePicturesAreNegative) {
  const auto a = test::lcg_image(16, 16, 4);
  auto b = a;
  for (auto& value : b.values) value = static_cast<std::uint8_t>(255 - value);
  EXPECT_LT(ssim_y(a, b), 0.0);
}

TEST(Ssim, SmallerThanTheWindowIsAnErrorThatNamesTheSize) {
  EXPECT_NO_THROW(ssim_y(flat(11, 11, 1), flat(11, 11, 2)));
  try {
    ssim_y(flat(10, 40, 1), flat(10, 40, 2));
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("10x40"), std::string::npos) << error.what();
  }
  EXPECT_THROW(ssim_y(flat(14, 14, 1), flat(14, 14, 2), 2), DataError);
  EXPECT_THROW(ssim_y(flat(12, 14, 1), flat(14, 14, 2)), ArgumentError);
}

}  // namespace
}  // namespace vsr::runtime
