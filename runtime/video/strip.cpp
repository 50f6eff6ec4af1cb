// SPDX-License-Identifier: Apache-2.0
#include "runtime/video/strip.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "comm/error.hpp"
#include "runtime/video/dot_font.hpp"
#include "runtime/video/resample.hpp"

namespace vsr::runtime {
namespace {

constexpr std::int64_t kSeparator = 2;  // pixels between tiles
constexpr std::int64_t kMargin = 3;     // around captions
constexpr std::int64_t kWideTile = 400;
constexpr std::uint8_t kPaper = 24;
constexpr std::uint8_t kInk = 235;

// Dots of wide tiles are doubled, so that captions can be read on large pictures.
std::int64_t dot_size(std::int64_t tile_width) {
  return tile_width >= kWideTile ? 2 : 1;
}

void paint(ImageU8& image, std::int64_t top, std::int64_t left, std::int64_t size,
           std::uint8_t value) {
  for (std::int64_t y = top; y < top + size; ++y) {
    std::fill_n(image.row(y).begin() + left * kChannels, size * kChannels, value);
  }
}

void draw_caption(const std::string& caption, std::int64_t left, std::int64_t tile_width,
                  ImageU8& image) {
  const std::int64_t dot = dot_size(tile_width);
  const std::int64_t pitch = (kGlyphWidth + 1) * dot;
  const std::int64_t fitting = std::max<std::int64_t>((tile_width - 2 * kMargin + dot) / pitch, 0);
  const auto letters = std::min(static_cast<std::int64_t>(caption.size()), fitting);
  for (std::int64_t i = 0; i < letters; ++i) {
    const Glyph& glyph = glyph_of(caption[static_cast<std::size_t>(i)]);
    for (std::int64_t y = 0; y < kGlyphHeight; ++y) {
      for (std::int64_t x = 0; x < kGlyphWidth; ++x) {
        if ((glyph[static_cast<std::size_t>(y)] >> (kGlyphWidth - 1 - x) & 1) == 0) continue;
        paint(image, kMargin + y * dot, left + kMargin + i * pitch + x * dot, dot, kInk);
      }
    }
  }
}

std::string with_decibels(const std::string& name, double psnr_y) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), " %.2f dB", psnr_y);
  return name + text.data();
}

}  // namespace

ImageU8 make_strip(std::span<const StripTile> tiles) {
  VSR_CHECK(!tiles.empty(), "a strip without pictures");
  const std::int64_t height = tiles.front().image.height;
  const std::int64_t width = tiles.front().image.width;
  VSR_CHECK(height > 0 && width > 0, "a strip of empty pictures");
  const std::int64_t header = kGlyphHeight * dot_size(width) + 2 * kMargin;
  const auto count = static_cast<std::int64_t>(tiles.size());
  ImageU8 strip(header + height, count * width + (count - 1) * kSeparator);
  std::fill(strip.values.begin(), strip.values.end(), kPaper);
  std::int64_t left = 0;
  for (const StripTile& tile : tiles) {
    VSR_CHECK(tile.image.height == height && tile.image.width == width,
              "picture '" + tile.caption + "' of " +
                  size_text(tile.image.height, tile.image.width) + " in a strip of " +
                  size_text(height, width));
    draw_caption(tile.caption, left, width, strip);
    for (std::int64_t y = 0; y < height; ++y) {
      const auto row = tile.image.row(y);
      std::copy(row.begin(), row.end(), strip.row(header + y).begin() + left * kChannels);
    }
    left += width + kSeparator;
  }
  return strip;
}

ImageU8 make_comparison_strip(const ImageU8& low, const ImageU8& bicubic,
                              const ImageU8& super_resolved, const ImageU8& original,
                              double bicubic_psnr_y, double psnr_y) {
  VSR_CHECK(!low.is_empty() && original.height % low.height == 0 &&
                original.height / low.height * low.width == original.width,
            size_text(low.height, low.width) + " enlarged to " +
                size_text(original.height, original.width));
  const int scale = static_cast<int>(original.height / low.height);
  const std::array<StripTile, 4> tiles = {
      StripTile{upscale_nearest(low, scale), "low"},
      StripTile{bicubic, with_decibels("bicubic", bicubic_psnr_y)},
      StripTile{super_resolved, with_decibels("super-resolved", psnr_y)},
      StripTile{original, "original"}};
  return make_strip(tiles);
}

}  // namespace vsr::runtime
