// SPDX-License-Identifier: Apache-2.0
#include "runtime/video/clip.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <system_error>

#include "comm/error.hpp"
#include "runtime/video/frame_folder.hpp"
#include "runtime/video/video_reader.hpp"

namespace vsr::runtime {
namespace {

using std::filesystem::path;

// Only for files inside folders; a file that the user names is tried whatever it is called.
bool is_video_name(const path& name) {
  constexpr std::array<std::string_view, 14> kExtensions = {
      ".mp4", ".mkv", ".mov",  ".avi", ".webm", ".m4v", ".mpg",
      ".ts",  ".flv", ".mpeg", ".wmv", ".m2ts", ".y4m", ".ogv"};
  std::string extension = name.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return !name.filename().string().starts_with('.') &&
         std::find(kExtensions.begin(), kExtensions.end(), extension) != kExtensions.end();
}

std::vector<path> entries_of(const path& folder) {
  std::vector<path> entries;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    entries.push_back(entry->path());
  }
  if (error) throw DataError("folder " + folder.string() + ": " + error.message());
  std::sort(entries.begin(), entries.end(),
            [](const path& a, const path& b) { return a.native() < b.native(); });
  return entries;
}

bool holds_pictures(const std::vector<path>& entries) {
  return std::any_of(entries.begin(), entries.end(), [](const path& entry) {
    return is_picture_name(entry) && std::filesystem::is_regular_file(entry);
  });
}

void expand_folder(const path& folder, std::vector<path>& clips) {
  const auto entries = entries_of(folder);
  const bool holds_videos = std::any_of(entries.begin(), entries.end(), is_video_name);
  if (holds_pictures(entries)) {
    if (holds_videos)
      throw DataError(
          "folder " + folder.string() +
          ": holds video files and pictures; give the video files, or a folder of one kind");
    clips.push_back(folder);
    return;
  }
  for (const path& entry : entries) {
    if (std::filesystem::is_directory(entry)) {
      if (holds_pictures(entries_of(entry))) clips.push_back(entry);
    } else if (is_video_name(entry)) {
      clips.push_back(entry);
    }
  }
}

}  // namespace

std::string Clip::name() const {
  // "clips/city/" is the folder "city".
  const std::filesystem::path clean = path_.has_filename() ? path_ : path_.parent_path();
  std::error_code ignored;
  return std::filesystem::is_directory(clean, ignored) ? clean.filename().string()
                                                       : clean.stem().string();
}

std::unique_ptr<Clip> open_clip(const path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return std::make_unique<FrameFolder>(path);
  return std::make_unique<VideoReader>(path);
}

std::vector<path> list_clips(std::span<const path> paths) {
  std::vector<path> clips;
  for (const path& given : paths) {
    std::error_code ignored;
    if (!std::filesystem::exists(given, ignored)) {
      throw DataError("clip " + given.string() + ": no such file or folder");
    }
    if (!std::filesystem::is_directory(given, ignored)) {
      clips.push_back(given);
      continue;
    }
    const std::size_t before = clips.size();
    expand_folder(given, clips);
    if (clips.size() == before) {
      throw DataError("folder " + given.string() +
                      ": holds no video file and no PNG, JPEG, BMP or TIFF frames");
    }
  }
  return clips;
}

}  // namespace vsr::runtime
