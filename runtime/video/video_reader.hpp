// SPDX-License-Identifier: Apache-2.0
// Random access to the frames of a video file. Training reads windows in shuffled order, and frame
// n must be the same picture whether it is reached by seeking or by decoding from the start.
#pragma once

#include <filesystem>
#include <memory>

#include "runtime/video/clip.hpp"

namespace vsr::runtime {

/// The first (best) video stream of a file; any container and codec that FFmpeg decodes.
/// Frames are numbered as sequential decoding delivers them. Opening scans the packets once and
/// decodes the first few frames; where timestamps are missing, repeated or contradict the decoder,
/// it decodes the whole file once instead, and reading backwards then starts from the beginning.
///
/// RGB conversion: swscale, bicubic, accurate rounding, full chroma, bit-exact; the matrix and
/// range tags of the stream hold, an untagged stream is limited range, BT.601 below 720 lines, else
/// BT.709. Decoding uses one thread.
class VideoReader final : public Clip {
 public:
  /// @throws DataError naming path and reason: missing, not a video, no video stream, no frames,
  ///         damaged or cut off (with the frame where it begins)
  explicit VideoReader(const std::filesystem::path& path);
  ~VideoReader() override;

  std::int64_t frame_count() const noexcept override;
  std::int64_t height() const noexcept override;
  std::int64_t width() const noexcept override;
  FrameRate frame_rate() const noexcept override;
  void read(std::int64_t frame, ImageU8& out) override;

  /// True where frames are found by seeking, false where timestamps do not allow it.
  bool is_seekable() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vsr::runtime
