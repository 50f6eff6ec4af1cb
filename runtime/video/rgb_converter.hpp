// SPDX-License-Identifier: Apache-2.0
// The one conversion between the pixel formats of codecs and our RGB bytes, in both directions, so
// that reading back what was written gives the same colours.
#pragma once

#include "runtime/video/ffmpeg_handles.hpp"
#include "runtime/video/image.hpp"

namespace vsr::runtime {

/// BT.601 below 720 lines, else BT.709: what untagged video means and what we write.
AVColorSpace assumed_colorspace(std::int64_t height) noexcept;

/// Converts frames of any format and size; keeps the scaler of the last one.
class RgbConverter {
 public:
  /// @throws DataError when the format cannot be converted (without path: the caller adds it)
  void to_rgb(const AVFrame& frame, ImageU8& out);
  /// @param frame [in,out] format, size, colorspace and range are set, memory is allocated
  void from_rgb(const ImageU8& image, AVFrame& frame);

 private:
  struct Key {
    int height = 0, width = 0, from = -1, to = -1, colorspace = 0, range = 0;
    bool operator==(const Key&) const = default;
  };
  SwsContext* scaler(const Key& key);

  Key key_;
  ScalerHandle scaler_;
  FrameHandle rgb_;  // rows padded for vector instructions, which ours are not
};

}  // namespace vsr::runtime
