// SPDX-License-Identifier: Apache-2.0
#include "comm/processes.hpp"

#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>

namespace vsr::comm {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

std::string process_field(long pid, int number) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const auto after_name = line.rfind(')');
  if (after_name == std::string::npos) return "";
  std::istringstream fields(line.substr(after_name + 1));
  std::string field;
  for (int i = 3; i <= number; ++i)
    if (!(fields >> field)) return "";
  return field;
}

}  // namespace vsr::comm
