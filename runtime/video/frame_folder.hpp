// SPDX-License-Identifier: Apache-2.0
// A folder of PNG, JPEG, BMP or TIFF pictures as a clip, because the public data sets of the field
// are shipped that way.
#pragma once

#include <filesystem>
#include <vector>

#include "runtime/video/clip.hpp"

namespace vsr::runtime {

/// True for the extensions that a FrameFolder reads (any case).
bool is_picture_name(const std::filesystem::path& path);

/// The pictures of a folder in bytewise order of their names; other files are ignored.
/// Every picture must have the size of the first. The frame rate is 25/1 for want of a source.
class FrameFolder final : public Clip {
 public:
  /// @throws DataError when the folder is missing or holds no picture, or the first is unreadable
  explicit FrameFolder(const std::filesystem::path& folder);

  std::int64_t frame_count() const noexcept override {
    return static_cast<std::int64_t>(files_.size());
  }
  std::int64_t height() const noexcept override { return height_; }
  std::int64_t width() const noexcept override { return width_; }
  FrameRate frame_rate() const noexcept override { return {}; }
  void read(std::int64_t frame, ImageU8& out) override;

 private:
  std::vector<std::filesystem::path> files_;
  std::int64_t height_ = 0;
  std::int64_t width_ = 0;
};

}  // namespace vsr::runtime
