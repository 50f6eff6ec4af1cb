// SPDX-License-Identifier: Apache-2.0
#include "runtime/video/stream_decoder.hpp"

#include <cstring>
#include <system_error>

#include "comm/error.hpp"
#include "runtime/video/ffmpeg_log.hpp"

namespace vsr::runtime {
namespace {

void check_is_file(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    throw DataError("clip " + path.string() + ": no such file");
  }
  if (std::filesystem::is_directory(status)) {
    throw DataError("clip " + path.string() + ": is a folder, not a video file");
  }
  if (std::filesystem::is_regular_file(status) && std::filesystem::file_size(path, error) == 0) {
    throw DataError("clip " + path.string() + ": the file is empty");
  }
}

InputHandle open_input(const std::filesystem::path& path) {
  AVFormatContext* raw = nullptr;
  // The prefix keeps names such as "a:b.mp4" from being taken for protocols.
  const int code = avformat_open_input(&raw, ("file:" + path.string()).c_str(), nullptr, nullptr);
  if (code < 0) {
    throw DataError("clip " + path.string() +
                    ": not a video that FFmpeg can read: " + ffmpeg_reason(code));
  }
  return InputHandle(raw);
}

}  // namespace

StreamDecoder::StreamDecoder(const std::filesystem::path& path) : path_(path) {
  start_ffmpeg_log();
  check_is_file(path);
  input_ = open_input(path);
  int code = avformat_find_stream_info(input_.get(), nullptr);
  if (code < 0) fail("no usable stream: " + ffmpeg_reason(code));

  const AVCodec* decoder = nullptr;
  code = av_find_best_stream(input_.get(), AVMEDIA_TYPE_VIDEO, -1, -1, &decoder, 0);
  if (code == AVERROR_DECODER_NOT_FOUND) fail("this FFmpeg has no decoder for its video stream");
  if (code < 0) fail("no video stream in it");
  stream_ = input_.get()->streams[code];
  if ((stream_->disposition & AV_DISPOSITION_ATTACHED_PIC) != 0) {
    fail("no video stream in it, only a cover picture");
  }
  for (unsigned i = 0; i < input_.get()->nb_streams; ++i) {
    if (input_.get()->streams[i] != stream_) input_.get()->streams[i]->discard = AVDISCARD_ALL;
  }

  codec_ = CodecHandle(avcodec_alloc_context3(decoder));
  if (!codec_) throw std::bad_alloc();
  code = avcodec_parameters_to_context(codec_.get(), stream_->codecpar);
  // Threads would change neither bits nor order, but a rank owns one core.
  codec_.get()->thread_count = 1;
  codec_.get()->pkt_timebase = stream_->time_base;
  if (code >= 0) code = avcodec_open2(codec_.get(), decoder, nullptr);
  if (code < 0) fail("its video stream cannot be decoded: " + ffmpeg_reason(code));
  packet_ = make_packet();
  frame_ = make_frame();
}

void StreamDecoder::fail(const std::string& reason) const {
  throw DataError("clip " + path_.string() + ": " + reason);
}

AVPacket* StreamDecoder::next_packet() {
  for (;;) {
    av_packet_unref(packet_.get());
    const int code = av_read_frame(input_.get(), packet_.get());
    if (code == AVERROR_EOF && ffmpeg_saw_early_end()) fail("cut off: " + ffmpeg_reason(code));
    if (code == AVERROR_EOF) return nullptr;
    if (code < 0) fail("damaged or cut off: " + ffmpeg_reason(code));
    if (packet_.get()->stream_index != stream_->index) continue;
    if ((packet_.get()->flags & AV_PKT_FLAG_CORRUPT) != 0) {
      fail("damaged or cut off inside a frame: " + ffmpeg_reason(AVERROR_INVALIDDATA));
    }
    return packet_.get();
  }
}

bool StreamDecoder::send(const AVPacket* packet) {
  const int code = avcodec_send_packet(codec_.get(), packet);
  return code >= 0 || code == AVERROR_EOF;
}

StreamDecoder::Received StreamDecoder::receive() {
  av_frame_unref(frame_.get());
  const int code = avcodec_receive_frame(codec_.get(), frame_.get());
  if (code == AVERROR(EAGAIN)) return Received::need_packet;
  if (code == AVERROR_EOF) return Received::end;
  if (code < 0) return Received::damaged;
  return Received::frame;
}

bool StreamDecoder::seek(std::int64_t timestamp) {
  const int code = av_seek_frame(input_.get(), stream_->index, timestamp, AVSEEK_FLAG_BACKWARD);
  avcodec_flush_buffers(codec_.get());
  return code >= 0;
}

bool StreamDecoder::seeks_by_pts() const noexcept {
  return (input_.get()->iformat->flags & AVFMT_SEEK_TO_PTS) != 0;
}

std::int64_t StreamDecoder::promised_packets() const noexcept {
  // Only here is the table exact; AVI counts dropped frames, others fill it while reading.
  if (std::strstr(input_.get()->iformat->name, "mov") == nullptr) return -1;
  return avformat_index_get_entries_count(stream_);
}

FrameRate StreamDecoder::frame_rate() const noexcept {
  const AVRational rate = av_guess_frame_rate(input_.get(), stream_, nullptr);
  if (rate.num <= 0 || rate.den <= 0) return {};
  return {rate.num, rate.den};
}

}  // namespace vsr::runtime
