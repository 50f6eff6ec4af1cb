// SPDX-License-Identifier: Apache-2.0
// A clip is a numbered sequence of pictures, wherever it is stored: a video file or a folder of
// frames. Everything above (dataset, upscaling, metrics) sees this interface alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/video/image.hpp"

namespace vsr::runtime {

/// Frames per second as a fraction, e.g. 30000/1001.
struct FrameRate {
  std::int64_t num = 25;
  std::int64_t den = 1;
  bool operator==(const FrameRate&) const = default;
};

/// Numbered frames of one size. Not thread-safe: one thread reads at a time.
class Clip {
 public:
  virtual ~Clip() = default;
  Clip(const Clip&) = delete;
  Clip& operator=(const Clip&) = delete;

  const std::filesystem::path& path() const noexcept { return path_; }
  /// File name without extension, or the name of the folder: for tables and pictures.
  std::string name() const;
  virtual std::int64_t frame_count() const noexcept = 0;
  virtual std::int64_t height() const noexcept = 0;
  virtual std::int64_t width() const noexcept = 0;
  virtual FrameRate frame_rate() const noexcept = 0;

  /// Decode frame `frame` (0-based, order of presentation) into `out`, whose memory is reused.
  /// The bytes do not depend on what was read before. Reading in order is the fast way.
  /// @throws ArgumentError outside [0, frame_count()); DataError (path, frame, reason) when the
  ///         frame is damaged
  virtual void read(std::int64_t frame, ImageU8& out) = 0;

 protected:
  explicit Clip(std::filesystem::path path) : path_(std::move(path)) {}

 private:
  std::filesystem::path path_;
};

/// Open a video file, or a folder of numbered pictures, as one clip.
/// @throws DataError naming path and reason
std::unique_ptr<Clip> open_clip(const std::filesystem::path& path);

/// Expand files and folders to clips: a file is a clip; a folder that holds pictures is a clip; any
/// other folder stands for the video files and the picture folders in it, sorted bytewise by path.
/// Nothing is opened. The order of `paths` is kept.
/// @throws DataError for a path that does not exist, or a folder with no clip in it
std::vector<std::filesystem::path> list_clips(std::span<const std::filesystem::path> paths);

}  // namespace vsr::runtime
