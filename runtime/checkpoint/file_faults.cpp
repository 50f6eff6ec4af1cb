// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/file_faults.hpp"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

namespace vsr::runtime {
namespace {

FaultHook& hook_in_use() {
  static FaultHook hook;
  return hook;
}

/// VSR_FAULT taken apart; `at` is 0 when there is none.
struct PlannedFault {
  std::string operation;
  std::int64_t at = 0;
  int error = EIO;
  bool kills = false;
  bool is_slow = false;
};

constexpr auto kSlow = std::chrono::seconds(2);

PlannedFault plan_from_environment() {
  PlannedFault plan;
  const char* text = std::getenv("VSR_FAULT");
  if (text == nullptr) return plan;
  const std::string all(text);
  const auto first = all.find(':');
  if (first == std::string::npos) return plan;
  const auto second = all.find(':', first + 1);
  plan.operation = all.substr(0, first);
  plan.at = std::atoll(all.c_str() + first + 1);
  const std::string what = second == std::string::npos ? "EIO" : all.substr(second + 1);
  plan.kills = what == "kill";
  plan.is_slow = what == "slow";
  if (what == "ENOSPC") plan.error = ENOSPC;
  if (what == "EDQUOT") plan.error = EDQUOT;
  if (what == "EROFS") plan.error = EROFS;
  return plan;
}

}  // namespace

const char* to_string(FileOperation operation) noexcept {
  switch (operation) {
    case FileOperation::create_folder:
      return "mkdir";
    case FileOperation::open:
      return "open";
    case FileOperation::allocate:
      return "allocate";
    case FileOperation::write:
      return "write";
    case FileOperation::fsync:
      return "fsync";
    case FileOperation::rename:
      return "rename";
    case FileOperation::unlink:
      return "unlink";
  }
  return "operation";
}

void set_fault_hook(FaultHook hook) {
  hook_in_use() = std::move(hook);
}

int injected_fault(FileOperation operation, const std::filesystem::path& path) {
  if (hook_in_use()) return hook_in_use()(operation, path);
  static const PlannedFault plan = plan_from_environment();
  static std::atomic<std::int64_t> seen{0};
  if (plan.at == 0 || (plan.operation != "any" && plan.operation != to_string(operation))) return 0;
  const std::int64_t number = ++seen;
  if (plan.is_slow) {
    if (number >= plan.at) std::this_thread::sleep_for(kSlow);
    return 0;
  }
  if (number != plan.at) return 0;
  if (plan.kills) ::kill(::getpid(), SIGKILL);
  return plan.error;
}

}  // namespace vsr::runtime
