// SPDX-License-Identifier: Apache-2.0
// A file or folder appears under its name complete, or not at all.
#pragma once

#include <filesystem>
#include <utility>

namespace vsr::runtime {

/// The name under which `path` is prepared: hidden, in the same folder, of this process.
std::filesystem::path draft_of(const std::filesystem::path& path);

/// Make missing parent folders of `path`.
/// @throws IoError naming the folder
void make_parent(const std::filesystem::path& path);

/// Flush `draft` (a file, or a folder whose files were synced) to the disk and give it its name.
/// @throws IoError naming `path`; the draft is left
void publish(const std::filesystem::path& draft, const std::filesystem::path& path);

/// Flush one file or folder to the disk.
/// @throws IoError naming it
void sync_to_disk(const std::filesystem::path& path);

/// Removes a draft that was never published, however the scope is left.
class DraftGuard {
 public:
  explicit DraftGuard(std::filesystem::path draft) : draft_(std::move(draft)) {}
  DraftGuard(const DraftGuard&) = delete;
  DraftGuard& operator=(const DraftGuard&) = delete;
  ~DraftGuard();
  const std::filesystem::path& path() const noexcept { return draft_; }
  void keep() noexcept { kept_ = true; }

 private:
  std::filesystem::path draft_;
  bool kept_ = false;
};

}  // namespace vsr::runtime
