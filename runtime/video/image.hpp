// SPDX-License-Identifier: Apache-2.0
// The two picture types that readers, resampling, metrics and the dataset hand to each other. They
// hold memory and nothing else, so that no user of a picture needs the library it was decoded with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace vsr::runtime {

inline constexpr std::int64_t kChannels = 3;

/// A host picture: rows of interleaved R, G, B values without padding between rows.
template <typename Value>
struct Image {
  std::int64_t height = 0;    ///< rows, pixels
  std::int64_t width = 0;     ///< columns, pixels
  std::vector<Value> values;  ///< height * width * 3

  Image() = default;
  Image(std::int64_t rows, std::int64_t columns)
      : height(rows),
        width(columns),
        values(static_cast<std::size_t>(rows * columns * kChannels)) {}

  std::int64_t row_values() const noexcept { return width * kChannels; }
  bool is_empty() const noexcept { return values.empty(); }
  std::span<Value> row(std::int64_t y) {
    return std::span<Value>(values).subspan(static_cast<std::size_t>(y * row_values()),
                                            static_cast<std::size_t>(row_values()));
  }
  std::span<const Value> row(std::int64_t y) const {
    return std::span<const Value>(values).subspan(static_cast<std::size_t>(y * row_values()),
                                                  static_cast<std::size_t>(row_values()));
  }
  bool operator==(const Image&) const = default;
};

using ImageU8 = Image<std::uint8_t>;  ///< 0..255
using ImageF = Image<double>;  ///< same unit as ImageU8 (0..255), neither rounded nor clipped

/// "HxW", for messages.
std::string size_text(std::int64_t height, std::int64_t width);

/// Round half up and clip to 0..255, value by value.
ImageU8 to_u8(const ImageF& image);

/// Copy a rectangle.
/// @throws ArgumentError when it does not lie inside `image`
ImageU8 crop(const ImageU8& image, std::int64_t top, std::int64_t left, std::int64_t height,
             std::int64_t width);

/// Write `image` / 255 as three planes (R, G, B) of height * width floats each.
/// @param planes [out] 3 * height * width FP32 in [0, 1]
/// @throws ArgumentError on a size mismatch
void to_planes(const ImageU8& image, std::span<float> planes);

/// Clip planar FP32 [0, 1] to that range, times 255, round half up: the picture that metrics and
/// files see. A NaN becomes 0.
/// @param planes [in] 3 * height * width, planes R, G, B
/// @throws ArgumentError on a size mismatch
ImageU8 from_planes(std::span<const float> planes, std::int64_t height, std::int64_t width);

}  // namespace vsr::runtime
