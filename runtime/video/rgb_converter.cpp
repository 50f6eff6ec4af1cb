// SPDX-License-Identifier: Apache-2.0
#include "runtime/video/rgb_converter.hpp"

#include <algorithm>
#include <string>

extern "C" {
#include <libavutil/pixdesc.h>
}

#include "comm/error.hpp"

namespace vsr::runtime {
namespace {

constexpr int kFirstTallHeight = 720;
constexpr int kAlignment = 64;
constexpr int kFullRange = 1;
constexpr int kScalerFlags =
    SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT | SWS_FULL_CHR_H_INP | SWS_BITEXACT;

bool is_full_range_format(int format) {
  return format == AV_PIX_FMT_YUVJ420P || format == AV_PIX_FMT_YUVJ422P ||
         format == AV_PIX_FMT_YUVJ444P || format == AV_PIX_FMT_YUVJ440P ||
         format == AV_PIX_FMT_YUVJ411P;
}

// Also decides for tags that mean no matrix of their own (RGB, unspecified, reserved).
int colorspace_of(const AVFrame& frame) {
  switch (frame.colorspace) {
    case AVCOL_SPC_BT709:
    case AVCOL_SPC_FCC:
    case AVCOL_SPC_BT470BG:
    case AVCOL_SPC_SMPTE170M:
    case AVCOL_SPC_SMPTE240M:
    case AVCOL_SPC_BT2020_NCL:
      return frame.colorspace;
    case AVCOL_SPC_BT2020_CL:
      return AVCOL_SPC_BT2020_NCL;
    default:
      return assumed_colorspace(frame.height);
  }
}

int range_of(const AVFrame& frame) {
  return frame.color_range == AVCOL_RANGE_JPEG || is_full_range_format(frame.format) ? kFullRange
                                                                                     : 0;
}

void ensure_rgb_frame(FrameHandle& frame, std::int64_t height, std::int64_t width) {
  if (frame && frame.get()->height == height && frame.get()->width == width) return;
  FrameHandle fresh = make_frame();
  fresh.get()->format = AV_PIX_FMT_RGB24;
  fresh.get()->height = static_cast<int>(height);
  fresh.get()->width = static_cast<int>(width);
  if (av_frame_get_buffer(fresh.get(), kAlignment) < 0) throw std::bad_alloc();
  frame = std::move(fresh);
}

const char* format_name(int format) {
  const char* name = av_get_pix_fmt_name(static_cast<AVPixelFormat>(format));
  return name != nullptr ? name : "unknown";
}

}  // namespace

AVColorSpace assumed_colorspace(std::int64_t height) noexcept {
  return height < kFirstTallHeight ? AVCOL_SPC_SMPTE170M : AVCOL_SPC_BT709;
}

SwsContext* RgbConverter::scaler(const Key& key) {
  if (scaler_ && key == key_) return scaler_.get();
  ScalerHandle fresh(sws_getContext(key.width, key.height, static_cast<AVPixelFormat>(key.from),
                                    key.width, key.height, static_cast<AVPixelFormat>(key.to),
                                    kScalerFlags, nullptr, nullptr, nullptr));
  if (!fresh) {
    throw DataError(std::string("pixel format ") + format_name(key.from) +
                    " cannot be converted to " + format_name(key.to));
  }
  constexpr int kUnit = 1 << 16;  // brightness 0, contrast and saturation 1 in 16.16
  const int* matrix = sws_getCoefficients(key.colorspace);
  // Refused for formats without a matrix, where there is nothing to set.
  static_cast<void>(
      sws_setColorspaceDetails(fresh.get(), matrix, key.range, matrix, key.range, 0, kUnit, kUnit));
  scaler_ = std::move(fresh);
  key_ = key;
  return scaler_.get();
}

void RgbConverter::to_rgb(const AVFrame& frame, ImageU8& out) {
  SwsContext* context = scaler({frame.height, frame.width, frame.format, AV_PIX_FMT_RGB24,
                                colorspace_of(frame), range_of(frame)});
  ensure_rgb_frame(rgb_, frame.height, frame.width);
  AVFrame& rgb = *rgb_.get();
  const int rows =
      sws_scale(context, frame.data, frame.linesize, 0, frame.height, rgb.data, rgb.linesize);
  if (rows != frame.height) {
    throw DataError(std::string("conversion from pixel format ") + format_name(frame.format) +
                    " failed");
  }
  if (out.height != frame.height || out.width != frame.width) {
    out = ImageU8(frame.height, frame.width);
  }
  for (std::int64_t y = 0; y < out.height; ++y) {
    std::copy_n(rgb.data[0] + y * rgb.linesize[0], out.row_values(), out.row(y).begin());
  }
}

void RgbConverter::from_rgb(const ImageU8& image, AVFrame& frame) {
  SwsContext* context = scaler({frame.height, frame.width, AV_PIX_FMT_RGB24, frame.format,
                                colorspace_of(frame), range_of(frame)});
  ensure_rgb_frame(rgb_, image.height, image.width);
  AVFrame& rgb = *rgb_.get();
  for (std::int64_t y = 0; y < image.height; ++y) {
    const auto row = image.row(y);
    std::copy(row.begin(), row.end(), rgb.data[0] + y * rgb.linesize[0]);
  }
  sws_scale(context, rgb.data, rgb.linesize, 0, rgb.height, frame.data, frame.linesize);
}

}  // namespace vsr::runtime
