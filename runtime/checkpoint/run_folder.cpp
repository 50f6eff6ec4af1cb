// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/run_folder.hpp"

#include <unistd.h>

#include <system_error>

#include "comm/error.hpp"
#include "runtime/checkpoint/files.hpp"
#include "runtime/checkpoint/step_folder.hpp"

namespace vsr::runtime {
namespace {

namespace fs = std::filesystem;

bool starts_with(const std::string& text, const std::string& start) {
  return text.rfind(start, 0) == 0;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    entries.push_back(entry->path());
  return entries;
}

/// What is to be done with one entry of ckpt/; empty when it is none of ours to touch.
std::string clear_entry(const fs::path& entry) {
  const std::string name = entry.filename().string();
  if (starts_with(name, ".tmp-") || starts_with(name, ".trash-")) {
    remove_tree(entry);
    return "removed '" + entry.string() + "', left by a dead run";
  }
  if (!starts_with(name, kReplacedPrefix)) return "";
  const fs::path original = entry.parent_path() / name.substr(std::string(kReplacedPrefix).size());
  std::error_code ignored;
  if (fs::exists(original, ignored)) {
    remove_tree(entry);
    return "removed '" + entry.string() + "', which was replaced";
  }
  rename_path(entry, original);
  fsync_folder(containing_folder(entry));
  return "put back '" + original.string() + "', whose replacement was never finished";
}

}  // namespace

void probe_writable(const fs::path& run_folder, std::int64_t needed_bytes) {
  try {
    create_folders(run_folder);
    const fs::path probe = run_folder / (".tmp-probe-" + std::to_string(::getpid()));
    ::unlink(probe.c_str());
    try {
      write_new_file(probe, "vsr_dist writes here\n");
    } catch (...) {
      ::unlink(probe.c_str());
      throw;
    }
    remove_file(probe);
  } catch (const IoError& error) {
    throw IoError("output folder '" + run_folder.string() + "' cannot be written: " + error.what());
  }
  const std::int64_t free = free_bytes(run_folder);
  if (free < needed_bytes)
    throw IoError("output folder '" + run_folder.string() + "': no space left: needs " +
                  readable_size(needed_bytes) + ", " + readable_size(free) + " free");
}

std::vector<std::string> remove_leftovers(const RunLock& lock) {
  std::vector<std::string> notices;
  for (const fs::path& entry : entries_of(lock.run_folder() / "ckpt")) {
    try {
      if (std::string notice = clear_entry(entry); !notice.empty()) notices.push_back(notice);
    } catch (const IoError& error) {
      notices.push_back(error.what());
    }
  }
  return notices;
}

bool holds_a_run(const fs::path& run_folder) {
  std::error_code ignored;
  for (const char* name : {"config.ini", "metrics.jsonl", "train.log"})
    if (fs::exists(run_folder / name, ignored)) return true;
  return !list_checkpoints(run_folder).empty() || !damaged_folders(run_folder).empty();
}

}  // namespace vsr::runtime
