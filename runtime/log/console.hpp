// SPDX-License-Identifier: Apache-2.0
// What a person sees of a run: train.log and the terminal. Only rank 0 builds one.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>

#include "runtime/log/step_times.hpp"

namespace vsr::runtime {

/// Wall-clock time, injected by tests.
using LogClock = std::function<std::chrono::system_clock::time_point()>;

/// One training iteration as reported.
struct IterationLine {
  std::int64_t iter = 0;  ///< 1-based; counts skipped steps
  double loss = 0;        ///< mean over the leaves, unscaled
  double lr = 0;
  double loss_scale = 1;     ///< the scale this iteration used
  std::int64_t skipped = 0;  ///< steps skipped since the run began
  StepTimes times;
};

/// The newest validation, shown beside every iteration.
struct ValidationScore {
  double psnr_y = 0;          ///< dB
  double bicubic_psnr_y = 0;  ///< dB, same frames
};

struct TrainLogOptions {
  std::int64_t total_iter = 0;
  std::int64_t print_freq = 10;
  std::ostream* terminal = nullptr;  ///< null: std::cout
  std::optional<bool> is_terminal;   ///< unset: asks the system about standard output
  std::function<int()> width;        ///< columns; unset: those of standard output
  LogClock clock;                    ///< unset: the system's
};

/// Writes lines to train.log (appended, each behind its UTC time) and to the terminal: a progress
/// bar that redraws itself where there is one, a line per print interval elsewhere.
/// A log that can no longer be written is told once on the terminal; it never ends a run.
class TrainLog {
 public:
  /// @throws IoError when `file` cannot be opened for appending
  TrainLog(const std::filesystem::path& file, TrainLogOptions options);
  ~TrainLog();
  TrainLog(const TrainLog&) = delete;
  TrainLog& operator=(const TrainLog&) = delete;

  /// A line in both places, as it stands.
  void message(const std::string& text);
  /// The same, behind "warning: ".
  void warning(const std::string& text);
  /// Report an iteration: a line each `print_freq` iterations and after the last one, with times
  /// averaged since the line before; the progress bar at most ten times a second.
  void iteration(const IterationLine& line);
  /// Remember the score and report it, e.g. "val NAME  psnr-y 32.91 (bicubic 32.23, gain +0.68)".
  void validation(const std::string& name, const ValidationScore& score);
  /// Show this score beside iterations without reporting it (after a resume).
  void set_last_score(const ValidationScore& score);
  /// Take the progress bar off the terminal; further lines start at the left edge.
  void finish_bar();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// The line of an iteration without its line break: "iter 120/1000  loss 0.02310  psnr-y 32.91
/// (bicubic 32.23)  lr 1.95e-04  scale 65536  skipped 0  step 61.2 ms (data 1.1 compute 52.0
/// comm 8.1)  eta 0:00:54". Pure; `times` are averages; without a score the psnr-y part is absent.
std::string iteration_text(const IterationLine& line, std::int64_t total_iter,
                           const std::optional<ValidationScore>& score);

/// The progress bar, at most `width` columns of ASCII: fields give way from the least needed on.
std::string progress_text(const IterationLine& line, std::int64_t total_iter,
                          const std::optional<ValidationScore>& score, int width);

}  // namespace vsr::runtime
