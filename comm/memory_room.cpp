// SPDX-License-Identifier: Apache-2.0
#include "comm/memory_room.hpp"

#include <algorithm>
#include <fstream>
#include <limits>

namespace vsr::comm {
namespace {

constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();

std::uint64_t kernel_bytes(const std::string& root) {
  std::ifstream file(root + "proc/meminfo");
  std::string key, unit;
  std::uint64_t kib = 0;
  while (file >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    std::getline(file, unit);
  }
  return kUnknown;
}

std::uint64_t container_bytes(const std::string& root) {
  std::ifstream file(root + "sys/fs/cgroup/memory.max");
  std::uint64_t bytes = 0;
  return file >> bytes ? bytes : kUnknown;  // "max" is no number: no limit
}

}  // namespace

std::uint64_t available_memory_bytes(const std::string& root) {
  return std::min(kernel_bytes(root), container_bytes(root));
}

}  // namespace vsr::comm
