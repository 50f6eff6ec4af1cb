// SPDX-License-Identifier: Apache-2.0
#include "runtime/video/h264_writer.hpp"

#include <string>

extern "C" {
#include <libavutil/opt.h>
}

#include "comm/error.hpp"
#include "runtime/video/ffmpeg_log.hpp"

namespace vsr::runtime {
namespace {

// 4:2:0 halves both sides, so odd sizes keep their chroma whole instead of losing a line.
AVPixelFormat format_for(const ImageU8& image) {
  return image.height % 2 == 0 && image.width % 2 == 0 ? AV_PIX_FMT_YUV420P : AV_PIX_FMT_YUV444P;
}

OutputHandle open_output(const std::filesystem::path& path, const std::filesystem::path& draft) {
  AVFormatContext* raw = nullptr;
  // By the final name: the draft's extension says nothing.
  const AVOutputFormat* format = av_guess_format(nullptr, path.c_str(), nullptr);
  int code = format == nullptr ? AVERROR_MUXER_NOT_FOUND
                               : avformat_alloc_output_context2(&raw, format, nullptr, nullptr);
  OutputHandle output(raw);
  if (code >= 0) {
    code = avio_open(&output.get()->pb, ("file:" + draft.string()).c_str(), AVIO_FLAG_WRITE);
  }
  if (code < 0) throw IoError(path.string() + ": cannot write: " + ffmpeg_reason(code));
  return output;
}

}  // namespace

H264Writer::H264Writer(const std::filesystem::path& path, FrameRate rate,
                       const VideoWriterOptions& options)
    : path_(path),
      rate_(rate),
      options_(options),
      draft_(draft_of(path)),
      codec_(avcodec_find_encoder_by_name("libx264")),
      frame_(make_frame()),
      packet_(make_packet()) {
  start_ffmpeg_log();
  VSR_CHECK(rate.num > 0 && rate.den > 0,
            "frame rate " + std::to_string(rate.num) + "/" + std::to_string(rate.den));
  if (codec_ == nullptr) {
    throw NotCompiled(
        "writing " + path.string(),
        "FFmpeg's libx264 encoder; install an FFmpeg with it or write a folder of PNG");
  }
  make_parent(path);
  output_ = open_output(path, draft_.path());
}

void H264Writer::require(int code, const char* what) const {
  if (code < 0) {
    throw IoError(path_.string() + ": cannot " + what + ": " + ffmpeg_reason(code));
  }
}

void H264Writer::open_encoder(const ImageU8& first) {
  encoder_ = CodecHandle(avcodec_alloc_context3(codec_));
  if (!encoder_) throw std::bad_alloc();
  AVCodecContext& encoder = *encoder_.get();
  encoder.height = static_cast<int>(first.height);
  encoder.width = static_cast<int>(first.width);
  encoder.pix_fmt = format_for(first);
  encoder.time_base = {static_cast<int>(rate_.den), static_cast<int>(rate_.num)};
  encoder.framerate = {static_cast<int>(rate_.num), static_cast<int>(rate_.den)};
  const bool is_bt709 = assumed_colorspace(first.height) == AVCOL_SPC_BT709;
  encoder.colorspace = is_bt709 ? AVCOL_SPC_BT709 : AVCOL_SPC_SMPTE170M;
  encoder.color_primaries = is_bt709 ? AVCOL_PRI_BT709 : AVCOL_PRI_SMPTE170M;
  encoder.color_trc = is_bt709 ? AVCOL_TRC_BT709 : AVCOL_TRC_SMPTE170M;
  encoder.color_range = AVCOL_RANGE_MPEG;
  encoder.thread_count = 1;  // x264's output depends on the number of threads
  if (options_.gop > 0) encoder.gop_size = options_.gop;
  if (options_.b_frames >= 0) encoder.max_b_frames = options_.b_frames;
  if ((output_.get()->oformat->flags & AVFMT_GLOBALHEADER) != 0) {
    encoder.flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
  }
  require(av_opt_set(encoder.priv_data, "crf", std::to_string(options_.crf).c_str(), 0),
          "set the rate factor");
  require(av_opt_set(encoder.priv_data, "preset", "fast", 0), "set the encoder's preset");
  // x264's AVX-512 code for macroblock trees reads memory that nobody wrote, so the same frames
  // would give other files from one run to the next.
  require(av_opt_set(encoder.priv_data, "mbtree", "0", 0), "turn macroblock trees off");
  require(avcodec_open2(&encoder, codec_, nullptr), "open the H.264 encoder");

  AVStream* stream = avformat_new_stream(output_.get(), nullptr);
  if (stream == nullptr) throw std::bad_alloc();
  stream->time_base = encoder.time_base;
  stream->avg_frame_rate = encoder.framerate;
  require(avcodec_parameters_from_context(stream->codecpar, &encoder), "describe the stream");
  require(avformat_write_header(output_.get(), nullptr), "write the header");

  AVFrame& frame = *frame_.get();
  frame.format = encoder.pix_fmt;
  frame.height = encoder.height;
  frame.width = encoder.width;
  frame.colorspace = encoder.colorspace;
  frame.color_range = encoder.color_range;
  if (av_frame_get_buffer(&frame, 0) < 0) throw std::bad_alloc();
}

void H264Writer::encode(const AVFrame* frame) {
  require(avcodec_send_frame(encoder_.get(), frame), "encode a frame");
  AVStream* stream = output_.get()->streams[0];
  for (;;) {
    const int code = avcodec_receive_packet(encoder_.get(), packet_.get());
    if (code == AVERROR(EAGAIN) || code == AVERROR_EOF) return;
    require(code, "encode a frame");
    packet_.get()->stream_index = 0;
    packet_.get()->duration = 1;
    av_packet_rescale_ts(packet_.get(), encoder_.get()->time_base, stream->time_base);
    require(av_interleaved_write_frame(output_.get(), packet_.get()), "write a frame");
  }
}

void H264Writer::write(const ImageU8& frame) {
  VSR_CHECK(!frame.is_empty(), "an empty frame for " + path_.string());
  start_ffmpeg_log();
  if (!encoder_) open_encoder(frame);
  VSR_CHECK(frame.height == encoder_.get()->height && frame.width == encoder_.get()->width,
            "frame " + std::to_string(written_) + " of " + size_text(frame.height, frame.width) +
                " in a file of " + size_text(encoder_.get()->height, encoder_.get()->width));
  if (av_frame_make_writable(frame_.get()) < 0) throw std::bad_alloc();
  converter_.from_rgb(frame, *frame_.get());
  frame_.get()->pts = written_++;
  encode(frame_.get());
}

void H264Writer::finish() {
  VSR_CHECK(written_ > 0, "no frame was written to " + path_.string());
  start_ffmpeg_log();
  encode(nullptr);
  require(av_write_trailer(output_.get()), "write the index");
  require(avio_closep(&output_.get()->pb), "write the end of the file");
  publish(draft_.path(), path_);
  draft_.keep();
}

}  // namespace vsr::runtime
