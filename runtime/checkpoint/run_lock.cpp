// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/run_lock.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>
#include <utility>

#include "comm/error.hpp"
#include "comm/processes.hpp"
#include "runtime/checkpoint/files.hpp"

namespace vsr::runtime {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kPatienceChecks = 10;
constexpr std::chrono::milliseconds kPatience(100);

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string link_target(const fs::path& path) {
  std::error_code ignored;
  return fs::read_symlink(path, ignored).string();
}

/// Tells a process from a later one with the same number.
std::string start_ticks(long pid) {
  return comm::process_field(pid, 22);
}

/// Dead, though its parent may not have asked for it yet.
bool is_dead(long pid) {
  if (pid <= 0 || (::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH)) return true;
  const std::string state = comm::process_field(pid, 3);
  return state == "Z" || state == "X";
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  ::localtime_r(&now, &parts);
  std::array<char, 64> text = {};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S %z", &parts);
  return text.data();
}

json our_entry() {
  const long pid = ::getpid();
  return {{"host", comm::host_name()},
          {"pid", pid},
          {"started", local_time()},
          {"start_ticks", start_ticks(pid)},
          {"boot", first_line("/proc/sys/kernel/random/boot_id")},
          {"pid_namespace", link_target("/proc/self/ns/pid")},
          {"job", environment("SLURM_JOB_ID")},
          {"job_restart", environment("SLURM_RESTART_COUNT")}};
}

std::string text_of(const json& entry, const char* key) {
  const auto found = entry.find(key);
  if (found == entry.end()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

bool is_of_this_host(const json& held, const json& ours) {
  return held.is_object() && text_of(held, "host") == text_of(ours, "host");
}

/// Why `held` no longer counts, or empty when its run may be alive.
std::string why_stale(const json& held, const json& ours) {
  if (!held.is_object()) return "";
  const std::string job = text_of(held, "job");
  if (!job.empty() && job == text_of(ours, "job") &&
      std::atol(text_of(held, "job_restart").c_str()) <
          std::atol(text_of(ours, "job_restart").c_str()))
    return "job " + job + " was started anew";
  if (!is_of_this_host(held, ours)) return "";
  if (text_of(held, "boot") != text_of(ours, "boot")) return "the host was started anew";
  // Another container: its process numbers mean nothing here.
  if (text_of(held, "pid_namespace") != text_of(ours, "pid_namespace")) return "";
  const long pid = std::atol(text_of(held, "pid").c_str());
  if (is_dead(pid) || start_ticks(pid) != text_of(held, "start_ticks"))
    return "process " + std::to_string(pid) + " is dead";
  return "";
}

std::string read_lock(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// Two starts on one host take turns while they look at a stale file. Where the file system knows
/// no such locks, O_EXCL still lets one of them win.
FileDescriptor take_turn(const fs::path& folder) {
  FileDescriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor) ::flock(descriptor.get(), LOCK_EX);
  return descriptor;
}

[[noreturn]] void refuse(const fs::path& run_folder, const json& held) {
  const std::string job = text_of(held, "job");
  const std::string who = held.is_object()
                              ? "host " + text_of(held, "host") + ", process " +
                                    text_of(held, "pid") + ", started " + text_of(held, "started") +
                                    (job.empty() ? "" : ", job " + job)
                              : "its lock cannot be read";
  throw ConfigurationError("'" + run_folder.string() + "' is in use: " + who +
                           "; choose another --out, or delete '" + (run_folder / "LOCK").string() +
                           "' if that run is dead");
}

}  // namespace

RunLock::RunLock(const fs::path& run_folder) : run_folder_(run_folder) {
  create_folders(run_folder_);
  const fs::path path = run_folder_ / "LOCK";
  const json ours = our_entry();
  const std::string content = ours.dump(1) + "\n";
  const FileDescriptor turn = take_turn(run_folder_);
  std::error_code ignored;
  if (fs::exists(path, ignored)) {
    json held = json::parse(read_lock(path), nullptr, false);
    std::string reason = why_stale(held, ours);
    // A run that was killed needs a moment to die, in the middle of a sync for example.
    for (int i = 0; i < kPatienceChecks && reason.empty() && is_of_this_host(held, ours); ++i) {
      std::this_thread::sleep_for(kPatience);
      held = json::parse(read_lock(path), nullptr, false);
      reason = fs::exists(path, ignored) ? why_stale(held, ours) : "it ended just now";
    }
    if (reason.empty()) refuse(run_folder_, held);
    notice_ = "took over the lock of a dead run (" + reason + "): host " + text_of(held, "host") +
              ", started " + text_of(held, "started");
    if (fs::exists(path, ignored)) remove_file(path);
  }
  try {
    write_new_file(path, content);
  } catch (const IoError&) {
    const std::string there = read_lock(path);
    // On another host somebody was faster.
    if (!there.empty() && content.rfind(there, 0) != 0)
      refuse(run_folder_, json::parse(there, nullptr, false));
    ::unlink(path.c_str());
    throw;
  }
  content_ = content;
}

RunLock::~RunLock() {
  release();
}

RunLock::RunLock(RunLock&& other) noexcept
    : run_folder_(std::move(other.run_folder_)),
      content_(std::exchange(other.content_, {})),
      notice_(std::move(other.notice_)) {}

RunLock& RunLock::operator=(RunLock&& other) noexcept {
  std::swap(run_folder_, other.run_folder_);
  std::swap(content_, other.content_);
  std::swap(notice_, other.notice_);
  return *this;
}

void RunLock::release() noexcept {
  if (content_.empty()) return;
  try {
    const fs::path path = run_folder_ / "LOCK";
    if (read_lock(path) == content_) ::unlink(path.c_str());
  } catch (...) {
    // A lock that stays is taken over by the next run.
  }
  content_.clear();
}

}  // namespace vsr::runtime
