// SPDX-License-Identifier: Apache-2.0
// metrics.jsonl: the run as one JSON object per line, for scripts. Each line is one write() to a
// file opened for appending, so that a killed run leaves whole lines; one that was cut all the same
// (power loss, full disk) is removed when the file is opened again.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace vsr::runtime {

enum class RecordType { start, iter, val, ckpt, end };

/// A value of `MetricsRecord::extra`.
using MetricsValue = std::variant<std::int64_t, double, bool, std::string>;

/// One line. Fields that do not apply stay unset and are left out; the keys are the names below,
/// in this order, after `type` and `time_s` (Unix time, seconds).
/// JSON has no infinity: numbers that are not finite are the strings "inf", "-inf" and "nan".
struct MetricsRecord {
  RecordType type = RecordType::iter;
  std::optional<std::int64_t> iter;     ///< iterations done, skipped ones included
  std::optional<std::int64_t> applied;  ///< steps applied
  std::optional<double> loss;
  std::optional<double> lr;
  std::optional<double> loss_scale;
  std::optional<std::int64_t> skipped;  ///< since the run began
  std::optional<double> grad_norm;      ///< before clipping, unscaled
  std::optional<double> psnr_y;
  std::optional<double> bicubic_psnr_y;
  std::optional<double> ssim_y;
  std::optional<double> data_ms;
  std::optional<double> compute_ms;
  std::optional<double> comm_ms;
  std::optional<double> exposed_ms;
  std::optional<std::int64_t> wire_bytes;
  std::optional<std::string> masters;                       ///< 32 hex digits
  std::vector<std::pair<std::string, MetricsValue>> extra;  ///< further keys, e.g. name, path
};

/// The line of a record, without its line break.
std::string to_json(const MetricsRecord& record, double time_s);

class MetricsJsonl {
 public:
  /// Open for appending; cuts off what follows the last line break.
  /// @param clock wall-clock time; unset: the system's
  /// @throws IoError naming the file
  explicit MetricsJsonl(const std::filesystem::path& file,
                        std::function<std::chrono::system_clock::time_point()> clock = {});
  ~MetricsJsonl();
  MetricsJsonl(MetricsJsonl&& other) noexcept;
  MetricsJsonl& operator=(MetricsJsonl&& other) noexcept;

  /// Append one line by one write().
  /// @throws IoError when the disk does not take it whole; the torn part is cut off again
  void append(const MetricsRecord& record);

  /// Bytes of a torn last line that opening removed.
  std::int64_t repaired_bytes() const noexcept { return repaired_bytes_; }

 private:
  std::filesystem::path file_;
  std::function<std::chrono::system_clock::time_point()> clock_;
  int descriptor_ = -1;
  std::int64_t repaired_bytes_ = 0;
};

}  // namespace vsr::runtime
