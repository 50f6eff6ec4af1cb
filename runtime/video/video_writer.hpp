// SPDX-License-Identifier: Apache-2.0
// Frames out: an H.264 file, or a folder of PNG files. Colours are tagged as the reader assumes
// them, so that reading back what was written gives the same colours.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "runtime/video/clip.hpp"
#include "runtime/video/image.hpp"

namespace vsr::runtime {

struct VideoWriterOptions {
  int crf = 12;       ///< x264 constant rate factor; 0 is lossless after the conversion to YUV
  int gop = 0;        ///< most frames between keyframes; 0: the encoder's default
  int b_frames = -1;  ///< most B-frames in a row; -1: the encoder's default
};

/// Takes frames in order. `finish` makes the result visible; without it (an exception, a kill)
/// nothing appears under the final name.
class FrameWriter {
 public:
  virtual ~FrameWriter() = default;
  FrameWriter(const FrameWriter&) = delete;
  FrameWriter& operator=(const FrameWriter&) = delete;

  /// @throws ArgumentError when the size differs from the first frame's; IoError naming the path
  virtual void write(const ImageU8& frame) = 0;
  /// Write what is pending, sync and rename. Call once, last.
  /// @throws IoError naming the path; ArgumentError when no frame was written
  virtual void finish() = 0;

 protected:
  FrameWriter() = default;
};

/// Open a writer by name: `.mp4 .mkv .mov .avi .h264` is H.264 (libx264; yuv420p, yuv444p for odd
/// sizes; BT.601 below 720 lines, else BT.709, limited range; one encoding thread), any other name
/// a folder of %08d.png, which must not exist yet or be empty. Missing parent folders are made.
/// @throws NotCompiled when this FFmpeg has no libx264 encoder; IoError naming path and reason;
///         UsageError for the extension of another kind of video or picture file
std::unique_ptr<FrameWriter> open_writer(const std::filesystem::path& path, FrameRate rate,
                                         const VideoWriterOptions& options = {});

}  // namespace vsr::runtime
