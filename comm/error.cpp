// SPDX-License-Identifier: Apache-2.0
#include "comm/error.hpp"

namespace vsr {
namespace {

std::string base_name(const char* path) {
  const std::string text(path);
  const auto slash = text.rfind('/');
  return slash == std::string::npos ? text : text.substr(slash + 1);
}

}  // namespace

Error::Error(ExitCode code, const std::string& message, std::source_location where)
    : std::runtime_error(message),
      code_(code),
      where_(base_name(where.file_name()) + ":" + std::to_string(where.line())) {}

}  // namespace vsr
