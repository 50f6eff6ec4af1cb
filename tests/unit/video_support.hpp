// SPDX-License-Identifier: Apache-2.0
// Small clips in files, for the tests of reading.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/video/test_clip.hpp"
#include "runtime/video/video_writer.hpp"
#include "tests/support/error_messages.hpp"
#include "tests/support/temporary_folder.hpp"

namespace vsr::test {

inline void write_clip(const std::filesystem::path& path,
                       const std::vector<runtime::ImageU8>& frames,
                       const runtime::VideoWriterOptions& options = {},
                       runtime::FrameRate rate = {25, 1}) {
  const auto writer = runtime::open_writer(path, rate, options);
  for (const auto& frame : frames) writer->write(frame);
  writer->finish();
}

inline std::vector<runtime::ImageU8> moving_frames(std::int64_t count, std::int64_t height,
                                                   std::int64_t width, std::uint64_t seed = 3) {
  return runtime::make_test_clip({.seed = seed, .frames = count, .height = height, .width = width});
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace vsr::test
