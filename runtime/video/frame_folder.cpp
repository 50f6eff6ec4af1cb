// SPDX-License-Identifier: Apache-2.0
#include "runtime/video/frame_folder.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>
#include <system_error>

#include "comm/error.hpp"
#include "runtime/video/image_file.hpp"

namespace vsr::runtime {

bool is_picture_name(const std::filesystem::path& path) {
  constexpr std::array<std::string_view, 6> kExtensions = {".png", ".jpg",  ".jpeg",
                                                           ".bmp", ".tiff", ".tif"};
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return !path.filename().string().starts_with('.') &&
         std::find(kExtensions.begin(), kExtensions.end(), extension) != kExtensions.end();
}

FrameFolder::FrameFolder(const std::filesystem::path& folder) : Clip(folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->is_regular_file() && is_picture_name(entry->path())) files_.push_back(entry->path());
  }
  if (error) throw DataError("clip " + folder.string() + ": " + error.message());
  if (files_.empty()) {
    throw DataError("clip " + folder.string() +
                    ": the folder holds no PNG, JPEG, BMP or TIFF file");
  }
  std::sort(files_.begin(), files_.end());
  const ImageU8 first = read_picture(files_.front());
  height_ = first.height;
  width_ = first.width;
}

void FrameFolder::read(std::int64_t frame, ImageU8& out) {
  VSR_CHECK(frame >= 0 && frame < frame_count(), "frame " + std::to_string(frame) + " of " +
                                                     std::to_string(frame_count()) + " in " +
                                                     path().string());
  const auto& file = files_[static_cast<std::size_t>(frame)];
  out = read_picture(file);
  if (out.height != height_ || out.width != width_) {
    throw DataError("picture " + file.string() + ": has " + size_text(out.height, out.width) +
                    " pixels, the clip began with " + size_text(height_, width_));
  }
}

}  // namespace vsr::runtime
