// SPDX-License-Identifier: Apache-2.0
#include "runtime/video/video_reader.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "comm/error.hpp"
#include "runtime/video/packet_index.hpp"
#include "runtime/video/rgb_converter.hpp"
#include "runtime/video/stream_decoder.hpp"

namespace vsr::runtime {
namespace {

// Enough for the decoder to show what it does at the start (dropped leading frames, two packets a
// frame) without decoding the file.
constexpr std::int64_t kProbeFrames = 8;
// Decoding so many frames costs less than seeking.
constexpr std::int64_t kNearFrames = 4;

bool is_damaged(const AVFrame& frame) {
  return frame.decode_error_flags != 0 || (frame.flags & AV_FRAME_FLAG_CORRUPT) != 0;
}

std::int64_t timestamp_of(const AVFrame& frame) {
  return frame.pts != AV_NOPTS_VALUE ? frame.pts : frame.best_effort_timestamp;
}

}  // namespace

struct VideoReader::State {
  explicit State(const std::filesystem::path& file) : path(file), index(file) {}

  std::filesystem::path path;
  PacketIndex index;
  bool seekable = false;
  std::int64_t count = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  FrameRate rate;
  RgbConverter converter;

  std::unique_ptr<StreamDecoder> decoder;
  bool draining = false;
  std::int64_t next = 0;         // the frame that decoding on would show
  std::int64_t first_valid = 0;  // frames before it lack references after a seek
  std::int64_t fed = 0;          // place in the file of the next packet

  void open();
  void restart();
  bool probe();
  void count_by_decoding();
  bool advance();
  std::int64_t show_next(std::int64_t wanted);
  void move_to(std::int64_t frame);
  bool seek_to(std::int64_t key);
  void read(std::int64_t frame, ImageU8& out);
  [[noreturn]] void fail_at(std::int64_t frame, const std::string& reason) const;
};

void VideoReader::State::fail_at(std::int64_t frame, const std::string& reason) const {
  throw DataError("clip " + path.string() + ": frame " + std::to_string(frame) + " " + reason);
}

void VideoReader::State::restart() {
  decoder = std::make_unique<StreamDecoder>(path);
  draining = false;
  next = 0;
  first_valid = 0;
  fed = 0;
}

// One more frame into decoder->frame(); false at the end of the stream.
bool VideoReader::State::advance() {
  for (;;) {
    switch (decoder->receive()) {
      case StreamDecoder::Received::frame:
        return true;
      case StreamDecoder::Received::end:
        return false;
      case StreamDecoder::Received::damaged:
        fail_at(next, "is damaged: the decoder refuses it");
      case StreamDecoder::Received::need_packet:
        break;
    }
    if (draining) return false;
    const AVPacket* packet = decoder->next_packet();
    draining = packet == nullptr;
    ++fed;
    if (!decoder->send(packet)) fail_at(next, "is damaged: the decoder refuses it");
  }
}

void VideoReader::State::open() {
  restart();
  rate = decoder->frame_rate();
  seekable = index.has_usable_timestamps() && probe();
  if (seekable) {
    count = index.frame_count();
  } else {
    count_by_decoding();
  }
  decoder.reset();
}

// True when the first frames come in the order and with the timestamps of the index.
bool VideoReader::State::probe() {
  const std::int64_t frames = std::min(kProbeFrames, index.frame_count());
  for (std::int64_t frame = 0; frame < frames; ++frame) {
    if (!advance() || index.frame_of(timestamp_of(decoder->frame())) != frame) return false;
    height = decoder->frame().height;
    width = decoder->frame().width;
    next = frame + 1;
  }
  return true;
}

void VideoReader::State::count_by_decoding() {
  restart();
  while (advance()) {
    if (is_damaged(decoder->frame())) fail_at(next, "is damaged");
    height = decoder->frame().height;
    width = decoder->frame().width;
    ++next;
  }
  count = next;
  if (count == 0) decoder->fail("no frame of its video stream can be decoded");
}

bool VideoReader::State::seek_to(std::int64_t key) {
  const auto& target = index.packet(key);
  const bool by_pts = decoder->seeks_by_pts() || target.dts == AV_NOPTS_VALUE;
  if (!decoder->seek(by_pts ? target.pts : target.dts)) return false;
  draining = false;
  // Containers land where they like; only the exact keyframe makes the frame numbers certain.
  while (const AVPacket* packet = decoder->next_packet()) {
    if (packet->pts == target.pts) {
      fed = key + 1;
      first_valid = index.frame_of(target.pts).value_or(0);
      next = first_valid;
      return decoder->send(packet);
    }
    const auto landed = index.frame_of(packet->pts);
    if (landed && index.decode_position(*landed) > key) return false;
  }
  return false;
}

void VideoReader::State::move_to(std::int64_t frame) {
  if (!decoder) restart();
  if (frame >= next && frame - next < kNearFrames) return;
  if (!seekable) {
    if (frame < next) restart();
    return;
  }
  const std::int64_t key = index.keyframe_position(frame);
  if (frame >= next && key < fed) return;
  std::int64_t step_back = 1;
  for (std::int64_t from = key; from > 0; step_back *= 2) {
    if (seek_to(from)) return;
    for (std::int64_t i = 0; i < step_back && from > 0; ++i) from = index.earlier_keyframe(from);
  }
  restart();
}

// Number of the frame that is decoded next; -1 when the stream ends before.
std::int64_t VideoReader::State::show_next(std::int64_t wanted) {
  if (!advance()) return -1;
  const AVFrame& frame = decoder->frame();
  std::int64_t number = next;
  if (seekable) {
    const auto found = index.frame_of(timestamp_of(frame));
    if (!found) fail_at(wanted, "cannot be found: the timestamps contradict the index");
    number = *found;
  }
  // Before `first_valid` references are missing by our own doing, and nobody sees the frame.
  if (number >= first_valid && is_damaged(frame)) fail_at(number, "is damaged");
  next = std::max(next, number + 1);
  return number;
}

void VideoReader::State::read(std::int64_t frame, ImageU8& out) {
  move_to(frame);
  std::int64_t shown = 0;
  do {
    shown = show_next(frame);
  } while (shown >= 0 && shown < frame);
  if (shown != frame) fail_at(frame, "is missing from the stream");
  const AVFrame& decoded = decoder->frame();
  if (decoded.height != height || decoded.width != width) {
    fail_at(frame, "has " + size_text(decoded.height, decoded.width) +
                       " pixels, the clip began with " + size_text(height, width));
  }
  converter.to_rgb(decoded, out);
}

VideoReader::VideoReader(const std::filesystem::path& path)
    : Clip(path), state_(std::make_unique<State>(path)) {
  state_->open();
}

VideoReader::~VideoReader() = default;

std::int64_t VideoReader::frame_count() const noexcept {
  return state_->count;
}
std::int64_t VideoReader::height() const noexcept {
  return state_->height;
}
std::int64_t VideoReader::width() const noexcept {
  return state_->width;
}
FrameRate VideoReader::frame_rate() const noexcept {
  return state_->rate;
}
bool VideoReader::is_seekable() const noexcept {
  return state_->seekable;
}

void VideoReader::read(std::int64_t frame, ImageU8& out) {
  VSR_CHECK(frame >= 0 && frame < frame_count(), "frame " + std::to_string(frame) + " of " +
                                                     std::to_string(frame_count()) + " in " +
                                                     path().string());
  try {
    state_->read(frame, out);
  } catch (...) {
    // What the decoder saw before a failure must not colour what it shows next.
    state_->decoder.reset();
    throw;
  }
}

}  // namespace vsr::runtime
