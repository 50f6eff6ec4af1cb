// SPDX-License-Identifier: Apache-2.0
#include "launch/output_terminal.hpp"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace vsr::launch {
namespace {

bool is_terminal_device(const std::filesystem::path& path) {
  const std::string name = path.string();
  return name.starts_with("/dev/pts/") || name.starts_with("/dev/tty");
}

}  // namespace

bool output_is_terminal() {
  if (::isatty(STDOUT_FILENO) == 0) return false;
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) return true;
  std::error_code unknown;
  const auto parent = "/proc/" + std::to_string(::getppid()) + "/fd/1";
  const std::filesystem::path target = std::filesystem::read_symlink(parent, unknown);
  return !unknown && is_terminal_device(target);
}

}  // namespace vsr::launch
