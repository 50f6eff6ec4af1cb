// SPDX-License-Identifier: Apache-2.0
// FFmpeg explains its failures on stderr only. Here its text is kept, to become part of our
// messages, and stderr stays clean.
#pragma once

#include <string>

namespace vsr::runtime {

/// Silence FFmpeg's own log (once per process) and forget what this thread collected so far.
void start_ffmpeg_log();

/// The text of error code `code`, followed by the first error that FFmpeg logged in this thread
/// since start_ffmpeg_log.
std::string ffmpeg_reason(int code);

/// True when FFmpeg said since start_ffmpeg_log that a file ends too early: some demuxers report
/// that as an ordinary end.
bool ffmpeg_saw_early_end();

}  // namespace vsr::runtime
