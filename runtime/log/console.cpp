// SPDX-License-Identifier: Apache-2.0
#include "runtime/log/console.hpp"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <utility>

#include "comm/error.hpp"
#include "runtime/log/format.hpp"

namespace vsr::runtime {
namespace {

constexpr auto kRedrawInterval = std::chrono::milliseconds(100);

TrainLogOptions with_defaults(TrainLogOptions options) {
  if (options.terminal == nullptr) options.terminal = &std::cout;
  if (!options.is_terminal) options.is_terminal = ::isatty(STDOUT_FILENO) == 1;
  if (!options.width) options.width = [] { return terminal_width(STDOUT_FILENO); };
  if (!options.clock) options.clock = [] { return std::chrono::system_clock::now(); };
  options.print_freq = std::max<std::int64_t>(1, options.print_freq);
  return options;
}

std::unique_ptr<spdlog::logger> open_logger(const std::filesystem::path& file) {
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_st>(file.string());
    auto logger = std::make_unique<spdlog::logger>("train", std::move(sink));
    logger->set_formatter(std::make_unique<spdlog::pattern_formatter>(
        "%Y-%m-%d %H:%M:%S %v", spdlog::pattern_time_type::utc));
    logger->flush_on(spdlog::level::info);
    return logger;
  } catch (const spdlog::spdlog_ex& e) {
    throw IoError(
        fmt::format("cannot write the log {}: {}; choose another --out or make its "
                    "folder writable",
                    file.string(), e.what()));
  }
}

}  // namespace

class TrainLog::Impl {
 public:
  Impl(const std::filesystem::path& file, TrainLogOptions options)
      : options_(with_defaults(std::move(options))), logger_(open_logger(file)) {
    logger_->set_error_handler([this](const std::string& reason) {
      if (!std::exchange(log_failed_, true)) to_terminal("warning: train.log: " + reason);
    });
  }

  void write(const std::string& text) {
    to_file(text);
    to_terminal(text);
  }

  void iteration(const IterationLine& line) {
    interval_.add(line.times);
    newest_ = line;
    const bool due = line.iter % options_.print_freq == 0 || line.iter == options_.total_iter;
    if (due) {
      newest_->times = interval_.mean();
      const auto text = iteration_text(*newest_, options_.total_iter, score_);
      to_file(text);
      if (!*options_.is_terminal) to_terminal(text);
      shown_times_ = newest_->times;
      interval_.clear();
    }
    if (*options_.is_terminal) redraw(due);
  }

  void validation(const std::string& name, const ValidationScore& score) {
    score_ = score;
    write(fmt::format("val {}  psnr-y {:.2f} (bicubic {:.2f}, gain {:+.2f})", name, score.psnr_y,
                      score.bicubic_psnr_y, score.psnr_y - score.bicubic_psnr_y));
  }

  void set_last_score(const ValidationScore& score) { score_ = score; }

  void finish_bar() {
    if (!bar_shown_) return;
    *options_.terminal << "\r\033[K" << std::flush;
    bar_shown_ = false;
  }

 private:
  void to_file(const std::string& text) {
    logger_->log(options_.clock(), spdlog::source_loc{}, spdlog::level::info, text);
  }

  /// A line above the progress bar, which is drawn again below it.
  void to_terminal(const std::string& text) {
    const bool again = bar_shown_;
    finish_bar();
    *options_.terminal << text << '\n' << std::flush;
    if (again) redraw(true);
  }

  void redraw(bool now) {
    const auto time = options_.clock();
    if (!newest_ || (!now && bar_shown_ && time - drawn_at_ < kRedrawInterval)) return;
    auto line = *newest_;
    line.times = interval_.empty() ? shown_times_ : interval_.mean();
    // One column stays free: some terminals wrap as soon as the last one is written.
    *options_.terminal << '\r'
                       << progress_text(line, options_.total_iter, score_, options_.width() - 1)
                       << "\033[K" << std::flush;
    drawn_at_ = time;
    bar_shown_ = true;
  }

  TrainLogOptions options_;
  std::unique_ptr<spdlog::logger> logger_;
  IntervalTimes interval_;
  StepTimes shown_times_;
  std::optional<IterationLine> newest_;
  std::optional<ValidationScore> score_;
  std::chrono::system_clock::time_point drawn_at_;
  bool bar_shown_ = false;
  bool log_failed_ = false;
};

TrainLog::TrainLog(const std::filesystem::path& file, TrainLogOptions options)
    : impl_(std::make_unique<Impl>(file, std::move(options))) {}

TrainLog::~TrainLog() {
  try {
    impl_->finish_bar();
  } catch (const std::exception& e) {
    std::fputs(e.what(), stderr);
  }
}

void TrainLog::message(const std::string& text) {
  impl_->write(text);
}
void TrainLog::warning(const std::string& text) {
  impl_->write("warning: " + text);
}
void TrainLog::iteration(const IterationLine& line) {
  impl_->iteration(line);
}
void TrainLog::validation(const std::string& name, const ValidationScore& score) {
  impl_->validation(name, score);
}
void TrainLog::set_last_score(const ValidationScore& score) {
  impl_->set_last_score(score);
}
void TrainLog::finish_bar() {
  impl_->finish_bar();
}

}  // namespace vsr::runtime
