// SPDX-License-Identifier: Apache-2.0
// One pass over the packets or frames of a video stream: opening, reading, decoding, seeking, with
// every failure turned into a DataError. What frame numbers mean is decided one level up.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "runtime/video/clip.hpp"
#include "runtime/video/ffmpeg_handles.hpp"

namespace vsr::runtime {

class StreamDecoder {
 public:
  /// Open the best video stream of a file.
  /// @throws DataError: missing file, not a video, no video stream, no decoder
  explicit StreamDecoder(const std::filesystem::path& path);

  /// The next packet of the stream, owned by this object until the next call; null at the end.
  /// @throws DataError on a read error or a packet that was cut off
  AVPacket* next_packet();
  /// Hand `packet` to the decoder; null: no more will come.
  /// @return false when the decoder calls the packet damaged
  bool send(const AVPacket* packet);
  enum class Received { frame, need_packet, end, damaged };
  /// Take the next frame in order of presentation; it is in `frame()` after Received::frame.
  Received receive();
  const AVFrame& frame() const noexcept { return *frame_.get(); }

  /// Place reading near `timestamp`, not after it if the container can, and empty the decoder.
  bool seek(std::int64_t timestamp);
  /// True where the container wants the time of presentation to seek.
  bool seeks_by_pts() const noexcept;
  /// Frames that the container's table promises, -1 where it has none.
  std::int64_t promised_packets() const noexcept;
  FrameRate frame_rate() const noexcept;
  /// Frames that the decoder holds back to sort them.
  std::int64_t reorder_depth() const noexcept { return stream_->codecpar->video_delay; }
  [[noreturn]] void fail(const std::string& reason) const;

 private:
  std::filesystem::path path_;
  InputHandle input_;
  AVStream* stream_ = nullptr;  // belongs to input_
  CodecHandle codec_;
  PacketHandle packet_;
  FrameHandle frame_;
};

}  // namespace vsr::runtime
