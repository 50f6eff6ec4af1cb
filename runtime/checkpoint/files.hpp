// SPDX-License-Identifier: Apache-2.0
// The file operations that durability rests on, checked and named. All bytes of a checkpoint go
// through them, those of HDF5 files too, so that a full disk is an error here and never inside a
// library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "comm/unique_handle.hpp"

namespace vsr::runtime {

struct FileDescriptorTraits {
  using Type = int;
  static Type null() noexcept { return -1; }
  static void close(Type descriptor) noexcept;
};
using FileDescriptor = comm::UniqueHandle<FileDescriptorTraits>;

/// A new file that is written once. Errors of every call: IoError naming file and reason.
class OutputFile {
 public:
  /// Create it; a file of this name must not be there.
  explicit OutputFile(std::filesystem::path path);
  /// Reserve the space now, where the file system can: a full disk shows before hours of writing.
  void allocate(std::int64_t size_bytes);
  /// Write all `bytes` at `offset_bytes`. What is written in one go from front to back reaches the
  /// disk while it goes on.
  void write_at(std::span<const std::byte> bytes, std::int64_t offset_bytes);
  /// Bring everything to the disk and close.
  void sync_and_close();

 private:
  void start_to_disk(std::int64_t begin, std::int64_t end) noexcept;

  std::filesystem::path path_;
  FileDescriptor descriptor_;
  // Written one after the other, and not yet on its way to the disk.
  std::int64_t waiting_begin_ = 0;
  std::int64_t waiting_end_ = 0;
};

/// A file that is read at places.
/// @throws IoError; CheckpointError where the file is not there or shorter than what is asked for
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path);
  std::int64_t size_bytes() const noexcept { return size_bytes_; }
  /// Fill `bytes` from `offset_bytes` on.
  void read_at(std::span<std::byte> bytes, std::int64_t offset_bytes) const;

 private:
  std::filesystem::path path_;
  FileDescriptor descriptor_;
  std::int64_t size_bytes_ = 0;
};

/// The whole file.
/// @throws CheckpointError when it is not there or larger than `limit_bytes`; IoError
std::string read_file(const std::filesystem::path& path, std::int64_t limit_bytes);

/// Create one folder; it may be there already. @throws IoError
void create_folder(const std::filesystem::path& folder);
/// Create a folder and those above it. @throws IoError
void create_folders(const std::filesystem::path& folder);
/// Make the entries of a folder durable. @throws IoError
void fsync_folder(const std::filesystem::path& folder);
/// The folder that holds `path`: "." for a bare name.
std::filesystem::path containing_folder(const std::filesystem::path& path);
/// Rename within a file system, replacing a file of the new name. @throws IoError
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);
/// Swap two names in one step, where the file system can. @returns false where it cannot.
/// @throws IoError for any other failure
bool exchange_paths(const std::filesystem::path& a, const std::filesystem::path& b);
/// Remove a file. @throws IoError
void remove_file(const std::filesystem::path& path);
/// Remove a folder and all in it; nothing there is no error. @throws IoError
void remove_tree(const std::filesystem::path& folder);

/// Write a new file with `text`, durably (the folder's entry is the caller's to sync).
void write_new_file(const std::filesystem::path& path, std::string_view text);
/// Leave `path` either as it was or with all that `write` puts into a file of another name,
/// durably, whatever happens in between.
/// @throws IoError, and what `write` throws; the temporary file is removed
void write_file_atomically(const std::filesystem::path& path,
                           const std::function<void(OutputFile&)>& write);
/// The same with `text`.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

/// Bytes an ordinary user can still write where `folder` lies. @throws IoError
std::int64_t free_bytes(const std::filesystem::path& folder);

/// "12.3 MB", with powers of 10.
std::string readable_size(std::int64_t bytes);

}  // namespace vsr::runtime
