// SPDX-License-Identifier: Apache-2.0
// Resizing against reference values and against properties that any correct resize has.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "comm/error.hpp"
#include "runtime/video/resample.hpp"
#include "video_vectors.hpp"

namespace vsr::runtime {
namespace {

TEST(Resample, InputsOfTheVectorsAreTheirs) {
  const auto lcg = test::lcg_image(16, 20, 1);
  EXPECT_EQ(std::accumulate(lcg.values.begin(), lcg.values.end(), 0), 125450);
  EXPECT_EQ(lcg.values[3], 180);
  const auto smooth = test::smooth_image();
  EXPECT_EQ(std::accumulate(smooth.values.begin(), smooth.values.end(), 0), 2067230);
}

TEST(Resample, WeightsOfShrinkingBy4) {
  const auto taps = bicubic_taps(16, 4, 0.25);
  ASSERT_EQ(taps.size(), 4U);
  for (std::size_t row = 0; row < 4; ++row) {
    std::array<double, 16> dense{};
    double sum = 0.0;
    for (std::size_t t = 0; t < taps[row].weights.size(); ++t) {
      dense[static_cast<std::size_t>(taps[row].indices[t])] += taps[row].weights[t];
      sum += taps[row].weights[t];
    }
    EXPECT_NEAR(sum, 1.0, 1e-12);
    if (row > 1) continue;
    for (std::size_t i = 0; i < dense.size(); ++i) {
      EXPECT_NEAR(dense[i], row == 0 ? test::kWeightsRow0[i] : test::kWeightsRow1[i], 1e-6);
    }
  }
}

TEST(Resample, ShrinkBy4) {
  const auto input = test::lcg_image(16, 20, 1);
  const ImageF exact = downscale_exact(input, 4);
  ASSERT_EQ(exact.height, 4);
  ASSERT_EQ(exact.width, 5);
  const ImageU8 bytes = downscale(input, 4);
  for (std::size_t i = 0; i < exact.values.size(); ++i) {
    EXPECT_NEAR(exact.values[i], test::kShrunk[i], test::tolerance(test::kShrunk[i])) << i;
    EXPECT_EQ(bytes.values[i], test::kShrunkBytes[i]) << i;
  }
}

TEST(Resample, EnlargeBy4) {
  const ImageF out = upscale_exact(test::lcg_image(3, 4, 3), 4);
  ASSERT_EQ(out.height, 12);
  ASSERT_EQ(out.width, 16);
  for (std::size_t x = 0; x < 16; ++x) {
    EXPECT_NEAR(out.row(0)[x * 3], test::kEnlargedRow0Red[x],
                test::tolerance(test::kEnlargedRow0Red[x]));
    EXPECT_NEAR(out.row(5)[x * 3 + 1], test::kEnlargedRow5Green[x],
                test::tolerance(test::kEnlargedRow5Green[x]));
  }
  EXPECT_NEAR(std::accumulate(out.values.begin(), out.values.end(), 0.0), test::kEnlargedSum,
              test::tolerance(test::kEnlargedSum));
  const auto [low, high] = std::minmax_element(out.values.begin(), out.values.end());
  EXPECT_NEAR(*low, test::kEnlargedMin, test::tolerance(test::kEnlargedMin));
  EXPECT_NEAR(*high, test::kEnlargedMax, test::tolerance(test::kEnlargedMax));
}

TEST(Resample, FloatAndByteInputsAgree) {
  const auto bytes = test::lcg_image(13, 17, 7);
  ImageF floats(13, 17);
  std::copy(bytes.values.begin(), bytes.values.end(), floats.values.begin());
  for (const int scale : {2, 3, 4}) {
    EXPECT_EQ(downscale(floats, scale), downscale_exact(bytes, scale));
    EXPECT_EQ(upscale(floats, scale), upscale_exact(bytes, scale));
  }
}

// Cubic convolution with a = -0.5 reproduces linear functions; only borders may differ.
TEST(Resample, RampStaysARampAtEveryScale) {
  for (const int scale : {2, 3, 4}) {
    ImageF ramp(12 * scale, 16 * scale);
    for (std::int64_t y = 0; y < ramp.height; ++y) {
      for (std::int64_t x = 0; x < ramp.width; ++x) {
        for (std::int64_t c = 0; c < 3; ++c) {
          ramp.row(y)[static_cast<std::size_t>(x * 3 + c)] = static_cast<double>(2 * x + 3 * y + c);
        }
      }
    }
    const ImageF small = downscale(ramp, scale);
    ASSERT_EQ(small.height, 12);
    ASSERT_EQ(small.width, 16);
    const ImageF large = upscale(ramp, scale);
    const auto value = [](double x, double y) { return 2 * x + 3 * y; };
    for (std::int64_t i = 3; i < 9; ++i) {
      const double at = (static_cast<double>(i) + 0.5) * scale - 0.5;
      EXPECT_NEAR(small.row(i)[static_cast<std::size_t>(i * 3)], value(at, at), 1e-9) << scale;
    }
    for (std::int64_t i = 3 * scale; i < 9 * scale; ++i) {
      const double at = (static_cast<double>(i) + 0.5) / scale - 0.5;
      EXPECT_NEAR(large.row(i)[static_cast<std::size_t>(i * 3)], value(at, at), 1e-9) << scale;
    }
  }
}

TEST(Resample, FlatPicturesStayFlat) {
  ImageU8 flat(7, 9);
  std::fill(flat.values.begin(), flat.values.end(), std::uint8_t{201});
  for (const int scale : {2, 3, 4}) {
    for (const ImageU8& out : {downscale(flat, scale), upscale(flat, scale)}) {
      EXPECT_TRUE(
          std::all_of(out.values.begin(), out.values.end(), [](int v) { return v == 201; }));
    }
  }
  EXPECT_EQ(downscale(flat, 4).height, 2);  // ceil(7 / 4)
  EXPECT_EQ(downscale(flat, 4).width, 3);   // ceil(9 / 4)
}

TEST(Resample, NearestRepeatsPixels) {
  const auto input = test::lcg_image(2, 3, 5);
  const auto out = upscale_nearest(input, 3);
  for (std::int64_t y = 0; y < 6; ++y) {
    for (std::int64_t x = 0; x < 9; ++x) {
      EXPECT_EQ(out.row(y)[static_cast<std::size_t>(x * 3 + 2)],
                input.row(y / 3)[static_cast<std::size_t>(x / 3 * 3 + 2)]);
    }
  }
}

TEST(Resample, ModcropCutsRightAndBottom) {
  const auto input = test::lcg_image(11, 14, 2);
  const auto cut = modcrop(input, 4);
  EXPECT_EQ(cut.height, 8);
  EXPECT_EQ(cut.width, 12);
  EXPECT_EQ(cut, crop(input, 0, 0, 8, 12));
  EXPECT_EQ(modcrop(cut, 4), cut);
  EXPECT_THROW(modcrop(test::lcg_image(3, 9, 1), 4), DataError);
}

TEST(Resample, RefusesNonsense) {
  EXPECT_THROW(downscale(ImageU8(), 4), ArgumentError);
  EXPECT_THROW(upscale(test::lcg_image(4, 4, 1), 0), ArgumentError);
  EXPECT_THROW(bicubic_taps(0, 4, 0.5), ArgumentError);
}

TEST(Image, RoundsHalfUpAndClips) {
  ImageF image(1, 2);
  image.values = {-3.0, 0.49999, 0.5, 254.5, 255.4, 300.0};
  EXPECT_EQ(to_u8(image).values, (std::vector<std::uint8_t>{0, 0, 1, 255, 255, 255}));
}

TEST(Image, PlanesThereAndBack) {
  const auto image = test::lcg_image(5, 7, 9);
  std::vector<float> planes(image.values.size());
  to_planes(image, planes);
  EXPECT_FLOAT_EQ(planes[35 + 8], static_cast<float>(image.row(1)[1 * 3 + 1]) / 255.0F);
  EXPECT_EQ(from_planes(planes, 5, 7), image);
  planes[0] = std::nanf("");
  planes[1] = -1.0F;
  planes[2] = 2.0F;
  const auto odd = from_planes(planes, 5, 7);
  EXPECT_EQ(odd.values[0], 0);
  EXPECT_EQ(odd.values[3], 0);
  EXPECT_EQ(odd.values[6], 255);
  EXPECT_THROW(to_planes(image, std::span(planes).first(3)), ArgumentError);
  EXPECT_THROW(from_planes(planes, 4, 7), ArgumentError);
}

TEST(Image, CropRefusesWhatIsOutside) {
  EXPECT_THROW(crop(ImageU8(4, 4), 1, 0, 4, 4), ArgumentError);
  EXPECT_THROW(crop(ImageU8(4, 4), -1, 0, 2, 2), ArgumentError);
}

}  // namespace
}  // namespace vsr::runtime
