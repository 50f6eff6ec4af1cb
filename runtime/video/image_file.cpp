// SPDX-License-Identifier: Apache-2.0
#include "runtime/video/image_file.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string_view>
#include <system_error>

#include "comm/error.hpp"
#include "runtime/video/ffmpeg_log.hpp"
#include "runtime/video/publish_file.hpp"
#include "runtime/video/rgb_converter.hpp"

namespace vsr::runtime {
namespace {

[[noreturn]] void unreadable(const std::filesystem::path& path, const std::string& reason) {
  throw DataError("picture " + path.string() + ": " + reason);
}

// Into a packet, because decoders may read some bytes beyond the end and want them to exist.
PacketHandle read_file(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) unreadable(path, "no such file");
  std::ifstream stream(path, std::ios::binary | std::ios::ate);
  const auto bytes = static_cast<std::int64_t>(stream.tellg());
  if (!stream || bytes < 0) unreadable(path, "cannot be opened");
  if (bytes == 0) unreadable(path, "the file is empty");
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  if (bytes > kLargest) unreadable(path, "larger than 1 GiB, not a picture");
  PacketHandle packet = make_packet();
  if (av_new_packet(packet.get(), static_cast<int>(bytes)) < 0) throw std::bad_alloc();
  stream.seekg(0);
  stream.read(reinterpret_cast<char*>(packet.get()->data), bytes);
  if (!stream) unreadable(path, "cannot be read");
  return packet;
}

AVCodecID codec_of(const AVPacket& packet) {
  using std::string_view_literals::operator""sv;
  const std::string_view bytes(reinterpret_cast<const char*>(packet.data),
                               static_cast<std::size_t>(packet.size));
  if (bytes.starts_with("\x89PNG\r\n\x1a\n"sv)) return AV_CODEC_ID_PNG;
  if (bytes.starts_with("\xff\xd8"sv)) return AV_CODEC_ID_MJPEG;
  if (bytes.starts_with("BM"sv)) return AV_CODEC_ID_BMP;
  if (bytes.starts_with("II*\0"sv) || bytes.starts_with("MM\0*"sv)) return AV_CODEC_ID_TIFF;
  return AV_CODEC_ID_NONE;
}

CodecHandle open_codec(const AVCodec* codec) {
  CodecHandle context(avcodec_alloc_context3(codec));
  if (!context) throw std::bad_alloc();
  context.get()->thread_count = 1;
  return context;
}

FrameHandle frame_of(const ImageU8& image) {
  FrameHandle frame = make_frame();
  frame.get()->format = AV_PIX_FMT_RGB24;
  frame.get()->height = static_cast<int>(image.height);
  frame.get()->width = static_cast<int>(image.width);
  if (av_frame_get_buffer(frame.get(), 0) < 0) throw std::bad_alloc();
  for (std::int64_t y = 0; y < image.height; ++y) {
    const auto row = image.row(y);
    std::copy(row.begin(), row.end(), frame.get()->data[0] + y * frame.get()->linesize[0]);
  }
  return frame;
}

PacketHandle encode_png(const std::filesystem::path& path, const ImageU8& image) {
  const AVCodec* codec = avcodec_find_encoder(AV_CODEC_ID_PNG);
  if (codec == nullptr) throw NotCompiled("writing PNG", "FFmpeg's png encoder (zlib)");
  CodecHandle context = open_codec(codec);
  context.get()->pix_fmt = AV_PIX_FMT_RGB24;
  context.get()->height = static_cast<int>(image.height);
  context.get()->width = static_cast<int>(image.width);
  context.get()->time_base = {1, 25};
  PacketHandle packet = make_packet();
  const FrameHandle frame = frame_of(image);
  int code = avcodec_open2(context.get(), codec, nullptr);
  if (code >= 0) code = avcodec_send_frame(context.get(), frame.get());
  if (code >= 0) code = avcodec_receive_packet(context.get(), packet.get());
  if (code < 0) throw IoError(path.string() + ": cannot encode PNG: " + ffmpeg_reason(code));
  return packet;
}

}  // namespace

ImageU8 read_picture(const std::filesystem::path& path) {
  start_ffmpeg_log();
  const PacketHandle packet = read_file(path);
  const AVCodecID id = codec_of(*packet.get());
  if (id == AV_CODEC_ID_NONE) unreadable(path, "not a PNG, JPEG, BMP or TIFF picture");
  const AVCodec* codec = avcodec_find_decoder(id);
  if (codec == nullptr) unreadable(path, "this FFmpeg cannot decode it");
  const CodecHandle context = open_codec(codec);
  const FrameHandle frame = make_frame();
  int code = avcodec_open2(context.get(), codec, nullptr);
  if (code >= 0) code = avcodec_send_packet(context.get(), packet.get());
  if (code >= 0) code = avcodec_send_packet(context.get(), nullptr);
  if (code >= 0) code = avcodec_receive_frame(context.get(), frame.get());
  if (code < 0) unreadable(path, "damaged or cut off: " + ffmpeg_reason(code));
  if (frame.get()->decode_error_flags != 0 || (frame.get()->flags & AV_FRAME_FLAG_CORRUPT) != 0) {
    unreadable(path, "damaged or cut off: " + ffmpeg_reason(AVERROR_INVALIDDATA));
  }
  ImageU8 image;
  try {
    RgbConverter().to_rgb(*frame.get(), image);
  } catch (const DataError& error) {
    unreadable(path, error.what());
  }
  return image;
}

void write_png(const std::filesystem::path& path, const ImageU8& image) {
  VSR_CHECK(!image.is_empty(), "an empty picture for " + path.string());
  start_ffmpeg_log();
  const PacketHandle packet = encode_png(path, image);
  make_parent(path);
  DraftGuard draft(draft_of(path));
  std::ofstream stream(draft.path(), std::ios::binary);
  stream.write(reinterpret_cast<const char*>(packet.get()->data), packet.get()->size);
  stream.close();
  if (!stream) {
    throw IoError(path.string() + ": cannot write: " + std::generic_category().message(errno) +
                  "; check rights and free space");
  }
  publish(draft.path(), path);
  draft.keep();
}

}  // namespace vsr::runtime
