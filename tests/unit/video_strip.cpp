// SPDX-License-Identifier: Apache-2.0
// Picture strips: tiles where they belong, captions that fit.
#include <gtest/gtest.h>

#include <algorithm>

#include "comm/error.hpp"
#include "runtime/video/dot_font.hpp"
#include "runtime/video/resample.hpp"
#include "runtime/video/strip.hpp"
#include "video_vectors.hpp"

namespace vsr::runtime {
namespace {

constexpr std::int64_t kHeader = 13;  // 7 dots and 3 pixels above and below

TEST(Strip, TilesStandSideBySideBelowTheirCaptions) {
  const auto first = test::lcg_image(20, 30, 1);
  const auto second = test::lcg_image(20, 30, 2);
  const std::vector<StripTile> tiles = {{first, "I"}, {second, ""}};
  const ImageU8 strip = make_strip(tiles);
  EXPECT_EQ(strip.height, kHeader + 20);
  EXPECT_EQ(strip.width, 30 + 2 + 30);
  EXPECT_EQ(crop(strip, kHeader, 0, 20, 30), first);
  EXPECT_EQ(crop(strip, kHeader, 32, 20, 30), second);
  // The letter I: a bar over the middle of its five columns.
  for (std::int64_t y = 3; y < 10; ++y) EXPECT_EQ(strip.row(y)[(3 + 2) * 3], 235);
  EXPECT_EQ(strip.row(5)[3 * 3], 24);
  for (std::int64_t y = 0; y < kHeader; ++y) {
    for (std::size_t i = 30 * 3; i < strip.row(y).size(); ++i) EXPECT_EQ(strip.row(y)[i], 24);
  }
}

TEST(Strip, LongCaptionsAreCutAtTheirTile) {
  const std::vector<StripTile> tiles = {{ImageU8(4, 12), "WWWWWWWWWW"}, {ImageU8(4, 12), ""}};
  const ImageU8 strip = make_strip(tiles);
  for (std::int64_t y = 0; y < kHeader; ++y) EXPECT_EQ(strip.row(y)[12 * 3], 24);
}

TEST(Strip, ComparisonHoldsTheFourPictures) {
  const auto original = test::smooth_image();
  const auto low = downscale(original, 4);
  const auto bicubic = upscale(low, 4);
  const ImageU8 strip = make_comparison_strip(low, bicubic, original, original, 34.6, 99.0);
  EXPECT_EQ(strip.width, 4 * 80 + 3 * 2);
  EXPECT_EQ(crop(strip, kHeader, 0, 64, 80), upscale_nearest(low, 4));
  EXPECT_EQ(crop(strip, kHeader, 82, 64, 80), bicubic);
  EXPECT_EQ(crop(strip, kHeader, 3 * 82, 64, 80), original);
}

TEST(Strip, RefusesTilesThatDoNotFit) {
  EXPECT_THROW(make_strip({}), ArgumentError);
  const std::vector<StripTile> uneven = {{ImageU8(4, 4), "a"}, {ImageU8(4, 5), "b"}};
  EXPECT_THROW(make_strip(uneven), ArgumentError);
  EXPECT_THROW(
      make_comparison_strip(ImageU8(3, 4), ImageU8(8, 8), ImageU8(8, 8), ImageU8(8, 8), 1.0, 2.0),
      ArgumentError);
}

TEST(DotFont, EveryLetterOfOurCaptionsIsDrawn) {
  const std::string used = "abcdefghijklmnopqrstuvwxyz0123456789.,:-+/%()=_|<>";
  for (const char letter : used) EXPECT_NE(glyph_of(letter), glyph_of('?')) << letter;
  EXPECT_EQ(glyph_of('a'), glyph_of('A'));
  EXPECT_EQ(glyph_of('\x01'), glyph_of('?'));
  EXPECT_EQ(glyph_of(' '), Glyph{});
}

}  // namespace
}  // namespace vsr::runtime
