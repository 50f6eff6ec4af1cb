// SPDX-License-Identifier: Apache-2.0
// Owners of FFmpeg objects. Private to this folder: the public headers name no FFmpeg type, so that
// users of clips do not compile against FFmpeg.
#pragma once

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/frame.h>
#include <libswscale/swscale.h>
}

#include <new>

#include "comm/unique_handle.hpp"

namespace vsr::runtime {

struct InputTraits {
  using Type = AVFormatContext*;
  static Type null() noexcept { return nullptr; }
  static void close(Type handle) noexcept { avformat_close_input(&handle); }
};
struct OutputTraits {
  using Type = AVFormatContext*;
  static Type null() noexcept { return nullptr; }
  static void close(Type handle) noexcept {
    avio_closep(&handle->pb);
    avformat_free_context(handle);
  }
};
struct CodecTraits {
  using Type = AVCodecContext*;
  static Type null() noexcept { return nullptr; }
  static void close(Type handle) noexcept { avcodec_free_context(&handle); }
};
struct PacketTraits {
  using Type = AVPacket*;
  static Type null() noexcept { return nullptr; }
  static void close(Type handle) noexcept { av_packet_free(&handle); }
};
struct FrameTraits {
  using Type = AVFrame*;
  static Type null() noexcept { return nullptr; }
  static void close(Type handle) noexcept { av_frame_free(&handle); }
};
struct ScalerTraits {
  using Type = SwsContext*;
  static Type null() noexcept { return nullptr; }
  static void close(Type handle) noexcept { sws_freeContext(handle); }
};

using InputHandle = comm::UniqueHandle<InputTraits>;
using OutputHandle = comm::UniqueHandle<OutputTraits>;
using CodecHandle = comm::UniqueHandle<CodecTraits>;
using PacketHandle = comm::UniqueHandle<PacketTraits>;
using FrameHandle = comm::UniqueHandle<FrameTraits>;
using ScalerHandle = comm::UniqueHandle<ScalerTraits>;

inline PacketHandle make_packet() {
  PacketHandle packet(av_packet_alloc());
  if (!packet) throw std::bad_alloc();
  return packet;
}

inline FrameHandle make_frame() {
  FrameHandle frame(av_frame_alloc());
  if (!frame) throw std::bad_alloc();
  return frame;
}

}  // namespace vsr::runtime
