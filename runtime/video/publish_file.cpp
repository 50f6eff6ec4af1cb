// SPDX-License-Identifier: Apache-2.0
#include "runtime/video/publish_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "comm/error.hpp"

namespace vsr::runtime {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what, int code) {
  throw IoError(path.string() + ": cannot " + what + ": " + std::generic_category().message(code));
}

}  // namespace

std::filesystem::path draft_of(const std::filesystem::path& path) {
  std::string name(1, '.');
  name += path.filename().string();
  name += '.' + std::to_string(::getpid()) + ".part";
  return path.parent_path() / name;
}

void make_parent(const std::filesystem::path& path) {
  const auto parent = path.parent_path();
  if (parent.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  if (error) fail(parent, "make the folder", error.value());
}

void sync_to_disk(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(path, "open", errno);
  const int code = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (code != 0) fail(path, "write to the disk", code);
}

void publish(const std::filesystem::path& draft, const std::filesystem::path& path) {
  sync_to_disk(draft);
  std::error_code error;
  std::filesystem::rename(draft, path, error);
  if (error) fail(path, "give the finished result its name", error.value());
  sync_to_disk(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."));
}

DraftGuard::~DraftGuard() {
  if (kept_) return;
  std::error_code ignored;  // nothing to be done about a draft that stays
  std::filesystem::remove_all(draft_, ignored);
}

}  // namespace vsr::runtime
