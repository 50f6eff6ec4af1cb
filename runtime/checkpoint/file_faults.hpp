// SPDX-License-Identifier: Apache-2.0
// For tests only: makes a chosen file operation fail, or the process die just before it. The save
// path asks here before each operation, so that tests can walk through all of its failures.
#pragma once

#include <filesystem>
#include <functional>

namespace vsr::runtime {

enum class FileOperation { create_folder, open, allocate, write, fsync, rename, unlink };

/// Word for the operation, as in VSR_FAULT: mkdir, open, allocate, write, fsync, rename, unlink.
const char* to_string(FileOperation operation) noexcept;

/// Returns 0 to let the operation happen, or the errno it is to fail with.
using FaultHook = std::function<int(FileOperation, const std::filesystem::path&)>;

/// Set (or clear, with an empty function) the hook of this process. Test-only; not thread-safe.
void set_fault_hook(FaultHook hook);

/// Ask before an operation: 0, or an errno. Without a hook the environment variable VSR_FAULT is
/// obeyed, test-only too: `OPERATION:N[:WHAT]` makes the N-th operation of that kind in this
/// process
/// ("any": of all kinds) fail with EIO; WHAT is EIO, ENOSPC, EDQUOT, EROFS, `kill`, which ends the
/// process by SIGKILL, or `slow`, which makes that one and all later ones take 2 s.
int injected_fault(FileOperation operation, const std::filesystem::path& path);

}  // namespace vsr::runtime
