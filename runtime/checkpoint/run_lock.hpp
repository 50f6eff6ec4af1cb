// SPDX-License-Identifier: Apache-2.0
// Keeps two runs from writing into one folder. A file says who holds it, so that a person can find
// the other run, and a dead holder does not stop the next one.
#pragma once

#include <filesystem>
#include <string>

namespace vsr::runtime {

/// Holds RUN/LOCK for as long as it lives. For rank 0 alone; local.
/// The file names host, process, start time and job. It is taken over when its process is dead on
/// this host, or when it was left by an earlier start of this same Slurm job (requeued elsewhere);
/// `notice()` then says so. A holder on this host is given a second to finish dying. The destructor
/// removes the file if it still is ours.
class RunLock {
 public:
  /// Create `run_folder` if need be and take its lock.
  /// @throws ConfigurationError (78) naming host, process and start of the run that holds it
  /// @throws IoError (74) when the folder or file cannot be made
  explicit RunLock(const std::filesystem::path& run_folder);
  ~RunLock();
  RunLock(RunLock&&) noexcept;
  RunLock& operator=(RunLock&&) noexcept;
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  const std::filesystem::path& run_folder() const noexcept { return run_folder_; }
  /// Whose stale lock was taken over, or empty.
  const std::string& notice() const noexcept { return notice_; }

 private:
  void release() noexcept;

  std::filesystem::path run_folder_;
  std::string content_;  // empty when nothing is held
  std::string notice_;
};

}  // namespace vsr::runtime
