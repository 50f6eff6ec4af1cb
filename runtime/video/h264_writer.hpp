// SPDX-License-Identifier: Apache-2.0
// The video-file half of FrameWriter, private to this folder.
#pragma once

#include <filesystem>

#include "runtime/video/ffmpeg_handles.hpp"
#include "runtime/video/publish_file.hpp"
#include "runtime/video/rgb_converter.hpp"
#include "runtime/video/video_writer.hpp"

namespace vsr::runtime {

class H264Writer final : public FrameWriter {
 public:
  /// @throws NotCompiled without libx264; IoError when the file cannot be made
  H264Writer(const std::filesystem::path& path, FrameRate rate, const VideoWriterOptions& options);

  void write(const ImageU8& frame) override;
  void finish() override;

 private:
  void open_encoder(const ImageU8& first);
  void encode(const AVFrame* frame);
  void require(int code, const char* what) const;

  std::filesystem::path path_;
  FrameRate rate_;
  VideoWriterOptions options_;
  DraftGuard draft_;
  OutputHandle output_;
  const AVCodec* codec_ = nullptr;
  CodecHandle encoder_;
  FrameHandle frame_;
  PacketHandle packet_;
  RgbConverter converter_;
  std::int64_t written_ = 0;
};

}  // namespace vsr::runtime
