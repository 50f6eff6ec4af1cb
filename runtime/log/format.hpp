// SPDX-License-Identifier: Apache-2.0
// Numbers as people read them, the same in the log, the plan and the closing lines.
#pragma once

#include <cstdint>
#include <string>

namespace vsr::runtime {

/// "0:00:54", "12:03:07", "3 d 04:00:00"; rounded to the second; "?" when not finite or negative.
std::string format_duration(double seconds);

/// "512 B", "1.0 KiB", "93.8 MiB", "1.5 GiB": binary units, one decimal.
std::string format_bytes(std::int64_t bytes);

/// 12345678 as "12 345 678".
std::string format_count(std::int64_t count);

/// Columns of the terminal behind `file_descriptor`; else of $COLUMNS; else 80.
int terminal_width(int file_descriptor);

}  // namespace vsr::runtime
