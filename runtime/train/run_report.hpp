// SPDX-License-Identifier: Apache-2.0
// Everything a run tells: the terminal and train.log for people, metrics.jsonl for scripts. Rank 0
// alone tells; on other ranks every call does nothing, so that the loop need not ask which rank it
// is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "optim/fp16_optimizer.hpp"
#include "runtime/log/console.hpp"
#include "runtime/log/metrics_jsonl.hpp"
#include "runtime/train/run_state.hpp"
#include "runtime/train/validation.hpp"

namespace vsr::runtime {

struct RunReportOptions {
  std::filesystem::path run_folder;
  std::int64_t total_iter = 0;
  std::int64_t print_freq = 10;
  bool is_terminal = false;  ///< a person watches: draw a progress bar
};

class RunReport {
 public:
  /// A report that tells nothing: for ranks other than 0.
  RunReport() = default;
  /// Opens train.log and metrics.jsonl in the run folder, to append.
  /// @throws IoError
  explicit RunReport(const RunReportOptions& options);

  void message(const std::string& text);
  void warning(const std::string& text);
  /// First record: what the run is.
  void start(const Progress& progress, int world, const std::string& masters);
  void iteration(const Progress& progress, const optim::StepReport& step, double lr,
                 const StepTimes& times, std::int64_t wire_bytes);
  void validation(const Progress& progress, const ValidationResult& result);
  /// @param seconds from the start of the save to its last byte on the disk
  /// @param stall_ms training waited so long of that
  void checkpoint(const Progress& progress, const std::filesystem::path& folder, double seconds,
                  double stall_ms);
  /// Last record and lines: the hash of the masters, then the held-out scores.
  void end(const Progress& progress, const optim::OptimizerState& state,
           const std::string& masters);

 private:
  void append(const MetricsRecord& record);

  std::unique_ptr<TrainLog> log_;
  std::unique_ptr<MetricsJsonl> metrics_;
  bool metrics_failed_ = false;
};

}  // namespace vsr::runtime
