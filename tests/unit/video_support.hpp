// SPDX-License-Identifier: Apache-2.0
// Folders that vanish and small clips in files, for the tests of reading.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "runtime/video/test_clip.hpp"
#include "runtime/video/video_writer.hpp"

namespace vsr::test {

/// An empty folder for the life of this object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "vsr_video_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

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

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream stream(path, std::ios::binary);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// The message of the `Expected` that `action` throws; says so when it throws none.
template <typename Expected>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("(another type) ") + error.what();
  }
  return "(nothing was thrown)";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace vsr::test
