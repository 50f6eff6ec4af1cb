// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "comm/error.hpp"
#include "runtime/checkpoint/file_faults.hpp"

namespace vsr::runtime {
namespace {

namespace fs = std::filesystem;

/// Some systems refuse or cut single transfers of 2 GiB and more.
constexpr std::size_t kLargestTransferBytes = std::size_t{1} << 30;
/// Smaller pieces reach a disk more slowly, and larger ones later.
constexpr std::int64_t kToDiskBytes = std::int64_t{16} << 20;

void write_text(OutputFile& file, std::string_view text) {
  file.write_at(std::as_bytes(std::span<const char>(text)), 0);
}

[[noreturn]] void fail(const std::string& what, const fs::path& path, int error) {
  throw IoError("cannot " + what + " '" + path.string() + "': " + std::strerror(error));
}

void ask_faults(FileOperation operation, const std::string& what, const fs::path& path) {
  if (const int error = injected_fault(operation, path); error != 0) fail(what, path, error);
}

FileDescriptor open_checked(const fs::path& path, int flags, const std::string& what) {
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) fail(what, path, errno);
  return FileDescriptor(descriptor);
}

void fsync_checked(int descriptor, const fs::path& path) {
  ask_faults(FileOperation::fsync, "bring to the disk", path);
  int status = 0;
  do {
    status = ::fsync(descriptor);
  } while (status != 0 && errno == EINTR);
  if (status != 0) fail("bring to the disk", path, errno);
}

}  // namespace

void FileDescriptorTraits::close(Type descriptor) noexcept {
  ::close(descriptor);
}

OutputFile::OutputFile(fs::path path) : path_(std::move(path)) {
  ask_faults(FileOperation::open, "create", path_);
  descriptor_ = open_checked(path_, O_WRONLY | O_CREAT | O_EXCL, "create");
}

void OutputFile::allocate(std::int64_t size_bytes) {
  ask_faults(FileOperation::allocate, "reserve space for", path_);
  if (size_bytes <= 0) return;
  // Not posix_fallocate: where the file system cannot reserve, that one writes zeros by itself.
  if (::fallocate(descriptor_.get(), 0, 0, size_bytes) == 0) return;
  if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINTR) return;
  fail("reserve " + readable_size(size_bytes) + " for", path_, errno);
}

void OutputFile::write_at(std::span<const std::byte> bytes, std::int64_t offset_bytes) {
  while (!bytes.empty()) {
    ask_faults(FileOperation::write, "write to", path_);
    const std::size_t count = std::min(bytes.size(), kLargestTransferBytes);
    const ssize_t done = ::pwrite(descriptor_.get(), bytes.data(), count, offset_bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("write to", path_, errno);
    if (done == 0) fail("write to", path_, ENOSPC);
    start_to_disk(offset_bytes, offset_bytes + done);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset_bytes += done;
  }
}

// Without it the system keeps everything in memory until fsync, and the disk rests meanwhile. Only
// a hint: what fails shows in fsync.
void OutputFile::start_to_disk(std::int64_t begin, std::int64_t end) noexcept {
  if (begin != waiting_end_) waiting_begin_ = begin;
  waiting_end_ = end;
  if (end - waiting_begin_ < kToDiskBytes) return;
  ::sync_file_range(descriptor_.get(), waiting_begin_, end - waiting_begin_, SYNC_FILE_RANGE_WRITE);
  waiting_begin_ = end;
}

void OutputFile::sync_and_close() {
  fsync_checked(descriptor_.get(), path_);
  // Network file systems report late failures of writes here.
  if (::close(descriptor_.release()) != 0 && errno != EINTR) fail("close", path_, errno);
}

InputFile::InputFile(fs::path path) : path_(std::move(path)) {
  const std::string missing = path_.string() + " is missing or no file";
  // Without waiting: a named pipe in place of a file must not stop us for ever.
  descriptor_ = FileDescriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!descriptor_ && (errno == ENOENT || errno == ENOTDIR)) throw CheckpointError(missing);
  if (!descriptor_) fail("open", path_, errno);
  struct stat status = {};
  if (::fstat(descriptor_.get(), &status) != 0) fail("look at", path_, errno);
  if (!S_ISREG(status.st_mode)) throw CheckpointError(missing);
  size_bytes_ = status.st_size;
}

void InputFile::read_at(std::span<std::byte> bytes, std::int64_t offset_bytes) const {
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), kLargestTransferBytes);
    const ssize_t done = ::pread(descriptor_.get(), bytes.data(), count, offset_bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("read", path_, errno);
    if (done == 0)
      throw CheckpointError("'" + path_.string() + "' ends at byte " + std::to_string(size_bytes_) +
                            ", before byte " + std::to_string(offset_bytes) +
                            " that is to be read");
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset_bytes += done;
  }
}

std::string read_file(const fs::path& path, std::int64_t limit_bytes) {
  const InputFile file(path);
  if (file.size_bytes() > limit_bytes)
    throw CheckpointError("'" + path.string() + "' has " + readable_size(file.size_bytes()) +
                          ", expected at most " + readable_size(limit_bytes));
  std::string text(static_cast<std::size_t>(file.size_bytes()), '\0');
  file.read_at(std::as_writable_bytes(std::span<char>(text)), 0);
  return text;
}

void create_folder(const fs::path& folder) {
  ask_faults(FileOperation::create_folder, "create folder", folder);
  if (::mkdir(folder.c_str(), 0777) == 0) return;
  const int error = errno;
  std::error_code ignored;
  if (error != EEXIST || !fs::is_directory(folder, ignored)) fail("create folder", folder, error);
}

void create_folders(const fs::path& folder) {
  std::error_code ignored;
  if (folder.empty() || fs::is_directory(folder, ignored)) return;
  const fs::path parent = folder.parent_path();
  if (parent != folder) create_folders(parent);
  create_folder(folder);
}

void fsync_folder(const fs::path& folder) {
  const FileDescriptor descriptor = open_checked(folder, O_RDONLY | O_DIRECTORY, "open folder");
  fsync_checked(descriptor.get(), folder);
}

fs::path containing_folder(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

void rename_path(const fs::path& from, const fs::path& to) {
  const std::string what = "rename '" + from.string() + "' to";
  ask_faults(FileOperation::rename, what, to);
  if (::rename(from.c_str(), to.c_str()) != 0) fail(what, to, errno);
}

bool exchange_paths(const fs::path& a, const fs::path& b) {
  const std::string what = "swap '" + a.string() + "' with";
  ask_faults(FileOperation::rename, what, b);
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) return false;
  fail(what, b, errno);
}

void remove_file(const fs::path& path) {
  ask_faults(FileOperation::unlink, "remove", path);
  if (::unlink(path.c_str()) != 0) fail("remove", path, errno);
}

void remove_tree(const fs::path& folder) {
  ask_faults(FileOperation::unlink, "remove", folder);
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) fail("remove", folder, error.value());
}

void write_new_file(const fs::path& path, std::string_view text) {
  OutputFile file(path);
  write_text(file, text);
  file.sync_and_close();
}

void write_file_atomically(const fs::path& path, std::string_view text) {
  write_file_atomically(path, [&](OutputFile& file) { write_text(file, text); });
}

void write_file_atomically(const fs::path& path, const std::function<void(OutputFile&)>& write) {
  const fs::path folder = containing_folder(path);
  const fs::path temporary =
      folder / (".tmp-" + path.filename().string() + "-" + std::to_string(::getpid()));
  ::unlink(temporary.c_str());  // of a dead process that had our number
  try {
    OutputFile file(temporary);
    write(file);
    file.sync_and_close();
    rename_path(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  fsync_folder(folder);
}

std::int64_t free_bytes(const fs::path& folder) {
  struct statvfs status = {};
  if (::statvfs(folder.c_str(), &status) != 0) fail("ask for free space in", folder, errno);
  return static_cast<std::int64_t>(status.f_bavail) * static_cast<std::int64_t>(status.f_frsize);
}

std::string readable_size(std::int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"bytes", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1000.0 && unit + 1 < kUnits.size()) {
    value /= 1000.0;
    ++unit;
  }
  std::array<char, 32> text = {};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text.data();
}

}  // namespace vsr::runtime
