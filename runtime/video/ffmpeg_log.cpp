// SPDX-License-Identifier: Apache-2.0
#include "runtime/video/ffmpeg_log.hpp"

#include <array>
#include <cstdarg>
#include <cstdio>

extern "C" {
#include <libavutil/error.h>
#include <libavutil/log.h>
}

namespace vsr::runtime {
namespace {

thread_local std::string first_error;

void keep_first_error(void*, int level, const char* format, va_list arguments) {
  if (level > AV_LOG_ERROR || !first_error.empty()) return;
  std::array<char, 400> text{};
  std::vsnprintf(text.data(), text.size(), format, arguments);
  try {
    first_error = text.data();
  } catch (...) {
    return;  // out of memory inside a C callback: the error code alone must do
  }
  while (!first_error.empty() && (first_error.back() == '\n' || first_error.back() == ' ')) {
    first_error.pop_back();
  }
}

}  // namespace

void start_ffmpeg_log() {
  static const bool installed = [] {
    av_log_set_callback(keep_first_error);
    return true;
  }();
  static_cast<void>(installed);
  first_error.clear();
}

std::string ffmpeg_reason(int code) {
  std::array<char, AV_ERROR_MAX_STRING_SIZE> text{};
  av_strerror(code, text.data(), text.size());
  std::string reason = text.data();
  if (!first_error.empty()) reason += " (" + first_error + ")";
  return reason;
}

bool ffmpeg_saw_early_end() {
  return first_error.find("ended prematurely") != std::string::npos;
}

}  // namespace vsr::runtime
