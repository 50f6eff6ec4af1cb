// SPDX-License-Identifier: Apache-2.0
#include "runtime/video/video_writer.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <string_view>
#include <system_error>

#include "comm/error.hpp"
#include "runtime/video/h264_writer.hpp"
#include "runtime/video/image_file.hpp"
#include "runtime/video/publish_file.hpp"

namespace vsr::runtime {
namespace {

std::filesystem::path without_slash(const std::filesystem::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

class PngFolderWriter final : public FrameWriter {
 public:
  explicit PngFolderWriter(const std::filesystem::path& folder)
      : folder_(without_slash(folder)), draft_(draft_of(folder_)) {
    std::error_code error;
    if (std::filesystem::exists(folder_, error) && !std::filesystem::is_empty(folder_, error)) {
      throw IoError(folder_.string() + ": already there and not empty; choose another name");
    }
    make_parent(folder_);
    std::filesystem::create_directories(draft_.path(), error);
    if (error) {
      throw IoError(folder_.string() + ": cannot make the folder: " + error.message());
    }
  }

  void write(const ImageU8& frame) override {
    VSR_CHECK(written_ == 0 || (frame.height == height_ && frame.width == width_),
              "frame " + std::to_string(written_) + " of " + size_text(frame.height, frame.width) +
                  " in a folder of " + size_text(height_, width_));
    height_ = frame.height;
    width_ = frame.width;
    std::array<char, 32> name{};
    std::snprintf(name.data(), name.size(), "%08lld.png", static_cast<long long>(written_));
    write_png(draft_.path() / name.data(), frame);
    ++written_;
  }

  void finish() override {
    VSR_CHECK(written_ > 0, "no frame was written to " + folder_.string());
    publish(draft_.path(), folder_);
    draft_.keep();
  }

 private:
  std::filesystem::path folder_;
  DraftGuard draft_;
  std::int64_t height_ = 0;
  std::int64_t width_ = 0;
  std::int64_t written_ = 0;
};

bool is_one_of(std::string_view extension, std::span<const std::string_view> known) {
  return std::find(known.begin(), known.end(), extension) != known.end();
}

}  // namespace

std::unique_ptr<FrameWriter> open_writer(const std::filesystem::path& path, FrameRate rate,
                                         const VideoWriterOptions& options) {
  constexpr std::array<std::string_view, 5> kWritten = {".mp4", ".mkv", ".mov", ".avi", ".h264"};
  constexpr std::array<std::string_view, 8> kOtherFiles = {".webm", ".png", ".jpg",  ".gif",
                                                           ".mpg",  ".ts",  ".jpeg", ".y4m"};
  const std::string extension = path.extension().string();
  if (is_one_of(extension, kWritten)) return std::make_unique<H264Writer>(path, rate, options);
  if (is_one_of(extension, kOtherFiles)) {
    throw UsageError(
        path.string() + ": cannot write " + extension +
        "; give a name ending in .mp4, .mkv, .mov or .avi, or a folder for PNG frames");
  }
  return std::make_unique<PngFolderWriter>(path);
}

}  // namespace vsr::runtime
