// SPDX-License-Identifier: Apache-2.0
#include "runtime/log/format.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>

#include <array>
#include <cmath>
#include <cstdlib>

namespace vsr::runtime {

std::string format_duration(double seconds) {
  constexpr double kLongest = 1e12;
  if (!(seconds >= 0) || seconds > kLongest) return "?";
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  const auto days = whole / 86400;
  const auto hours = whole % 86400 / 3600;
  const auto minutes = whole % 3600 / 60;
  if (days > 0) return fmt::format("{} d {:02}:{:02}:{:02}", days, hours, minutes, whole % 60);
  return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
}

std::string format_bytes(std::int64_t bytes) {
  constexpr std::array kUnits{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes > -1024 && bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  // 1023.95 would be shown as 1024.0 of the smaller unit.
  while (std::abs(value) >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string format_count(std::int64_t count) {
  auto digits = std::to_string(count);
  const std::size_t sign = count < 0 ? 1 : 0;
  for (auto at = digits.size(); at > sign + 3;) {
    at -= 3;
    digits.insert(at, 1, ' ');
  }
  return digits;
}

int terminal_width(int file_descriptor) {
  winsize size{};
  if (::ioctl(file_descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  if (const char* columns = std::getenv("COLUMNS")) {
    const int value = std::atoi(columns);
    if (value > 0) return value;
  }
  return 80;
}

}  // namespace vsr::runtime
